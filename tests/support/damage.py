"""Damaged constructions: weights scaled, turned, zeroed or moved, one array or entry at a time."""

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np

from ithbit.errors import SpecError
from ithbit.spec import ModelSpec
from ithbit.theory.constructions import (
    CONSTRUCTIONS,
    FREE_GRU,
    TRAINED,
    bert_angle,
    construct,
    linear_window,
    mamba2_window,
)
from ithbit.theory.constructions.content import columns
from ithbit.theory.solution import AnySolution, Solution, TrainedSolution

FACTORS = (-1.0, 0.0, 0.5, 2.0, 0.9375, 1.0625, 0.75, 1.5, 4.0, 0.25, 16.0, 1 / 64)
EXTREME = (1e3, 1e-3, 1e8, 1e-8, -1e-8, 1e30, 1e-30, 1e150, 1e-300)


def constructions(rng: np.random.Generator, lengths: tuple[int, ...]) -> Iterator[AnySolution]:
    """Constructions without end, trained and formal in turn, of small random sizes."""
    formal = [(each, name) for each in CONSTRUCTIONS + FREE_GRU for name in each.variants]
    while True:
        for entry in TRAINED:
            heads = int(rng.choice([1, 2])) if entry.least_width % 2 == 0 else 1
            size = max(entry.least_width, heads * entry.least_head)
            width = int(rng.choice([size, size + size % 2, 10]))
            width += width % heads
            sizes = (entry.depth + int(rng.integers(4) == 0), width, heads, entry.least_ff, 1)
            n = int(rng.choice(lengths))
            yield entry.build(ModelSpec(entry.task, entry.family, n, *sizes))
        for _ in range(len(TRAINED)):
            entry, name = formal[rng.integers(len(formal))]
            yield construct(entry.task, entry.family, int(rng.choice(lengths)), name)


DYADIC = (0.5, 0.75, 1.25, 1.5, 2.0, 0.875, 1.0625, 0.25, 4.0, 1 / 16, 16.0, 63 / 64, 1 / 256, -1.0)


