"""The families and the two tasks: everything the package knows about an architecture by name.

A *family* is one entry of `FAMILIES`; whatever a module needs to know about it is an attribute
here, with a default. A user's layer is a family too: its name contains a colon (`layers.py:Mine`),
and everything except its label has the default value.

`min_layers` is the paper's summary table: the least number of small layers that solves a task, or
None where no constant number does. It makes a configuration *constructive* or a *stress test*; the
table is derived again from constructions and bounds in `theory/`, and a test checks that the two
agree.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from ithbit.errors import SpecError, normalize, one_of

Task = Literal["rhi", "lhi"]
Group = Literal["constructive", "stress test", "own layer"]

TASKS: tuple[Task, ...] = ("rhi", "lhi")
POSITIONS = ("none", "learned", "sinusoidal", "rotary", "polynomial")
_ADDED = ("none", "learned", "sinusoidal", "polynomial")  # to the tokens: for any family


@dataclass(frozen=True)
class Family:
    """One architecture as the command line names it; only the name is required.

    >>> Family("mean").label, Family("mean").takes("rotary")
    ('mean', False)
    """

    name: str
    label: str = ""  # display name; defaults to the name
    kind: str = ""  # full and causal attention share a kind; defaults to the name
    formal: str | None = None  # the family in theory/ that the theorems cover, if any
    attention: bool = False
    causal: bool = False
    has_heads: bool = False  # its width is split into heads
    has_state: bool = False  # it uses `d_state`
    positions: tuple[str, ...] = _ADDED
    min_layers: Mapping[Task, int | None] = field(default_factory=dict)  # empty: unknown
    # Milliseconds per step of 256 examples at n = 64 on one CPU core: for each block but the last,
    # and for the last, which is needed at one token only. Default: as slow as the slowest known.
    step_milliseconds: tuple[float, float] = (48.0, 48.0)
    colour: str = ""  # from Okabe and Ito's palette; if empty, figures pick one
    marker: str = ""
    dash: Literal["-", "--", "-.", ":"] = "-"

    def __post_init__(self) -> None:
        normalize(self, label=self.label or self.name, kind=self.kind or self.name)

    def takes(self, positions: str) -> bool:
        """Whether it can be trained with this encoding of positions."""
        return positions in self.positions

    @property
    def own(self) -> bool:
        """Whether it is a user's layer."""
        return ":" in self.name


_attention = partial(Family, attention=True, has_heads=True)
_softmax = partial(_attention, kind="softmax", positions=POSITIONS, min_layers={"rhi": 1, "lhi": 2})

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        _softmax(
            name="softmax-full", label="Full softmax", formal="softmax-full",
            step_milliseconds=(30.0, 4.0), colour="#0072B2", marker="o",
        ),
        _softmax(
            name="softmax-causal", label="Causal softmax", formal="softmax-causal", causal=True,
            step_milliseconds=(34.0, 4.0), colour="#56B4E9", marker="s", dash="--",
        ),
        _attention(
            name="linear-full", label="Full linear", kind="linear", formal="linear-full",
            min_layers={"rhi": 2, "lhi": 2},
            step_milliseconds=(20.0, 4.0), colour="#D55E00", marker="^",
        ),
        _attention(
            name="linear-causal", label="Causal linear", kind="linear", formal="linear-causal",
            causal=True, min_layers={"rhi": None, "lhi": 2},
            step_milliseconds=(36.0, 4.0), colour="#E69F00", marker="v", dash="--",
        ),
        Family(
            name="gru", label="GRU", formal="rnn", causal=True,
            min_layers={"rhi": None, "lhi": 1},
            step_milliseconds=(12.0, 12.0), colour="#009E73", marker="D",
        ),
        Family(
            name="mamba2", label="Mamba", formal="ssm", causal=True,
            has_heads=True, has_state=True, min_layers={"rhi": None, "lhi": 2},
            step_milliseconds=(48.0, 12.0), colour="#CC79A7", marker="P",
        ),
    )
}  # fmt: skip

_SHIPPED = frozenset(FAMILIES)


def is_added(name: str) -> bool:
    """Whether a program has added this family to `FAMILIES`: other processes do not know it."""
    return name in FAMILIES and name not in _SHIPPED


def family_named(name: str) -> Family:
    """The family with this name: one of `FAMILIES`, or a user's layer if the name has a colon.

    >>> family_named("gru").label, family_named("layers.py:Mine").label
    ('GRU', 'Mine')
    """
    if isinstance(name, str) and name in FAMILIES:
        return FAMILIES[name]
    source, _, factory = str(name).rpartition(":")
    if source and factory:
        return Family(name, factory, kind="own")
    raise SpecError(
        f"unknown family {name!r}; choose one of {', '.join(FAMILIES)}, or give your own layer "
        "as FILE.py:Factory"
    )


def task_named(name: str) -> Task:
    """The task with this name.

    >>> task_named("rhi")
    'rhi'
    """
    return one_of("unknown task", name, TASKS)


def group(task: Task, family: str, n_layers: int) -> Group:
    """Whether the paper's theorems give a small solution at this depth, if they cover the family.

    >>> group("rhi", "linear-full", 2), group("rhi", "linear-full", 1), group("rhi", "gru", 4)
    ('constructive', 'stress test', 'stress test')
    >>> group("rhi", "layers.py:Mine", 1)
    'own layer'
    """
    min_layers = family_named(family).min_layers
    if task not in min_layers:
        return "own layer"
    least = min_layers[task]
    return "constructive" if least is not None and n_layers >= least else "stress test"
