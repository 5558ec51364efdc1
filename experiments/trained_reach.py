"""Up to which n the explicit weights of trained blocks are right in bfloat16, float32 and float64.

For n = 2, 4, 8, … the models of this package run on inputs made to mislead: strings that differ
from the requested bit everywhere, at its neighbours, before or after it, alternating ones, and
random ones, for small, middle and large indices. Observed, not certified.

    python experiments/trained_reach.py [--limit 4096] [--device cuda] [--width 16] [--json FILE]

Prints a table in Markdown. About half an hour on one core up to n = 4,096; minutes on a GPU.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch

from ithbit.models import classifier
from ithbit.tasks.margins import margin_of
from ithbit.tasks.sampling import Examples
from ithbit.tasks.tokens import token_table
from ithbit.theory.constructions import TRAINED, construct_trained
from ithbit.theory.solution import TrainedSolution

TYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64}


def misleading(n: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Bits and indices that a construction could get wrong."""
    rng = np.random.default_rng(seed)
    place = np.arange(1, n + 1)
    asked = sorted({1, 2, n // 4, n // 2, n // 2 + 1, n - 1, n, *rng.integers(1, n + 1, 4)} - {0})
    bits, index = [], []
    for i in asked[: 11 if n <= 1024 else 6]:
        near = np.abs(place - i)
        patterns = [near == 0, near != 0, near == 1, near != 1, place < i, place > i]
        patterns += [(place + i) % 2 == 0, (place + i) % 2 == 1, rng.integers(0, 2, n) == 1]
        bits += patterns
        index += [i] * len(patterns)
    return torch.tensor(np.array(bits), dtype=torch.uint8), torch.tensor(index)


def wrong(solution: TrainedSolution, dtype: torch.dtype, device: str) -> tuple[int, float]:
    """How many inputs are answered wrongly, and the least margin seen."""
    bits, index = (each.to(device) for each in misleading(solution.n_bits))
    params = {
        name: torch.tensor(np.array(value))[None].to(device, dtype)
        for name, value in solution.weights.items()
    }
    table = token_table(solution.task, solution.n_bits, dtype=dtype, device=device)
    step = max(1, int(4e7 / solution.n_tokens**2 / 4))
    count, least = 0, float("inf")
    for start in range(0, len(bits), step):
        rows = slice(start, start + step)
        examples = Examples(bits[None, rows], index[None, rows])
        with torch.no_grad():
            logits = classifier.logits(params, solution.spec, table, examples)[0].double()
        margins = margin_of(logits, examples.answer[0])
        count += int((margins <= 0).sum())
        least = min(least, float(margins.min()))
    return count, least


def measure(
    task: str, family: str, width: int, dtype: torch.dtype, limit: int, device: str
) -> dict:
    """The largest n in the doubling that was right, the first that was not, and least margins."""
    good, bad, margins, n = 0, None, {}, 2
    while n <= limit and bad is None:
        count, least = wrong(construct_trained(task, family, n, d_model=width), dtype, device)
        margins[n] = round(least, 4)
        good, bad, n = (n, None, 2 * n) if not count else (good, n, n)
    return {"right": good, "wrong": bad, "margins": margins}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--limit", type=int, default=4096)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", default="", help="a family")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(
        "| task | family | " + " | ".join(TYPES) + " |", "| --- " * (2 + len(TYPES)) + "|", sep="\n"
    )
    found = {}
    for entry in TRAINED:
        if options.only not in ("", entry.family):
            continue
        cells = []
        for name, dtype in TYPES.items():
            seen = measure(
                entry.task, entry.family, options.width, dtype, options.limit, options.device
            )
            found[f"{entry.task} {entry.family} {name}"] = seen
            ends = f", wrong at {seen['wrong']:,}" if seen["wrong"] else ", no longer n tried"
            cells.append(
                f"{seen['right']:,}{ends}" if seen["right"] else f"wrong at {seen['wrong']}"
            )
        print(f"| {entry.task} | {entry.family} | " + " | ".join(cells) + " |", flush=True)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
