"""The constructions: explicit weights for every positive entry of the paper's summary table.

`construct` builds one. `CONSTRUCTIONS` is the ordered table for the formal families;
`TRAINED_CONSTRUCTIONS` adds the GRU layer with a free embedding (the blocks of the experiments are
in `trained`). The first variant of an entry is the default; the others are the paper's own sketches
or alternatives.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from ithbit.errors import SpecError, whole
from ithbit.families import FAMILIES, TASKS, Task, task_named
from ithbit.theory.architecture import FORMAL_FAMILIES, need_theory
from ithbit.theory.constructions import (
    attention_marker,
    gru_latch,
    linear_heavy,
    rnn_counter,
    softmax_cosine,
    softmax_parabola,
    ssm_sum,
)
from ithbit.theory.solution import Parts, Solution, constructed

LONGEST = 100_000  # bits; weights have one row per token, and working with them takes time

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


_FOCUS: dict[str, Builder] = {
    "parabola": softmax_parabola.parabola,
    "cosine": softmax_cosine.cosine,
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

TRAINED_CONSTRUCTIONS: tuple[Construction, ...] = (
    Construction("lhi", "gru", 1, "beside Theorem 14a: the trained layer itself", _LATCH),
)


P = TypeVar("P", bound=Positive)


def entry_of(entries: Iterable[P], task: str, family: str) -> P | None:
    """The entry of a task and a family, or None."""
    return next((each for each in entries if (each.task, each.family) == (task, family)), None)


def length_of(n_bits: int) -> int:
    """The length as an integer; raises `SpecError` if weights are not built for it."""
    n_bits = whole("n", n_bits)
    if not 1 <= n_bits <= LONGEST:
        limit = "at least 1" if n_bits < 1 else f"at most {LONGEST:,} where weights are built"
        raise SpecError(f"n must be {limit}, got {n_bits}")
    return n_bits


def construction_named(task: str, family: str) -> Construction:
    """The entry for a task and a formal family (or `gru`).

    >>> construction_named("rhi", "linear-full").depth
    2
    """
    named = task_named(task)
    if entry := entry_of(CONSTRUCTIONS + TRAINED_CONSTRUCTIONS, named, family):
        return entry
    need_theory(family)
    formal = FAMILIES[family].formal if family in FAMILIES else family
    if formal not in FORMAL_FAMILIES:
        raise SpecError(
            f"unknown formal family {family!r}; choose one of {', '.join(FORMAL_FAMILIES)}"
        )
    if family != formal:
        raise SpecError(
            f"{family!r} is a trained family; its formal counterpart is {formal!r}, "
            "or take model 'trained', which has explicit weights for lhi"
        )
    other = next(task for task in TASKS if task != named)
    raise SpecError(
        f"no construction is known for {named} by {family}, only for {other}; "
        f"`ithbit verdict {named} {family}` says what is proved instead"
    )


def construct(task: str, family: str, n_bits: int, variant: str | None = None) -> Solution:
    """Explicit weights that solve `task` with `family` for strings of `n_bits` bits.

    `certify` gives the proof. Raises `SpecError` if there is no such construction.
    """
    entry = construction_named(task, family)
    n_bits = length_of(n_bits)
    name = entry.default if variant is None else variant
    if name not in entry.variants:
        raise SpecError(
            f"{task} by {family} has no variant {name!r}; choose one of {', '.join(entry.variants)}"
        )
    return constructed(family, (entry.theorem, name), *entry.variants[name](family, n_bits))
