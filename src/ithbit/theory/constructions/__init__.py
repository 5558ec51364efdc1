"""The constructions: explicit weights for every positive entry of the paper's summary table.

One module per construction, with the proof in its head. `CONSTRUCTIONS` is the ordered table for
the formal families, and `construct` builds one of them; the first variant of an entry is the
default, the others are the paper's own sketches or alternatives. `FREE_GRU` is the
GRU layer with a free embedding.

`TRAINED` has the blocks of the experiments, with their own features and positions.
`construct_trained` builds one for any n up to `LONGEST` and any width from the least one on (16 in
the experiments) up to `MOST_WEIGHTS` numbers; layers above those needed pass their input on.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from ithbit.errors import SpecError, as_int, one_of
from ithbit.families import FAMILIES, TASKS, Task, task_named
from ithbit.spec import ModelSpec
from ithbit.theory.architecture import FORMAL_FAMILIES, Model, need_theory
from ithbit.theory.constructions import (
    attention_marker,
    bert_angle,
    gru_latch,
    linear_heavy,
    linear_window,
    mamba2_window,
    rnn_counter,
    softmax_focus,
    ssm_sum,
)
from ithbit.theory.constructions.content import LEAST_WIDTH, Weights
from ithbit.theory.layers import matrix
from ithbit.theory.solution import Parts, Solution, TrainedSolution

LONGEST = 100_000  # bits; weights have one row per token, and working with them takes time
MOST_WEIGHTS = 4_000_000

Builder = Callable[[str, int], Parts]  # (family, n_bits) -> the weights


@dataclass(frozen=True)
class Positive:
    """One positive entry: `depth` layers of this family solve the task for every n."""

    task: Task
    family: str
    depth: int
    theorem: str


@dataclass(frozen=True)
class Construction(Positive):
    """An entry of formal layers."""

    variants: dict[str, Builder]  # the first is the default

    @property
    def default(self) -> str:
        return next(iter(self.variants))


@dataclass(frozen=True)
class TrainedConstruction(Positive):
    """An entry of trained blocks."""

    variant: str
    weights: Callable[[ModelSpec], Weights]
    least_width: int
    least_head: int = 1  # coordinates that one head needs
    least_ff: int = 1

    def build(self, spec: ModelSpec) -> TrainedSolution:
        one = "the trained layer itself" if self.family == "gru" else "the trained block itself"
        own = one if self.depth == 1 else "the trained blocks themselves"
        theorem = f"beside {self.theorem}: {own}"
        return TrainedSolution(spec, self.weights(spec), theorem, self.variant)


_FOCUS: dict[str, Builder] = {
    "parabola": softmax_focus.parabola,
    "cosine": softmax_focus.cosine,
}
_FIND: dict[str, Builder] = {
    "marker": partial(attention_marker.marker, "rhi"),
    "heavy": linear_heavy.heavy,
}
_SUM: dict[str, Builder] = {
    "selective": ssm_sum.selective,
    "time-invariant": ssm_sum.time_invariant,
}
_COUNT: dict[str, Builder] = {"scalar": rnn_counter.scalar, "pair": rnn_counter.pair}
_MARK: dict[str, Builder] = {"marker": partial(attention_marker.marker, "lhi")}
_LATCH: dict[str, Builder] = {"latch": gru_latch.latch}

CONSTRUCTIONS: tuple[Construction, ...] = (
    Construction("rhi", "softmax-full", 1, "Theorem 12c", _FOCUS),
    Construction("rhi", "softmax-causal", 1, "Theorem 12c", _FOCUS),
    Construction("rhi", "linear-full", 2, "Theorem 12b", _FIND),
    Construction("lhi", "softmax-full", 2, "Theorem 14c", _MARK),
    Construction("lhi", "softmax-causal", 2, "Theorem 14c", _MARK),
    Construction("lhi", "linear-full", 2, "Theorem 14c", _MARK),
    Construction("lhi", "linear-causal", 2, "Theorem 14c", _MARK),
    Construction("lhi", "ssm", 2, "Theorem 14c", _SUM),
    Construction("lhi", "rnn", 1, "Theorem 14a", _COUNT),
)

FREE_GRU: tuple[Construction, ...] = (
    Construction("lhi", "gru", 1, "beside Theorem 14a: the trained layer itself", _LATCH),
)

_POINT_RIGHT = ("angle", bert_angle.build, LEAST_WIDTH[3], 2)
_POINT_LEFT = ("angle", bert_angle.build, LEAST_WIDTH[5], 2)
_OPEN = ("window", linear_window.build, LEAST_WIDTH[5], 1, linear_window.LEAST_FF)
_OPEN_MAMBA = ("window", mamba2_window.build, mamba2_window.LEAST_WIDTH)
_KEEP = ("latch", gru_latch.build, gru_latch.LEAST_WIDTH)

TRAINED: tuple[TrainedConstruction, ...] = (
    TrainedConstruction("rhi", "softmax-full", 1, "Theorem 12c", *_POINT_RIGHT),
    TrainedConstruction("rhi", "softmax-causal", 1, "Theorem 12c", *_POINT_RIGHT),
    TrainedConstruction("rhi", "linear-full", 2, "Theorem 12b", *_OPEN),
    TrainedConstruction("lhi", "softmax-full", 2, "Theorem 14c", *_POINT_LEFT),
    TrainedConstruction("lhi", "softmax-causal", 2, "Theorem 14c", *_POINT_LEFT),
    TrainedConstruction("lhi", "linear-full", 2, "Theorem 14c", *_OPEN),
    TrainedConstruction("lhi", "linear-causal", 2, "Theorem 14c", *_OPEN),
    TrainedConstruction("lhi", "gru", 1, "Theorem 14a", *_KEEP),
    TrainedConstruction("lhi", "mamba2", 2, "Theorem 14c", *_OPEN_MAMBA),
)


P = TypeVar("P", bound=Positive)


def entry_of(entries: Iterable[P], task: str, family: str) -> P | None:
    """The entry of a task and a family, or None."""
    return next((each for each in entries if (each.task, each.family) == (task, family)), None)


def length_of(n_bits: int) -> int:
    """The length as an integer; raises `SpecError` if weights are not built for it."""
    n_bits = as_int("n", n_bits)
    if not 1 <= n_bits <= LONGEST:
        limit = "at least 1" if n_bits < 1 else f"at most {LONGEST:,} where weights are built"
        raise SpecError(f"n must be {limit}, got {n_bits}")
    return n_bits


def _entry(entries: Iterable[P], model: Model, task: str, family: str) -> P:
    named = task_named(task)
    if entry := entry_of(entries, named, family):
        return entry
    need_theory(family)
    known, name, how, command = tuple(FAMILIES), family, " as it is trained", "bound"
    if model == "formal":
        known, how, command = FORMAL_FAMILIES, "", "verdict"
        name = (FAMILIES[family].formal if family in FAMILIES else None) or family
    one_of(f"unknown {model} family", name, known)
    if family != name:
        raise SpecError(
            f"{family!r} is a trained family; its formal counterpart is {name!r}, "
            "or take model 'trained', which has explicit weights for lhi"
        )
    other = next(task for task in TASKS if task != named)
    options = " --model trained" if model == "trained" else ""
    raise SpecError(
        f"no construction is known for {named} by {family}{how}, only for {other}; "
        f"`ithbit {command} {named} {family}{options}` says what is proved instead"
    )


def construct(task: str, family: str, n_bits: int, variant: str | None = None) -> Solution:
    """Explicit weights that solve `task` with `family` for strings of `n_bits` bits.

    `certify` gives the proof. Raises `SpecError` if there is no such construction.
    """
    entry = _entry(CONSTRUCTIONS + FREE_GRU, "formal", task, family)
    n_bits = length_of(n_bits)
    name = entry.default if variant is None else variant
    build = entry.variants[one_of(f"{task} by {family} has no variant", name, entry.variants)]
    embedding, layers, output = build(family, n_bits)
    parts = (tuple(layers), embedding, matrix(output))
    return Solution(entry.task, family, n_bits, *parts, entry.theorem, name)


def construct_trained(
    task: str, family: str, n_bits: int, layers: int | None = None, **sizes: Any
) -> TrainedSolution:
    """Explicit weights of the trained blocks that solve `task` for strings of `n_bits` bits, with
    as few layers as suffice unless given; the sizes are the fields of `ModelSpec`.

    >>> construct_trained("rhi", "softmax-full", 8).weights["head.weight"].shape
    (1, 16)
    """
    entry = _entry(TRAINED, "trained", task, family)
    n_layers = entry.depth if layers is None else layers
    spec = ModelSpec(entry.task, family, length_of(n_bits), n_layers, **sizes)
    if problem := too_small(entry, spec) or too_large(spec):
        raise SpecError(problem)
    return entry.build(spec)


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
