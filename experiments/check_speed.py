"""How long `ithbit check` takes, start-up included: processor and wall seconds by layer.

    python experiments/check_speed.py                       # this checkout
    python experiments/check_speed.py ../old/src src        # two of them, in turn, layer by layer

Each layer is checked as a user does, by its name in a new process, so many times (`--repeats`); the
least of each is taken. On a machine that does other things too, the processor seconds are the ones
to compare.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CORRECT, BROKEN = "tests/support/correct_layers.py", "tests/support/broken_layers.py"
LAYERS = (
    *("examples/layers.py:LeakyIntegrator", "torch.nn:LSTM", "torch.nn:GRU"),
    *("torch.nn:TransformerEncoderLayer", "gru", "mamba2", "softmax-causal", "linear-causal"),
    *(f"{CORRECT}:{name}" for name in ("Attention", "Rotary", "SlidingWindow", "Positive")),
    *(f"{CORRECT}:{name}" for name in ("LinearScan", "DeltaRule", "FourierConvolution")),
    *(f"{CORRECT}:{name}" for name in ("SelectiveScan", "SelectiveProduct", "RunningMean")),
    *(f"{CORRECT}:{name}" for name in ("Block", "TopKeys", "LearnedPositions")),
    *(
        f"{BROKEN}:{name}"
        for name in ("BlockMean64", "LosesItsState", "OnlyBackward", "StepClamps")
    ),
)


def seconds_of(layer: str, source: Path) -> tuple[float, float]:
    """Processor and wall seconds of one check."""
    paths = os.pathsep.join((str(source.resolve()), str(ROOT)))  # the corpus imports itself
    environment = os.environ | {"PYTHONPATH": paths}
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "ithbit", "check", layer],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.DEVNULL,
        check=False,
    )
    if done.returncode not in (0, 1):
        sys.exit(f"{layer} cannot be checked (status {done.returncode})")
    wall, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return sum((after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime)), wall


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sources", nargs="*", type=Path, default=[ROOT / "src"])
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--layers", nargs="+", default=LAYERS)
    given = parser.parse_args()
    columns: list[list[tuple[float, float]]] = [[] for _ in given.sources]
    for layer in given.layers:
        for column, source in zip(columns, given.sources, strict=True):
            runs = [seconds_of(layer, source) for _ in range(given.repeats)]
            column.append((min(cpu for cpu, _ in runs), min(wall for _, wall in runs)))
        shown = "  ".join(f"{cpu:6.2f} {wall:6.2f}" for cpu, wall in (c[-1] for c in columns))
        print(f"{layer.rpartition(':')[2]:26} {shown}", flush=True)
    for source, column in zip(given.sources, columns, strict=True):
        for what, values in zip(("processor", "wall"), zip(*column, strict=True), strict=True):
            within = sum(value <= 2 for value in values)
            print(
                f"{source}: {what} seconds: median {statistics.median(values):.2f}, "
                f"{within} of {len(values)} within 2, most {max(values):.2f}"
            )


if __name__ == "__main__":
    main()
