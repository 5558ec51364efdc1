"""Random and extreme GRUs: bounds of sets of inputs against the margin in 600-bit balls.

Every model follows from a seed and a number. A *violation* is a bound of the search or of the
second implementation that an input certainly beats, a false bound that is confirmed, or weights
that are not finite and yet have bounds. Run `python -m tests.support.fuzz_gru --models 10000`.
"""

import argparse
import itertools
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flint import arb, arb_mat, ctx, fmpq
from tests.support.fuzz_gru_steps import compare_steps

from ithbit.spec import ModelSpec
from ithbit.theory.trained_blocks import shapes
from ithbit.verification.checks.gru_balls import GruLeaves
from ithbit.verification.proofs.gru import GruBounds

PRECISION = 600
INPUTS = 8  # of a node, compared
Params = dict[str, np.ndarray]
Rng = np.random.Generator


class ExactGru:
    """The margin of a GRU on one input, in balls and by the book."""

    def __init__(self, spec: ModelSpec, params: Params) -> None:
        self.spec = spec
        with ctx.workprec(PRECISION):
            self.p = {name: arb_mat(np.atleast_2d(v).tolist()) for name, v in params.items()}

    def margin(self, index: int, bits: list[int]) -> Any:
        with ctx.workprec(PRECISION):
            n, d = self.spec.n_bits, self.spec.d_model
            part = fmpq(index, n)
            features = [[0, 1, 0, 0, part, part * part], *([1, 0, 0, b, 0, 0] for b in bits)]
            xs = []
            for t, row in enumerate([*features, [0, 0, 1, 0, 0, 0]]):
                at = arb(fmpq(t, n + 1))
                x = self.p["embed"] * arb_mat([[arb(each)] for each in row])
                xs.append(x + self.p["positions.polynomial"] * arb_mat([[at], [at * at]]))
            for layer in range(self.spec.n_layers):
                h, states = arb_mat(d, 1), []
                for x in xs:
                    a = self._linear(f"blocks.{layer}.ih", x)
                    b = self._linear(f"blocks.{layer}.hh", h)
                    new = []
                    for k in range(d):
                        r, z = (_sigmoid(a[k + m * d] + b[k + m * d]) for m in (0, 1))
                        c = (a[k + 2 * d] + r * b[k + 2 * d]).tanh()
                        new.append([(1 - z) * c + z * h[k, 0]])
                    h = arb_mat(new)
                    states.append(h)
                xs = states
            logit = self._linear("head", xs[-1])[0]
            return logit if bits[index] else -logit

    def _linear(self, name: str, x: Any) -> list[Any]:
        y = self.p[f"{name}.weight"] * x + self.p[f"{name}.bias"].transpose()
        return [y[r, 0] for r in range(y.nrows())]


def _sigmoid(x: Any) -> Any:
    return (1 + (x / 2).tanh()) / 2


def _plain(p: Params, rng: Rng) -> None:
    pass


def _scaled(p: Params, rng: Rng) -> None:
    for name in p:
        p[name] *= 10.0 ** rng.uniform(-3, 3)


def _extreme(p: Params, rng: Rng) -> None:
    for name in p:
        if rng.random() < 0.3:
            p[name] *= 10.0 ** rng.uniform(-30, 38)


def _entries(p: Params, rng: Rng) -> None:
    for name in rng.permutation(list(p))[: rng.integers(1, 4)]:
        p[name].flat[rng.integers(p[name].size)] = rng.choice([-1, 1]) * 10 ** rng.uniform(-20, 38)


def _zeros(p: Params, rng: Rng) -> None:
    for name in p:
        if rng.random() < 0.4:
            p[name][rng.random(len(p[name])) < 0.6] = 0


def _tiny(p: Params, rng: Rng) -> None:
    for name in p:
        p[name] *= 10.0 ** rng.uniform(-45, -2)


def _kinks(p: Params, rng: Rng) -> None:
    """Gates and candidates where tanh bends most, is flat, or the search's table ends."""
    for name in p:
        if name.endswith(("ih.bias", "hh.bias")):
            p[name][...] = rng.choice([-45, -40, -20, -3, -0.7, 0, 0.7, 3, 20, 40], p[name].shape)
        if name.endswith("ih.weight"):
            p[name] *= 10.0 ** rng.uniform(-2, 2)


def _small(p: Params, rng: Rng) -> None:
    """Bits that hardly matter, and a head that shows the last digits."""
    p["embed"][:, 3] *= 10.0 ** rng.uniform(-9, 0)
    p["head.weight"] *= 10.0 ** rng.uniform(0, 8)
    p["head.bias"][...] = 0


def _digits(p: Params, rng: Rng) -> None:
    """Large parts that cancel to all but a few digits."""
    size = 10.0 ** rng.uniform(2, 12)
    for name in p:
        if name.endswith("hh.bias"):
            p[name][...] = np.float32(size)
            p[name.replace("hh", "ih")][...] = -np.float32(size)
    _small(p, rng)


