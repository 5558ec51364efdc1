"""Seconds to try all 1,048,576 inputs of two-layer models at n = 16, family by family.

    python experiments/verify.py                              # on this machine's CPU cores
    python experiments/verify.py --device cuda --json out.json
    python experiments/verify.py --device cuda --fla  # also which fla layers can be probed
    python experiments/verify.py --device cuda --fla GLA RWKV7 --limit 60

Weights are untrained: the time does not depend on them. The first call on a GPU loads kernels, so a
small warm-up precedes the timing. Each of fla's layers runs in its own process: one that breaks the
GPU's context, or never stops compiling, does not affect the others. For each: facts, causal
rank up to k = 12, and ten training steps at n = 8. The tables come last; the JSON file is rewritten
after every line.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

import ithbit
from ithbit.contract.layer_facts import layer_facts, usable
from ithbit.contract.rank import causal_rank
from ithbit.engine.device import choose_device, describe_environment
from ithbit.families import FAMILIES
from ithbit.models.classifier import init
from ithbit.models.layer_source import load_layer
from ithbit.spec import ModelSpec, Protocol, RunSpec
from ithbit.verification.input_search import Model
from ithbit.verification.run_verification import model_of, verify_model

FLA = (
    *("GLA", "DeltaNet", "GatedDeltaNet", "RWKV6", "RWKV7", "RetNet", "HGRN", "HGRN2", "Mamba2"),
    *("LinearAttention", "BasedLinearAttention", "Attention", "KimiDeltaAttention"),
    *("GatedSlotAttention", "Comba", "PaTHAttention", "ForgettingAttention", "MesaNet"),
)
WIDTH = 16


def model(family: str, n_bits: int, device: torch.device) -> Model:
    run = RunSpec(ModelSpec("lhi", family, n_bits, n_layers=2), seed=0)
    return model_of(run, save(init(run.model, 0)), device)


def exhaustive(family: str, device: torch.device) -> dict[str, Any]:
    """Seconds for one family; `verify_model` ends by reading its counts, so the device is idle."""
    verify_model(model(family, 8, device), 8, device, count=True)
    found = model(family, 16, device)
    started = time.perf_counter()
    # The model is untrained: do not stop at a wrong answer.
    tried = verify_model(found, 16, device, count=True)
    assert tried.exhaustive
    return {"seconds": time.perf_counter() - started, "inputs": tried.n_evaluated}


def probe_one(name: str, device_name: str) -> dict[str, Any]:
    """What can be found out about one of fla's layers; stops at the first failure."""
    found: dict[str, Any] = {}
    protocol = Protocol(epoch_examples=2560, held_out_examples=256, max_epochs=1)
    try:
        layer, device = load_layer(f"fla:{name}"), choose_device(device_name).torch
        found["stage"] = "build and run"
        module = usable(layer, WIDTH, 10, device)
        found["stage"] = "facts"
        seen = layer_facts(layer, module, WIDTH, 10)
        found |= {"sentence": seen.sentence(name), "dtype": seen.dtype}
        found |= {"causal": seen.to_json(name)["causal"], "parameters": seen.n_parameters}
        found["stage"] = "training"
        where = {"device": device_name, "workers": 1}
        with tempfile.TemporaryDirectory() as store:
            (run,) = ithbit.train(
                "lhi",
                layer.family,
                n=8,
                width=WIDTH,
                seeds=[0],
                protocol=protocol,
                store=store,
                **where,
            )
        if isinstance(run, ithbit.Failure):
            found |= {"trained": False, "failure": run.error}
        else:
            found |= {"trained": True, "accuracy": run.max_accuracy}
        found["stage"] = "rank"
        rank = causal_rank(module, WIDTH, 12)
        found |= {"ranks": list(rank.ranks), "state": rank.state, "stage": "done"}
    except Exception as error:
        found["error"] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return found


def in_own_process(name: str, device_name: str, limit: float) -> dict[str, Any]:
    command = [sys.executable, __file__, "--device", device_name, "--one", name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return {"error": f"not done after {limit:g} s"}
    lines = done.stdout.strip().splitlines()
    try:
        return dict(json.loads(lines[-1]))
    except (IndexError, ValueError):
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        return {"error": f"its process ended with status {done.returncode}: {last[:300]}"}


def attempt(action: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return action()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}


def line(name: str, found: dict[str, Any]) -> str:
    """One row of a table."""
    if "seconds" in found:
        return f"{name:22} {found['seconds']:7.2f} s for {found['inputs']:,} inputs"
    if "error" in found:
        at = f"in {found['stage']}: " if "stage" in found else ""
        return f"{name:22} {at}{found['error']}"
    kept = (
        f"state {found['state']}" if found["state"] is not None else f"{found['ranks'][-1]} at 12"
    )
    causal = "causal" if found["causal"] else "not causal"
    trained = "trains" if found["trained"] else f"does not train: {found['failure']}"
    return f"{name:22} {causal}, rank {kept} ({found['dtype']}), {trained}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    parser.add_argument("--fla", nargs="*", metavar="LAYER", help="these of fla's layers, or all")
    parser.add_argument("--no-families", action="store_true", help="only fla's layers")
    parser.add_argument("--limit", type=float, default=150, help="seconds a layer of fla may take")
    parser.add_argument("--jobs", type=int, default=4, help="layers of fla at a time")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(probe_one(options.one, options.device)))
        return
    device = choose_device(options.device)
    result: dict[str, Any] = {
        "environment": describe_environment(device),
        "all_inputs": {},
        "fla": {},
    }

    def keep(part: str, name: str, found: dict[str, Any]) -> None:
        result[part][name] = found
        print(line(name, found), file=sys.stderr, flush=True)
        if options.json:
            options.json.write_text(json.dumps(result, indent=1) + "\n")

    for family in () if options.no_families else FAMILIES:
        keep("all_inputs", family, attempt(lambda f=family: exhaustive(f, device.torch)))
    names = () if options.fla is None else options.fla or FLA
    with ThreadPoolExecutor(options.jobs) as pool:
        waiting = {
            pool.submit(in_own_process, name, device.torch.type, options.limit): name
            for name in names
        }
        for future in as_completed(waiting):
            keep("fla", waiting[future], attempt(future.result))
    print(json.dumps(result["environment"]))
    for part in ("all_inputs", "fla"):
        order = [name for name in (*FAMILIES, *names) if name in result[part]]
        for name in order:
            print(line(name, result[part][name]))


if __name__ == "__main__":
    main()
