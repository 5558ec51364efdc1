"""Random and extreme models: bounds of sets of inputs against the margin in 600-bit balls.

Every model has a number, and a model with all its nodes follows from the seed and that number. A
*violation* is a bound that an input certainly beats, a node that is called empty but is not, a
false bound that the second implementation confirms, or weights that are not finite and yet have
bounds. With every model come single operations on random forms (`fuzz_forms.py`). For the counts,
run `python -m tests.support.fuzz --models 10000 --seed 1`.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flint import arb
from tests.support import fuzz_sets
from tests.support.exact import Exact
from tests.support.fuzz_forms import compare_operations

from ithbit.spec import ModelSpec
from ithbit.theory.trained_blocks import shapes
from ithbit.verification.checks.interface import confirm_leaf
from ithbit.verification.checks.one_layer_balls import OneLayer
from ithbit.verification.checks.two_layers_balls import TwoAttentionLayers
from ithbit.verification.proofs.bands import STEP, everything
from ithbit.verification.proofs.interface import MarginBounds, NoBoundsError
from ithbit.verification.proofs.kinds import bounds_for, kind_of
from ithbit.verification.proofs.two_layers import TwoLayers

ATTENTION = ("softmax-full", "softmax-causal", "linear-full", "linear-causal")
MODELS = [("rhi", "softmax-full", 1), ("rhi", "softmax-causal", 1)] * 4 + [
    (task, family, 2) for task in ("rhi", "lhi") for family in ATTENTION
]
INPUTS = 8  # of a node, compared
WIDE = 20  # one in so many models has the size of a trained one
Params = dict[str, np.ndarray]
Rng = np.random.Generator


def is_one(spec: ModelSpec) -> bool:
    kind = kind_of(spec)
    return kind is not None and kind.name == "one-layer"


@dataclass
class Counts:
    """What a run of the harness has compared."""

    models: Counter[str] = field(default_factory=Counter)  # by task, family and layers
    refused: int = 0
    nodes: int = 0
    unbounded: int = 0
    empty: int = 0
    inputs: int = 0
    checks: int = 0
    unchecked: int = 0  # leaves of two layers without a bound by the second implementation
    violations: list[str] = field(default_factory=list)

    def sentence(self) -> str:
        return (
            f"{self.models.total():,} models ({self.refused:,} refused), {self.nodes:,} nodes "
            f"({self.unbounded:,} without a bound, {self.empty:,} empty), {self.inputs:,} inputs, "
            f"{self.checks:,} false bounds shown to the check ({self.unchecked:,} nodes without a "
            f"bound of its own), {len(self.violations):,} violations"
        )


# What is done to random weights. Each kind aims at one way in which bounds may fail.


def _plain(p: Params, spec: ModelSpec, rng: Rng) -> None:
    pass


def _scaled(p: Params, spec: ModelSpec, rng: Rng) -> None:
    for name in p:
        p[name] *= 10.0 ** rng.uniform(-3, 3)


def _extreme(p: Params, spec: ModelSpec, rng: Rng) -> None:
    for name in p:
        if rng.random() < 0.3:
            p[name] *= 10.0 ** rng.uniform(-30, 30)


def _gains(p: Params, spec: ModelSpec, rng: Rng) -> None:
    for name in p:
        if "norm" in name and name.endswith("weight"):
            p[name] *= 10.0 ** rng.uniform(0, 20 if rng.random() < 0.3 else 3)


def _zeros(p: Params, spec: ModelSpec, rng: Rng) -> None:
    for name in p:
        if rng.random() < 0.3:
            p[name][rng.random(len(p[name])) < 0.6] = 0


def _entries(p: Params, spec: ModelSpec, rng: Rng) -> None:
    for name in rng.permutation(list(p))[: rng.integers(1, 4)]:
        p[name].flat[rng.integers(p[name].size)] = rng.choice([-1, 1]) * 10 ** rng.uniform(-20, 30)


def _whole(p: Params, spec: ModelSpec, rng: Rng) -> None:
    for name in p:
        p[name][...] = np.rint(p[name])


def _scores(p: Params, spec: ModelSpec, rng: Rng) -> None:
    """Scores that spread by tens, or by more than exp has range."""
    size = 10.0 ** rng.uniform(0, 2.2)
    for layer in range(spec.n_layers):
        p[f"blocks.{layer}.qkv.weight"][: 2 * spec.d_model] *= size


def _cliff(p: Params, spec: ModelSpec, rng: Rng) -> None:
    """One token in the first layer of softmax on RHI outweighs those of some string by the factor
    at which float64 begins to lose numbers, e^645 to e^745."""
    if not (spec.task == "rhi" and spec.family.startswith("softmax")):
        return
    n, d, i = spec.n_bits, spec.d_model, int(rng.integers(spec.n_bits))
    features = np.zeros((2 * n + 1, 6))
    features[: 2 * n, 0], features[n : 2 * n, 3] = 1, 1
    features[-1, [1, 4, 5]] = 1, i / n, (i / n) ** 2
    place = np.append(np.tile(np.arange(n) / n, 2), 1)
    x = features @ p["embed"].T + np.stack([place, place**2], -1) @ p["positions.polynomial"].T
    x = x + p["enter.type"]
    x = (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True)
    x = x * p["enter.norm.weight"] + p["enter.norm.bias"]
    weight, bias = p["blocks.0.qkv.weight"], p["blocks.0.qkv.bias"]
    q, k = x[-1] @ weight[:d].T + bias[:d], x @ weight[d : 2 * d].T + bias[d : 2 * d]
    score = (q * k)[:, : spec.d_head].sum(-1) / np.sqrt(spec.d_head)
    seen = [*(np.arange(n) + n * rng.integers(0, 2, n)), 2 * n]
    spread = score.max() - score[seen].max()
    if spread > 0:
        factor = np.sqrt(rng.uniform(630, 750) / spread)
        weight[: 2 * d] *= factor
        bias[: 2 * d] *= factor


def _common(p: Params, spec: ModelSpec, rng: Rng) -> None:
    """A large common part of all coordinates, which norms take away with all but a few digits."""
    for name in p:
        if name.endswith(("out.bias", "down.bias", "enter.type")) and rng.random() < 0.7:
            p[name] += 10.0 ** rng.uniform(1, 8)
    if spec.family.startswith("linear"):
        p["positions.polynomial"] += 10.0 ** rng.uniform(1, 7)


def _flat(p: Params, spec: ModelSpec, rng: Rng) -> None:
    """Rows that are nearly constant: norms divide by little more than their epsilon."""
    size = 10.0 ** rng.uniform(-9, -3)
    names = ("out.weight", "out.bias", "down.weight", "down.bias")
    names += ("enter.norm.weight", "enter.norm.bias", "embed", "positions.polynomial")
    for name in p:
        if name.endswith(names):
            p[name] *= size


def _kinks(p: Params, spec: ModelSpec, rng: Rng) -> None:
    """Units of the feed-forward part where GELU bends most or its table ends."""
    for name in p:
        if name.endswith("up.weight"):
            p[name] *= 10.0 ** rng.uniform(-3, 1)
        if name.endswith("up.bias"):
            p[name][...] = rng.choice([-20, -8, -2, -0.7, 0, 0.7, 2, 8, 20], p[name].shape)


def _twins(p: Params, spec: ModelSpec, rng: Rng) -> None:
    """All heads alike, or with opposite values."""
    sign = rng.choice([-1, 1])
    for name in p:
        if ".qkv." in name:
            parts = p[name].reshape(3, spec.n_heads, spec.d_head, -1)
            parts[:, 1:] = parts[:, :1]
            parts[2, 1:] *= sign


def _small(p: Params, spec: ModelSpec, rng: Rng) -> None:
    """Bits that hardly matter: nodes are nearly points, where bounds are tight."""
    p["embed"][:, 3] *= 10.0 ** rng.uniform(-7, 0)


def _digits(p: Params, spec: ModelSpec, rng: Rng) -> None:
    """A large head, so that the last digits of what it reads are seen."""
    p["head.weight"] *= 10.0 ** rng.uniform(2, 8)
    p["head.bias"][...] = 0
    if rng.random() < 0.5:
        p["embed"][:, 3] *= 10.0 ** rng.uniform(-7, 0)
    if rng.random() < 0.5:
        _common(p, spec, rng)


def _tiny(p: Params, spec: ModelSpec, rng: Rng) -> None:
    for name in p:
        p[name] *= 10.0 ** rng.uniform(-40, -2)


def _weak(p: Params, spec: ModelSpec, rng: Rng) -> None:
    """Keys far below 0: the weights of linear attention are no larger than its epsilon."""
    for layer in range(spec.n_layers):
        p[f"blocks.{layer}.norm1.bias"][...] = 3 * rng.choice([-1, 1])
        block = p[f"blocks.{layer}.qkv.weight"]
        block[: 2 * spec.d_model] = -np.abs(block[: 2 * spec.d_model]) * rng.uniform(0.5, 2)
        block[: 2 * spec.d_model] *= np.sign(p[f"blocks.{layer}.norm1.bias"])


def _infinite(p: Params, spec: ModelSpec, rng: Rng) -> None:
    name = rng.permutation(list(p))[0]
    p[name].flat[rng.integers(p[name].size)] = rng.choice([np.nan, np.inf, -np.inf])


_ALL = [_plain, _scaled, _extreme, _gains, _zeros, _entries, _whole, _scores, _cliff, _common]
_ALL += [_flat, _kinks, _twins, _small, _digits, _tiny, _weak, _infinite]
KINDS: dict[str, Callable[[Params, ModelSpec, Rng], None]] = {f.__name__[1:]: f for f in _ALL}
_RARE = ("infinite", "tiny", "extreme")


def model(rng: Rng, kind: str | None = None, wide: bool = False) -> tuple[ModelSpec, Params, str]:
    """A model with random weights of some kind, all of them float32 numbers; if `wide`, of the size
    that is trained."""
    task, family, layers = MODELS[rng.integers(len(MODELS))]
    n = int(rng.choice([2, 3, 4, 5, 6], p=[0.25, 0.3, 0.25, 0.1, 0.1]))
    heads = int(rng.choice([1, 2]))
    width = heads * int(rng.choice([1, 2, 3])) if heads == 2 else int(rng.choice([2, 3, 4]))
    ff = int(rng.choice([1, 2, 4]))
    if wide:
        n, heads, width, ff = min(n, 3), 2, 16, 64
    spec = ModelSpec(task, family, n, layers, d_model=width, n_heads=heads, d_ff=ff)
    size = rng.choice([0.3, 1, 1, 3])
    p = {name: rng.normal(size=shape) * size for name, shape in shapes(spec).items()}
    likely = [0.3 if name in _RARE else 1.0 for name in KINDS]
    kind = kind or str(rng.choice(list(KINDS), p=np.array(likely) / sum(likely)))
    KINDS[kind](p, spec, rng)
    with np.errstate(over="ignore", under="ignore"):
        return spec, {name: v.astype(np.float32).astype(float) for name, v in p.items()}, kind


def nodes(rng: Rng, n: int, functionals: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A case with all other bits free, single inputs, and some bits free; limits of functionals
    around a string or anywhere, some of them beyond reach."""
    count = 5
    index, bits = rng.integers(0, n, count), rng.integers(0, 2, (count, n)).astype(np.int8)
    limits = everything(functionals, count)
    for k in range(count):
        free = rng.permutation(n)[: (n, 0, 1, 2, rng.integers(0, n + 1))[k]]
        string = bits[k].copy()
        bits[k, free[free != index[k]]] = -1
        for f, row in enumerate(functionals):
            if rng.random() < 0.7:
                at = row @ (2.0 * string - 1) + np.abs(row).sum() * rng.choice([0, 0, 0, 1, 1.5])
                room = rng.choice([0, 0.1, 0.5], 2) * np.abs(row).sum()
                limits[k, f] = np.rint(np.array([at - room[0], at + room[1]]) / STEP) * STEP
    return index, bits, limits


