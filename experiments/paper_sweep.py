"""The paper's main sweep, 540 runs, by the clock: on one GPU, compiling included.

    python experiments/paper_sweep.py --store /tmp/paper --out /tmp/paper.json

One process, nothing beside it on the GPU, and an empty Triton cache (`TRITON_CACHE_DIR`), or the
compiling is left out. What earlier commands finished is not trained again; each command adds its
seconds to the file, so a sweep that was cut short is timed as the sum. Also in the file: each run's
epochs and final loss, to compare with those of `results/paper`.

Needs torch and nothing of the command line.
"""

import argparse
import json
import time
from pathlib import Path

from ithbit.engine.options import TrainingOptions
from ithbit.engine.training_context import Event
from ithbit.store.records import Result
from ithbit.store.writing import write_text
from ithbit.sweeps.presets import preset
from ithbit.sweeps.runner import run_all

EVERY = 60  # runs between two lines of progress


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--preset", default="paper")
    given = parser.parse_args()
    before = json.loads(given.out.read_text())["seconds"] if given.out.exists() else []
    began, runs = time.perf_counter(), preset(given.preset)
    done: dict[str, Result] = {}

    def keep() -> float:
        seconds = time.perf_counter() - began
        found = {
            name: {
                "epochs": result.epochs,
                "final_loss": result.final_loss,
                "solved": result.solved,
            }
            for name, result in sorted(done.items())
        }
        write_text(given.out, json.dumps({"seconds": [*before, round(seconds, 1)], "runs": found}))
        return seconds

    def watch(event: Event) -> None:
        if isinstance(event.what, str):
            print(f"{event.run.name}: {event.what}", flush=True)
        if isinstance(event.what, Result):
            done[event.run.name] = event.what
            if len(done) % EVERY == 0:
                print(f"{keep():.0f} s: {len(done)} of {len(runs)}", flush=True)

    try:
        run_all(runs, given.store, TrainingOptions(given.device), watch)
    finally:
        seconds = keep()
        how = ", ".join(sorted({result.stepper for result in done.values()}))
        solved = sum(result.solved for result in done.values())
        print(
            f"{len(done)} of {len(runs)} runs, {solved} solved, by {how}: {seconds:.1f} s, "
            f"{sum(before) + seconds:.1f} s in all"
        )


if __name__ == "__main__":
    main()
