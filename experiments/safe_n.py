"""Up to which n a construction is right in floating point: the table in `theory/precision.py`.

For n = 16, 32, … up to a limit, many inputs are run: indices spread over 1..n and all of the first
and last ones, with random strings, all ones and all zeros. If a length goes wrong, the limit is
bisected to one per cent.

    python experiments/safe_n.py [VARIANT ...]

All of them take about ten minutes on one core.
"""

import argparse
import time

import numpy as np

from ithbit.theory.constructions import CONSTRUCTIONS, FREE_GRU, construct
from ithbit.theory.solution import Solution

BUDGET = 4e8  # numbers of attention or state computed per length


def right(solution: Solution, dtype: type) -> bool:
    """Whether all tried inputs have a positive margin."""
    n, rng = solution.n_bits, np.random.default_rng(solution.n_bits)
    deep = any(layer.kind == "softmax" for layer in solution.layers[:-1])
    cost = solution.n_tokens**2 if deep else 8 * solution.n_tokens * solution.embedding.d
    spread = np.linspace(1, n, int(min(n, max(8, BUDGET / 8 / cost)))).round().astype(int)
    ends = np.concatenate([np.arange(1, min(n, 8) + 1), np.arange(max(1, n - 8), n + 1)])
    indices = np.unique(np.concatenate([spread, ends]))
    step = 1 if deep else max(1, int(5e6 / cost))
    for pattern, answer in (("random", 1), ("random", 0), ("ones", 0), ("zeros", 1)):
        for start in range(0, len(indices), step):
            index = indices[start : start + step]
            bits = rng.integers(0, 2, (len(index), n), dtype=np.uint8)
            if pattern != "random":
                bits[:] = pattern == "ones"
            bits[np.arange(len(index)), index - 1] = answer
            with np.errstate(all="ignore"):
                if not (solution.margins(bits, index, dtype) > 0).all():
                    return False
    return True


def measure(task: str, family: str, variant: str, dtype: type, limit: int) -> tuple[int, int]:
    """(largest n that was right, smallest n that was wrong or 0)."""
    good, bad, n = 0, 0, 16
    while n <= limit and not bad:
        if right(construct(task, family, n, variant), dtype):
            good, n = n, 2 * n
        else:
            bad = n
    while bad and bad - good > max(1, good // 100):
        middle = (good + bad) // 2
        if right(construct(task, family, middle, variant), dtype):
            good = middle
        else:
            bad = middle
    return good, bad


if __name__ == "__main__":
    entries = CONSTRUCTIONS + FREE_GRU
    names = sorted({name for entry in entries for name in entry.variants})
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("variant", nargs="*", help=f"only these: {', '.join(names)}")
    asked = parser.parse_args().variant
    if unknown := set(asked) - set(names):
        parser.error(f"there is no variant {', '.join(sorted(unknown))}")
    for entry in entries:
        for name in entry.variants:
            if asked and name not in asked:
                continue
            deep_softmax = entry.family.startswith("softmax") and entry.depth > 1
            for dtype in (np.float32, np.float64):
                began = time.perf_counter()
                good, bad = measure(
                    entry.task, entry.family, name, dtype, 2048 if deep_softmax else 8192
                )
                print(
                    f"{entry.task} {entry.family} {name} {dtype.__name__}: right to {good}, "
                    f"wrong from {bad or '-'} ({time.perf_counter() - began:.0f} s)",
                    flush=True,
                )