def strings(bits: np.ndarray, limits: np.ndarray, functionals: np.ndarray) -> np.ndarray:
    """All strings of a node, within its limits."""
    free = np.flatnonzero(bits < 0)
    found = np.tile(bits, (1 << len(free), 1)).astype(int)
    found[:, free] = np.arange(len(found))[:, None] >> np.arange(len(free)) & 1
    at = (2.0 * found - 1) @ functionals.T
    return found[((limits[:, 0] <= at) & (at <= limits[:, 1])).all(1)]


def ways(rng: Rng, spec: ModelSpec, params: Params) -> Iterator[tuple[str, MarginBounds]]:
    """The bounds of a model; for two layers also those of sets without trying their inputs."""
    if is_one(spec):
        yield "forms", bounds_for(spec, params)
        return
    shape = (int(rng.integers(0, 3)), spec.n_bits)
    bounds = bounds_for(spec, params, np.rint(rng.uniform(-1, 1, shape) / STEP) * STEP)
    assert isinstance(bounds, TwoLayers)
    yield "points", bounds
    bounds.few = -1
    yield "forms", bounds


def compare(seed: int, number: int, counts: Counts, kind: str | None = None) -> None:
    """Compare the bounds of one model with the truth."""
    rng = np.random.default_rng([seed, number])
    spec, params, kind = model(rng, kind, wide=number % WIDE == WIDE - 1)
    counts.models[f"{spec.task} {spec.family}, {spec.n_layers}"] += 1
    name = f"model {number} of seed {seed} ({kind}, {spec.task} {spec.family}, n = {spec.n_bits})"

    def violated(what: str) -> None:
        counts.violations.append(f"{name}: {what}")

    truth = Exact(spec, params) if kind != "infinite" else None
    margins: dict[Any, Any] = {}
    try:
        for way, bounds in ways(rng, spec, params):
            if truth is None:
                violated("weights that are not finite have bounds")
                return
            index, bits, limits = nodes(rng, spec.n_bits, bounds.functionals)
            found = bounds(index, bits, limits)
            for k, i in enumerate(index.tolist()):
                lower, upper = float(found.lower[k]), float(found.upper[k])
                held = strings(bits[k], limits[k], bounds.functionals)
                counts.nodes += 1
                counts.empty += bool(found.empty[k])
                counts.unbounded += lower == -np.inf
                if lower == -np.inf and upper == np.inf:
                    continue
                for string in rng.permutation(held)[:INPUTS].tolist():
                    key = (i, *string)
                    if key not in margins:
                        margins[key] = truth.margin(i, string)
                    true = margins[key]
                    counts.inputs += 1
                    if found.empty[k] or arb(lower) > true or arb(upper) < true:
                        stated = f"[{lower!r}, {upper!r}]"
                        violated(f"{way}, index {i}, {bits[k]}: {stated}, but {true.str(20)}")
                        break
            if number % 3 == 0 if is_one(spec) else way == "forms":
                _show_check(spec, params, index, bits, margins, counts, violated)
    except (NoBoundsError, ArithmeticError):
        counts.refused += 1