def bent(solution: TrainedSolution, rng: np.random.Generator) -> TrainedSolution | None:
    """A trained construction whose contents are scaled where they are written or read: it keeps the
    form that an argument needs, so that its numbers count and not only its zeros."""
    d, U = solution.width, contents(solution)
    try:
        for _ in range(int(rng.integers(1, 4))):
            if solution.variant == "window" and not rng.integers(4):
                solution = spaced(solution, rng)
                continue
            names = [name for name, array in solution.weights.items() if array.any()]
            name = str(rng.choice([each for each in names if "norm" not in each]))
            factor, weight = float(rng.choice(DYADIC)), np.array(solution.weights[name])
            scale = factor * np.eye(d)
            if U is not None and rng.integers(3):  # one content alone
                column = U[:, [int(rng.integers(U.shape[1]))]]
                scale = np.eye(d) + (factor - 1) * column @ column.T / (column**2).sum()
            writes = name.split(".")[-2:-1] in (["out"], ["down"]) or name in WRITES
            if weight.ndim == 1 or U is None:
                weight *= factor
            elif writes and rng.integers(3) and name == "embed":
                at = int(rng.integers(weight.shape[1]))
                weight[:, at] = scale @ weight[:, at]
            elif writes:
                weight = scale @ weight
            elif weight.shape[1] == d:
                part = int(rng.integers(max(1, len(weight) // d)))
                rows = slice(part * d, (part + 1) * d) if len(weight) >= 2 * d else slice(None)
                weight[rows] = weight[rows] @ scale
            else:
                weight *= factor
            solution = replace(solution, weights=solution.weights | {name: weight})
    except SpecError:  # a test checks that it is said
        return None
    return solution


def spaced(solution: TrainedSolution, rng: np.random.Generator) -> TrainedSolution:
    """A window whose edges are moved, alike for both signs of the bit: its ReLUs do not cancel."""
    mamba = solution.family == "mamba2"
    name = "blocks.1.in.weight" if mamba else "blocks.0.up.weight"
    weight, one = np.array(solution.weights[name]), contents(solution)[:, 0]
    first = solution.width if mamba else 0
    middle, top = weight[first + 1] @ one, weight[first + 2] @ one
    moved = (top - middle) * float(rng.choice([0.0, 0.0, 0.25, 1.0, 2.0, 2.5, 2.8, -0.25, -0.5]))
    edge = int(rng.choice([0, 2]))
    for unit in (first + edge, first + edge + 3):
        weight[unit] += (edge - 1) * moved * one / (one @ one)
    weight[first : first + 6] *= float(rng.choice([1.0, 2.0, 0.5, 0.25, 0.125]))
    return replace(solution, weights=solution.weights | {name: weight})


WRITES = ("embed", "positions.polynomial")


def contents(solution: TrainedSolution) -> Any:
    """U of a trained construction; None for the GRU, which has no contents."""
    if solution.family == "gru":
        return None
    if solution.family == "mamba2":
        return np.eye(solution.width)[:, : mamba2_window.LEAST_WIDTH]
    window = solution.variant == "window"
    order = linear_window.ORDER if window else bert_angle.ORDERS[solution.task]
    return columns(solution.width, order)


def damaged(solution: AnySolution, rng: np.random.Generator) -> AnySolution | None:
    """The same weights after one to three blows; None if they are no longer finite numbers."""
    if isinstance(solution, TrainedSolution) and rng.integers(4):
        return bent(solution, rng)
    factors = FACTORS if rng.integers(4) else EXTREME
    try:
        for _ in range(int(rng.integers(1, 4))):
            arrays = solution.arrays()
            used = [k for k, array in enumerate(arrays) if array.any()]
            chosen = int(rng.choice(used)) if used and rng.integers(8) else None
            at = int(rng.integers(len(arrays))) if chosen is None else chosen
            solution = changed(solution, at, lambda array: blow(array, factors, rng))
    except SpecError:  # a test checks that it is said
        return None
    return solution


def blow(array: Any, factors: tuple[float, ...], rng: np.random.Generator) -> Any:
    """The array with all of it, a slice or one entry scaled, or one entry moved."""
    new, factor = np.array(array), float(rng.choice(factors))
    kind = int(rng.integers(4))
    with np.errstate(all="ignore"):
        if kind == 0:
            new *= factor
        elif kind == 1:
            axis = int(rng.integers(new.ndim))
            place: list[Any] = [slice(None)] * new.ndim
            place[axis] = int(rng.integers(new.shape[axis]))
            new[tuple(place)] *= factor
        else:
            some = np.argwhere(new != 0)
            some = some if len(some) and rng.integers(4) else np.argwhere(new == new)
            one = tuple(some[rng.integers(len(some))])
            new[one] = new[one] * factor if kind == 2 else new[one] + rng.normal()
    return new


def changed(
    solution: AnySolution, at: int, change: Callable[[Any], Any]
) -> Solution | TrainedSolution:
    """The solution with its array number `at` changed; `SpecError` if it is no solution then."""
    if isinstance(solution, TrainedSolution):
        name = sorted(solution.weights)[at]
        weights = solution.weights | {name: change(solution.weights[name])}
        return replace(solution, weights=weights)
    count = iter(range(10**9))

    def copy(part: Any) -> Any:
        if isinstance(part, np.ndarray):
            return change(part) if next(count) == at else part
        if isinstance(part, tuple):
            return tuple(copy(each) for each in part)
        if is_dataclass(part) and not isinstance(part, type):
            return replace(part, **{f.name: copy(getattr(part, f.name)) for f in fields(part)})
        return part

    embedding, layers, output = copy((solution.embedding, solution.layers, solution.output))
    return replace(solution, embedding=embedding, layers=layers, output=output)
