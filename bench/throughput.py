"""Seconds per run and epoch, the reference and the stacked models side by side in one run.

    python bench/throughput.py --n 8 64                      # on this machine's CPU cores
    python bench/throughput.py --n 64 --device cuda --seeds 5 20

The reference trains one run at a time with all the cores (or the GPU). The stacked models train as
`ithbit train` does: on a CPU a worker a core with one thread, each with as many seeds as fit its
caches; on a GPU one stack. Ratios are reference / stacked; absolute times move from machine to
machine.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from ithbit.sweep.presets import CONSTRUCTIVE

DEEPEST = [("rhi", "linear-causal", 4), ("rhi", "gru", 4), ("rhi", "mamba2", 4)]


def time_stack(task: Any, family: str, layers: int, n: int, seeds: int, device: str) -> float:
    """Seconds of one training epoch of the stack, per run, in this process."""
    from ithbit.engine.device import choose_device
    from ithbit.engine.optim import AdamState
    from ithbit.engine.spec import Protocol, RunSpec
    from ithbit.engine.stack import Stack, fresh_state
    from ithbit.models.spec import ModelSpec

    chosen = choose_device(device)
    # A tenth of an epoch on a CPU; a GPU is quick enough for the whole of one.
    protocol = Protocol(epoch_examples=50_000 if chosen.is_cuda else 5_120)
    model = ModelSpec(task, family, n_bits=n, n_layers=layers)
    runs = [RunSpec(model, seed, protocol) for seed in range(seeds)]
    stack = Stack(runs, AdamState.join([fresh_state(run) for run in runs]), chosen)
    stack.train_epoch([0] * seeds)
    start = time.perf_counter()
    stack.train_epoch([1] * seeds)  # waits for the device
    return (time.perf_counter() - start) / seeds * 50_000 / protocol.epoch_examples


def time_workers(task: str, family: str, layers: int, n: int, seeds: int) -> float:
    """The same on all cores of a CPU: one process a core, one thread each, at the same time."""
    from ithbit.engine.device import choose_device
    from ithbit.engine.loop import stack_size
    from ithbit.engine.spec import RunSpec
    from ithbit.models.spec import ModelSpec
    from ithbit.sweep.local import usable_cores

    model = ModelSpec(task, family, n_bits=n, n_layers=layers)  # type: ignore[arg-type]
    seeds = min(seeds, stack_size(RunSpec(model, 0), choose_device("cpu")))
    command = [sys.executable, __file__, "--one", task, family, str(layers), str(n), str(seeds)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    workers = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(usable_cores())
    ]
    times = [float(worker.communicate()[0]) for worker in workers]
    return statistics.mean(times) / len(workers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--n", type=int, nargs="+", default=[8, 64])
    parser.add_argument("--seeds", type=int, nargs="+", default=[5])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=20, help="steps of the reference timed")
    parser.add_argument("--deepest", action="store_true", help="the deepest of each family too")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", nargs=5, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        task, family, layers, n, seeds = args.one
        print(time_stack(task, family, int(layers), int(n), int(seeds), "cpu"))
        return

    import torch

    from ithbit.models.spec import ModelSpec
    from ithbit.reference.train import time_epoch

    name = torch.cuda.get_device_name() if args.device == "cuda" else platform.processor()
    print(f"{args.device} {name}, {os.cpu_count()} cores, torch {torch.__version__}")
    header = f"{'n':>3} {'task':4} {'family':15} L  reference s/epoch"
    print(header + "".join(f"   {s:>2} seeds  ratio" for s in args.seeds), flush=True)
    rows = []
    for n in args.n:
        for task, family, layers in [*CONSTRUCTIVE, *(DEEPEST if args.deepest else [])]:
            spec = ModelSpec(task, family, n_bits=n, n_layers=layers)  # type: ignore[arg-type]
            reference = time_epoch(spec, device=args.device, steps=args.steps)
            line = f"{n:>3} {task:4} {family:15} {layers}  {reference:17.3f}"
            for seeds in args.seeds:
                if args.device == "cpu":
                    stacked = time_workers(task, family, layers, n, seeds)
                else:
                    stacked = time_stack(task, family, layers, n, seeds, args.device)
                rows.append(
                    {
                        "n": n,
                        "task": task,
                        "family": family,
                        "layers": layers,
                        "seeds": seeds,
                        "constructive": (task, family, layers) in CONSTRUCTIVE,
                        "reference_seconds": reference,
                        "stacked_seconds": stacked,
                        "ratio": reference / stacked,
                    }
                )
                line += f"   {stacked:8.4f} {reference / stacked:6.1f}"
            print(line, flush=True)
    for seeds in args.seeds:
        ratios = [row["ratio"] for row in rows if row["seeds"] == seeds and row["constructive"]]
        mean = statistics.geometric_mean(ratios)
        print(f"{seeds} seeds: geometric mean of the ratios, constructive ones: {mean:.2f}")
    if args.json:
        head = {"device": args.device, "name": name, "torch": torch.__version__}
        args.json.write_text(json.dumps(head | {"rows": rows}, indent=1))


if __name__ == "__main__":
    main()
