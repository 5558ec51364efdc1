"""Train refuted runs further on the inputs they answer worst, until a search finds no wrong answer.

    python experiments/mined.py results/weights/blocks.zip results/weights/mixed.zip
    python experiments/mined.py results/weights/uniform.zip --device cuda --csv mined.csv

For each refuted run in the stores: look for inputs of least margin (plain strings, densities,
descent), add them to a pool, and train some steps of AdamW on batches that are half blocks and half
from the pool; repeat until `ithbit verify` finds no wrong answer within its budget, or no rounds
are left. Run folders are not changed. *Not refuted* is not *right*.
"""

import argparse
import csv
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from ithbit.engine.device import Device, choose_device, usable_cores
from ithbit.engine.evaluate import bce, evaluate, held_out_examples
from ithbit.models.classifier import logits
from ithbit.spec import RunSpec
from ithbit.store.packed import opened
from ithbit.store.reading import read_verification
from ithbit.store.records import Case
from ithbit.tasks.sampling import Examples, draw_examples, stream_keys
from ithbit.tasks.tokens import token_table
from ithbit.verification import input_search
from ithbit.verification.input_search import InputEvaluator, in_chunks
from ithbit.verification.run_verification import model_of, params_of, verify_model
from ithbit.verification.stored_run import finished_folders, read_stored_run

LOOKED_AT = 1 << 17  # inputs that a round examines for its pool
BATCH, SEED = 256, 88_000  # no run trains or is tested on that seed


def worst(run: RunSpec, weights: bytes, device: Device, seed: int) -> list[Case]:
    """The inputs of least margin that a short search finds."""
    model, n = model_of(run, weights, device.torch), run.model.n_bits
    with in_chunks(model, device.torch, usable_cores()) as chunked:
        evaluator = InputEvaluator(chunked, model, device.torch, count=True)
        input_search.try_structured(evaluator, n, LOOKED_AT // 4)
        input_search.try_densities(evaluator, n, LOOKED_AT // 4, seed)
        input_search.descend(evaluator, n, LOOKED_AT // 2)
    return evaluator.tally.least


def trained_on(
    run: RunSpec, weights: bytes, pool: list[Case], device: Device, steps: int, rate: float, at: int
) -> bytes:
    """The weights after `steps` more steps, with half of each batch from the pool."""
    where, n = device.torch, run.model.n_bits
    params = {k: v[None].to(where).requires_grad_() for k, v in params_of(run, weights).items()}
    table, keys = token_table(run.model.task, n, device=where), stream_keys([SEED], where)
    bits = torch.tensor([[int(b) for b in case.bits] for case in pool], dtype=torch.uint8)
    index = torch.tensor([case.index for case in pool])
    bits, index = bits.to(where), index.to(where)
    optimiser = torch.optim.AdamW(params.values(), lr=rate, weight_decay=0.0)
    generator = torch.Generator().manual_seed(at)
    for step in range(at, at + steps):
        fresh = draw_examples(keys, n, step * BATCH // 2, BATCH // 2, "blocks")
        some = torch.randint(len(pool), (BATCH // 2,), generator=generator).to(where)
        batch = Examples(
            torch.cat([fresh.bits, bits[some][None]], 1),
            torch.cat([fresh.index, index[some][None]], 1),
        )
        loss: Tensor = bce(logits(params, run.model, table, batch), batch.answer).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return save({name: value.detach()[0].cpu() for name, value in params.items()})


def retrain(folder: Path, device: Device, given: argparse.Namespace) -> dict[str, Any]:
    """Train one run further, round after round; return its row."""
    stored = read_stored_run(folder)
    run, weights = stored.spec, stored.weights
    pool: list[Case] = []
    began, rounds = time.perf_counter(), 0
    found = verify_model(model_of(run, weights, device.torch), run.model.n_bits, device.torch)
    before = found.verdict
    while found.verdict == "refuted" and rounds < given.rounds:
        pool += worst(run, weights, device, rounds)
        pool += [case for case in (found.counterexample,) if case is not None]
        weights = trained_on(
            run, weights, pool, device, given.steps, given.rate, rounds * given.steps
        )
        rounds += 1
        model = model_of(run, weights, device.torch)
        found = verify_model(model, run.model.n_bits, device.torch, seed=rounds)
    held_out = held_out_examples(run.model, run.protocol, [run.seed], device.torch)
    table = token_table(run.model.task, run.model.n_bits, device=device.torch)
    params = {k: v[None].to(device.torch) for k, v in params_of(run, weights).items()}
    _, accuracy = evaluate(params, run.model, table, held_out, 1000)
    return {
        "run": run.name,
        "examples": run.protocol.examples,
        "before": before,
        "rounds": rounds,
        "steps": rounds * given.steps,
        "after": found.verdict,
        "least margin": "" if found.worst.margin is None else f"{found.worst.margin:.3g}",
        "held-out accuracy": accuracy.item(),
        "seconds": round(time.perf_counter() - began, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("stores", type=Path, nargs="+", help="folders of run folders")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--rounds", type=int, default=10, help="at most")
    parser.add_argument("--steps", type=int, default=200, help="training steps per round")
    parser.add_argument("--rate", type=float, default=1e-4)
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--only", default="", help="part of a run's name")
    given = parser.parse_args()
    device, rows = choose_device(given.device), []
    for store in given.stores:
        for folder in finished_folders(opened(store)):
            record = read_verification(str(folder))
            if record and record.found.verdict == "refuted" and given.only in folder.name:
                rows.append(retrain(folder, device, given))
                print(*rows[-1].values(), sep=", ", flush=True)
                if given.csv:
                    with given.csv.open("w", newline="", encoding="utf-8") as file:
                        writer = csv.DictWriter(file, rows[0])
                        writer.writeheader()
                        writer.writerows(rows)
    fixed = [row["after"] != "refuted" for row in rows if row["before"] == "refuted"]
    print(f"{sum(fixed)} of {len(fixed)} runs that are refuted here are no longer refuted")


if __name__ == "__main__":
    main()