def _wide(p: Params, rng: Rng) -> None:
    """Gates that follow the bits and the state, so that products bend most."""
    for name in p:
        if name.endswith(("hh.weight", "ih.weight")):
            p[name] *= rng.uniform(1, 6)


def _infinite(p: Params, rng: Rng) -> None:
    name = rng.permutation(list(p))[0]
    p[name].flat[rng.integers(p[name].size)] = rng.choice([np.nan, np.inf, -np.inf])


_ALL = (_plain, _scaled, _extreme, _entries, _zeros, _tiny, _kinks, _small, _digits, _wide)
KINDS: dict[str, Callable[[Params, Rng], None]] = {f.__name__[1:]: f for f in _ALL}


def model(rng: Rng, kind: str | None = None) -> tuple[ModelSpec, Params, str]:
    """A GRU with random weights of some kind, all of them float32 numbers."""
    n, layers = int(rng.integers(1, 6)), int(rng.choice([1, 1, 1, 2, 3]))
    spec = ModelSpec("lhi", "gru", n, layers, d_model=2 * int(rng.integers(1, 3)))
    size = rng.choice([0.3, 1, 1, 3])
    p = {name: rng.normal(size=shape) * size for name, shape in shapes(spec).items()}
    kind = kind or str(rng.choice(list(KINDS)))
    KINDS[kind](p, rng)
    with np.errstate(over="ignore", under="ignore"):
        largest = float(np.finfo(np.float32).max)
        return (
            spec,
            {k: v.clip(-largest, largest).astype(np.float32).astype(float) for k, v in p.items()},
            kind,
        )


@dataclass
class Counts:
    models: int = 0
    refused: int = 0
    nodes: int = 0
    unbounded: int = 0
    inputs: int = 0
    violations: list[str] = field(default_factory=list)

    def sentence(self) -> str:
        return (
            f"{self.models:,} models ({self.refused:,} refused), {self.nodes:,} nodes "
            f"({self.unbounded:,} without a bound), {self.inputs:,} inputs, "
            f"{len(self.violations):,} violations"
        )


def nodes(rng: Rng, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Cases with all other bits free, single inputs, and some bits free."""
    count = 5
    index, bits = rng.integers(0, n, count), rng.integers(0, 2, (count, n)).astype(np.int8)
    for k in range(count):
        free = rng.permutation(n)[: (n, n, 0, 1, rng.integers(0, n + 1))[k]]
        bits[k, free[free != index[k]]] = -1
    return index, bits


def compare(seed: int, number: int, counts: Counts, kind: str | None = None) -> None:
    """Compare the bounds of one model with the truth."""
    rng = np.random.default_rng([seed, number])
    spec, params, kind = model(rng, kind)
    counts.models += 1
    name = f"model {number} of seed {seed} ({kind}, n = {spec.n_bits}, L = {spec.n_layers})"
    truth = ExactGru(spec, params)
    index, bits = nodes(rng, spec.n_bits)
    try:
        found = GruBounds(spec, params)(index, bits)
    except ArithmeticError:
        counts.refused += 1
        found = None
    check = GruLeaves(spec, params)
    for k, i in enumerate(index.tolist()):
        node = bits[k].tolist()
        free = [j for j in range(spec.n_bits) if node[j] < 0]
        low, wrong = check.lower(i, node), check.is_wrong(i, node)
        lower, upper = (-np.inf, np.inf) if found is None else (found.lower[k], found.upper[k])
        counts.nodes += 1
        counts.unbounded += lower == -np.inf
        every = list(itertools.product((0, 1), repeat=len(free)))
        for at in rng.permutation(len(every))[:INPUTS]:
            string = list(node)
            for j, bit in zip(free, every[at], strict=True):
                string[j] = bit
            true = truth.margin(i, string)
            counts.inputs += 1
            beaten = arb(float(lower)) > true or arb(float(upper)) < true
            if beaten or arb(low) > true or (wrong and true > 0):
                stated = f"[{lower!r}, {upper!r}], check {low!r}, {wrong}"
                counts.violations.append(f"{name}: index {i}, {node}: {stated}, but {true.str(20)}")
                break


def run(models: int, seed: int, first: int = 0, stop: bool = False) -> Counts:
    """Compare that many models; `stop` at the first violation."""
    counts = Counts()
    for number in range(first, first + models):
        compare(seed, number, counts)
        for is_coarse in (False, True):
            compare_steps(seed, number, counts.violations, is_coarse)
        if stop and counts.violations:
            break
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    started = time.perf_counter()
    counts = run(options.models, options.seed)
    for violation in counts.violations[:50]:
        print(violation)
    print(f"{counts.sentence()}; {time.perf_counter() - started:.0f} s")
    return 1 if counts.violations else 0


if __name__ == "__main__":
    sys.exit(main())
