"""Explicit weights for the trained blocks, with the experiments' own features and positions.

One module per construction, with the proof in its head. `construct_trained` builds one for any n
and any width from the least one on (16 in the experiments); layers above those needed pass their
input on. `certify` proves that the weights solve the task.
"""

from collections.abc import Callable
from dataclasses import dataclass

from ithbit.errors import SpecError
from ithbit.families import FAMILIES, TASKS, Task, task_named
from ithbit.spec import ModelSpec
from ithbit.theory.architecture import need_theory
from ithbit.theory.constructions import Positive, entry_of, length_of
from ithbit.theory.constructions.trained import (
    bert_left,
    bert_right,
    gru_latch,
    linear_window,
    mamba2_window,
)
from ithbit.theory.constructions.trained.content import LEAST_WIDTH, columns
from ithbit.theory.layers import Array
from ithbit.theory.trained_solution import TrainedSolution

MOST_WEIGHTS = 4_000_000


@dataclass(frozen=True)
class TrainedConstruction(Positive):
    """An entry of trained blocks."""

    build: Callable[[ModelSpec], TrainedSolution]
    least_width: int
    least_head: int = 1  # coordinates that one head needs
    least_ff: int = 1


def _angle(task: Task, family: str) -> TrainedConstruction:
    if task == "rhi":
        own, width, depth, theorem = bert_right.build, LEAST_WIDTH[3], 1, "Theorem 12c"
    else:
        own, width, depth, theorem = bert_left.build, LEAST_WIDTH[5], 2, "Theorem 14c"
    return TrainedConstruction(task, family, depth, theorem, own, width, least_head=2)


def _window(task: Task, family: str, theorem: str = "Theorem 14c") -> TrainedConstruction:
    own, width, ff = linear_window.build, LEAST_WIDTH[5], linear_window.LEAST_FF
    return TrainedConstruction(task, family, 2, theorem, own, width, least_ff=ff)


TRAINED: tuple[TrainedConstruction, ...] = (
    _angle("rhi", "softmax-full"),
    _angle("rhi", "softmax-causal"),
    _window("rhi", "linear-full", "Theorem 12b"),
    _angle("lhi", "softmax-full"),
    _angle("lhi", "softmax-causal"),
    _window("lhi", "linear-full"),
    _window("lhi", "linear-causal"),
    TrainedConstruction("lhi", "gru", 1, "Theorem 14a", gru_latch.build, gru_latch.LEAST_WIDTH),
    TrainedConstruction(
        "lhi", "mamba2", 2, "Theorem 14c", mamba2_window.build, mamba2_window.LEAST_WIDTH
    ),
)


def trained_construction(task: str, family: str) -> TrainedConstruction:
    """The entry of a task and a trained family.

    >>> trained_construction("lhi", "mamba2").depth
    2
    """
    named = task_named(task)
    if entry := entry_of(TRAINED, named, family):
        return entry
    need_theory(family)
    if family not in FAMILIES:
        raise SpecError(f"unknown trained family {family!r}; choose one of {', '.join(FAMILIES)}")
    other = next(task for task in TASKS if task != named)
    raise SpecError(
        f"no construction is known for {named} by {family} as it is trained, only for {other}; "
        f"`ithbit bound {named} {family} --model trained` says what is proved instead"
    )


def construct_trained(
    task: str,
    family: str,
    n_bits: int,
    *,
    layers: int | None = None,
    width: int = 16,
    heads: int = 2,
    ff: int = 64,
    state: int = 16,
) -> TrainedSolution:
    """Explicit weights of the trained blocks that solve `task` for strings of `n_bits` bits.

    >>> construct_trained("rhi", "softmax-full", 8).weights["head.weight"].shape
    (1, 16)
    """
    entry = trained_construction(task, family)
    spec = ModelSpec(
        entry.task,
        family,
        n_bits=length_of(n_bits),
        n_layers=entry.depth if layers is None else layers,
        d_model=width,
        n_heads=heads,
        d_ff=ff,
        d_state=state,
    )
    if problem := too_small(entry, spec) or too_large(spec):
        raise SpecError(problem)
    return entry.build(spec)


def content_of(solution: TrainedSolution, x: Array) -> Array:
    """What the stream of a construction holds, `token content`: the numbers in its module's head.

    >>> import numpy as np
    >>> solution = construct_trained("rhi", "softmax-full", 2)
    >>> content_of(solution, solution.tokens(np.array([[1, 0]]), np.array([2]))[0]).tolist()
    [[1.0, 0.0, 1.0], [1.0, 0.5, -1.0], [-1.0, -0.5, 0.0]]
    """
    if FAMILIES[solution.family].attention:
        left = bert_left if solution.task == "lhi" else bert_right
        order = linear_window.ORDER if solution.variant == "window" else left.ORDER
        U = columns(solution.width, order)
        held: Array = x @ U / (U * U).sum(0)
        return held
    return x[..., : mamba2_window.LEAST_WIDTH if solution.variant == "window" else 3]


def too_small(entry: TrainedConstruction, spec: ModelSpec) -> str | None:
    """What the construction needs and the spec lacks, or None."""
    needed = [
        f"{least} {what}"
        for what, least, given in (
            ("layers", entry.depth, spec.n_layers),
            ("coordinates of width", entry.least_width, spec.d_model),
            ("coordinates in a head", entry.least_head, spec.d_head),
            ("feed-forward units", entry.least_ff, spec.d_ff),
        )
        if given < least and (what != "coordinates in a head" or FAMILIES[entry.family].has_heads)
    ]
    if not needed:
        return None
    return f"the weights for {entry.task} by {entry.family} need {' and '.join(needed)}"


def too_large(spec: ModelSpec) -> str | None:
    """Why weights of this size are not built, or None if they are; n does not matter here."""
    block = spec.d_model * (4 * spec.d_model + 2 * spec.d_ff + 3 * spec.d_state)
    if spec.n_layers * block <= MOST_WEIGHTS:
        return None
    return (
        f"explicit weights are built up to {MOST_WEIGHTS:,} numbers, got about "
        f"{spec.n_layers * block:,}; take fewer layers or a smaller width"
    )