def _show_check(
    spec: ModelSpec,
    params: Params,
    index: np.ndarray,
    bits: np.ndarray,
    margins: dict[Any, Any],
    counts: Counts,
    violated: Callable[[str], None],
) -> None:
    """Ask the second implementation for bounds that the least margin met is below, and compare the
    bounds of its own."""
    check = (OneLayer if is_one(spec) else TwoAttentionLayers)(spec, params)
    for k, i in enumerate(index.tolist()[:3]):
        node = bits[k].tolist()
        own = [
            m
            for (at, *string), m in margins.items()
            if at == i and all(b in (-1, s) for b, s in zip(node, string, strict=True))
        ]
        if not own or not all(m.is_finite() for m in own):
            continue
        least = min(np.nextafter(float(m.upper()), np.inf) for m in own)
        counts.checks += 1
        try:
            if np.isfinite(least) and confirm_leaf(check, i, node, float(least), cuts=1) >= least:
                violated(f"check, index {i}, {node}: at least {least!r} is confirmed")
            if isinstance(check, TwoAttentionLayers):
                low, high = check._ends(i, node)
                counts.unchecked += low == -np.inf
                if any(arb(low) > m or arb(high) < m for m in own):
                    violated(f"check, index {i}, {node}: [{low!r}, {high!r}]")
        except ZeroDivisionError:  # sums of exponentials that underflowed: refused by the caller
            continue


def run(models: int, seed: int, first: int = 0, stop: bool = False) -> Counts:
    """Compare that many models; `stop` at the first violation."""
    counts = Counts()
    for number in range(first, first + models):
        compare(seed, number, counts)
        compare_operations(seed, number, counts.violations)
        fuzz_sets.compare_operations(seed, number, counts.violations)
        if stop and counts.violations:
            break
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first model")
    options = parser.parse_args()
    started = time.perf_counter()
    counts = run(options.models, options.seed, options.first)
    for violation in counts.violations[:50]:
        print(violation)
    for name, count in sorted(counts.models.items()):
        print(f"{name}: {count:,} models")
    print(f"{counts.sentence()}; {time.perf_counter() - started:.0f} s")
    return 1 if counts.violations else 0


if __name__ == "__main__":
    sys.exit(main())
