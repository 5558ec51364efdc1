"""Random and extreme models of two layers of Mamba2: bounds of the search and of the check against
the margin of single inputs in balls (`in_balls.py`).

A model and its nodes follow from a seed and a number. A violation is a bound that an input
certainly beats. For the counts, run `python -m tests.support.fuzz_mamba2 --models 2000 --seed 1`.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from flint import arb
from tests.support.in_balls import margin

from ithbit.spec import ModelSpec
from ithbit.theory.solution import TrainedSolution
from ithbit.theory.trained_blocks import shapes
from ithbit.verification.checks.mamba2_balls import TwoMamba2Layers
from ithbit.verification.proofs.mamba2 import Mamba2Bounds

INPUTS = 6  # of a node, compared
Params = dict[str, np.ndarray]
Rng = np.random.Generator


@dataclass
class Counts:
    """What a run of the harness has compared."""

    models: Counter[str] = field(default_factory=Counter)  # by kind
    refused: int = 0
    nodes: int = 0
    unbounded: int = 0
    inputs: int = 0
    violations: list[str] = field(default_factory=list)


def _plain(p: Params, rng: Rng) -> None:
    pass


def _scaled(p: Params, rng: Rng) -> None:
    for name in p:
        p[name] *= 10.0 ** rng.uniform(-2, 1.5)


def _extreme(p: Params, rng: Rng) -> None:
    for name in p:
        if rng.random() < 0.3:
            p[name] *= 10.0 ** rng.uniform(-30, 30)


def _entries(p: Params, rng: Rng) -> None:
    for name in rng.permutation(list(p))[: rng.integers(1, 4)]:
        p[name].flat[rng.integers(p[name].size)] = rng.choice([-1, 1]) * 10 ** rng.uniform(-20, 20)


def _zeros(p: Params, rng: Rng) -> None:
    for name in p:
        if rng.random() < 0.3:
            p[name][rng.random(len(p[name])) < 0.6] = 0


def _small(p: Params, rng: Rng) -> None:
    """Bits that hardly matter: nodes are nearly points, where bounds are tight."""
    p["embed"][:, 3] *= 10.0 ** rng.uniform(-7, 0)


def _digits(p: Params, rng: Rng) -> None:
    """A large head, so that the last digits of what it reads are seen."""
    p["head.weight"] *= 10.0 ** rng.uniform(2, 8)
    p["head.bias"][...] = 0
    _small(p, rng)


def _turns(p: Params, rng: Rng) -> None:
    """Units where SiLU turns, where softplus bends, and where the tables end."""
    for name in p:
        if name.endswith("conv.bias"):
            p[name][...] = rng.choice([-41, -39, -1.5, -1.278, -1, 0, 39, 41], p[name].shape)
        if name.endswith("dt_bias"):
            p[name][...] = rng.choice([-41, -39, -5, -1, 0, 3, 39, 41], p[name].shape)
        if name.endswith("conv.weight"):
            p[name] *= 10.0 ** rng.uniform(-2, 0.5)


def _steps(p: Params, rng: Rng) -> None:
    """Steps that depend on all bits, with decays that neither forget nor keep everything."""
    for name in p:
        if name.endswith("in.weight"):
            p[name][-1] *= rng.uniform(1, 6)
        if name.endswith("a_log"):
            p[name][...] = rng.uniform(-4, 1.5, p[name].shape)
        if name.endswith("dt_bias"):
            p[name][...] = rng.uniform(-3, 1, p[name].shape)


def _flat(p: Params, rng: Rng) -> None:
    """Rows that norms divide by little more than their epsilon."""
    size = 10.0 ** rng.uniform(-5, -1)
    for name in p:
        if name.endswith(("embed", "polynomial", "out.weight", "skip", "conv.weight")):
            p[name] *= size


def _tiny(p: Params, rng: Rng) -> None:
    for name in p:
        p[name] *= 10.0 ** rng.uniform(-40, -2)


_ALL = (_plain, _plain, _scaled, _extreme, _entries, _zeros, _small, _digits, _turns, _steps)
_ALL += (_steps, _flat, _tiny)


def model(rng: Rng, kind: Callable[[Params, Rng], None] | None = None) -> tuple[ModelSpec, Params]:
    """A model with random weights, all of them float32 numbers."""
    heads = int(rng.choice([1, 2]))
    d, N = heads * int(rng.choice([1, 2, 3])), int(rng.choice([1, 2, 3]))
    n = int(rng.choice([1, 2, 3, 4, 5, 6], p=[0.05, 0.1, 0.25, 0.3, 0.2, 0.1]))
    spec = ModelSpec("lhi", "mamba2", n, 2, d_model=d, n_heads=heads, d_state=N)
    size = rng.choice([0.3, 1, 1, 2])
    p = {name: rng.normal(size=shape) * size for name, shape in shapes(spec).items()}
    if kind is not None:
        kind(p, rng)
    with np.errstate(over="ignore", under="ignore"):
        return spec, {name: v.astype(np.float32).astype(float) for name, v in p.items()}


def node(rng: Rng, n: int) -> tuple[int, list[int]]:
    """An index and bits, of which some are free."""
    index, bits = int(rng.integers(n)), rng.integers(0, 2, n)
    free = rng.permutation(n)[: rng.choice([0, 1, 2, n, n])]
    bits[free[free != index]] = -1
    return index, bits.tolist()


def strings(bits: list[int]) -> np.ndarray:
    """All strings of a node."""
    free = [j for j, bit in enumerate(bits) if bit < 0]
    found = np.tile(bits, (1 << len(free), 1))
    found[:, free] = np.arange(len(found))[:, None] >> np.arange(len(free)) & 1
    return found


def compare(seed: int, number: int, counts: Counts) -> None:
    """Compare the bounds of one model, by both implementations, with single inputs."""
    rng = np.random.default_rng([seed, number])
    kind = _ALL[number % len(_ALL)]
    spec, params = model(rng, kind)
    counts.models[kind.__name__[1:]] += 1
    try:
        search, check = Mamba2Bounds(spec, params), TwoMamba2Layers(spec, params)
    except ArithmeticError:
        counts.refused += 1
        return
    solution = TrainedSolution(spec, params, "")
    nodes = [node(rng, spec.n_bits) for _ in range(3)]
    found = search(np.array([i for i, _ in nodes]), np.array([b for _, b in nodes], np.int8))
    for k, (index, bits) in enumerate(nodes):
        own = float(found.lower[k]), float(found.upper[k])
        ranges = {"search": own, "check": check._margin(index, bits)}
        counts.nodes += 1
        counts.unbounded += not np.isfinite(own).all()
        for string in rng.permutation(strings(bits))[:INPUTS]:
            true = margin(solution, string, index + 1, 300)
            if not true.is_finite():
                continue
            counts.inputs += 1
            for who, (low, high) in ranges.items():
                if np.isfinite([low, high]).all() and (arb(low) > true or arb(high) < true):
                    counts.violations.append(
                        f"model {number} of seed {seed} ({kind.__name__}), {who}, n = "
                        f"{spec.n_bits}, index {index}, {bits}: [{low!r}, {high!r}], but "
                        f"{true.str(20)} at {string.tolist()}"
                    )


def run(models: int, seed: int, stop: bool = False) -> Counts:
    """Compare that many models; `stop` at the first violation."""
    counts = Counts()
    for number in range(models):
        compare(seed, number, counts)
        if stop and counts.violations:
            break
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    counts = run(options.models, options.seed)
    for violation in counts.violations[:30]:
        print(violation)
    print(
        f"{counts.models.total():,} models ({counts.refused:,} refused), {counts.nodes:,} nodes "
        f"({counts.unbounded:,} without a bound), {counts.inputs:,} inputs, "
        f"{len(counts.violations):,} violations"
    )
    return 1 if counts.violations else 0


if __name__ == "__main__":
    sys.exit(main())
