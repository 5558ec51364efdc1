"""The families and the two tasks: all that the package knows of an architecture by its name.

A *family* is one entry of `FAMILIES`; what a module needs to know of it is an attribute here, with
a default. A user's layer is a family too: its name holds a colon (`layers.py:Mine`), and all but
its label is a default.

`min_layers` is the paper's summary table: the least number of small layers that solves a task, or
None where no constant number does. It makes a configuration *constructive* or a *stress test*; the
table is rederived from constructions and bounds in `theory/`, and a test holds the two together.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from ithbit.errors import SpecError

Task = Literal["rhi", "lhi"]
Group = Literal["constructive", "stress test", "own layer"]

TASKS: tuple[Task, ...] = ("rhi", "lhi")
POSITIONS = ("none", "learned", "sinusoidal", "rotary", "polynomial")
_ADDED = ("none", "learned", "sinusoidal", "polynomial")  # to the tokens: for any family


@dataclass(frozen=True)
class Family:
    """One architecture as the command line names it; only the name must be given.

    >>> Family("mean").label, Family("mean").takes("rotary")
    ('mean', False)
    """

    name: str
    label: str = ""  # for people; the name if left out
    kind: str = ""  # full and causal attention are of one kind; the name if left out
    formal: str | None = None  # the family of theory/ that the theorems speak of, if they do
    attention: bool = False
    causal: bool = False
    has_heads: bool = False  # its width is cut into heads
    has_state: bool = False  # `d_state` counts
    positions: tuple[str, ...] = _ADDED
    min_layers: Mapping[Task, int | None] = field(default_factory=dict)  # no task: nothing is known
    # Milliseconds of a step of 256 examples at n = 64 on one CPU core: each block but the last, and
    # the last one, which is needed at one token only. Left out: as slow as the slowest we know.
    step_milliseconds: tuple[float, float] = (48.0, 48.0)
    colour: str = ""  # of Okabe and Ito's; left out, figures pick one
    marker: str = ""
    dash: Literal["-", "--"] = "-"

    def __post_init__(self) -> None:
        for name in ("label", "kind"):
            if not getattr(self, name):
                object.__setattr__(self, name, self.name)

    def takes(self, positions: str) -> bool:
        """Whether it can be trained with that encoding of positions."""
        return positions in self.positions

    @property
    def own(self) -> bool:
        """Whether it is a user's layer, from a file."""
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


def family_named(name: str) -> Family:
    """The family of that name: one of `FAMILIES`, or a user's layer if the name holds a colon.

    >>> family_named("gru").label, family_named("layers.py:Mine").label
    ('GRU', 'Mine')
    """
    if name in FAMILIES:
        return FAMILIES[name]
    source, _, factory = str(name).rpartition(":")
    if source and factory:
        return Family(name, factory, kind="own")
    raise SpecError(
        f"unknown family {name!r}; choose one of {', '.join(FAMILIES)}, or give a layer of your "
        "own as FILE.py:Factory"
    )


def task_named(name: str) -> Task:
    """The task of that name.

    >>> task_named("rhi")
    'rhi'
    """
    for task in TASKS:
        if task == name:
            return task
    raise SpecError(f"unknown task {name!r}; choose one of {', '.join(TASKS)}")


def group(task: Task, family: str, n_layers: int) -> Group:
    """Whether the paper's theorems promise a small solution at this depth, where they speak of it.

    >>> group("rhi", "linear-full", 2), group("rhi", "linear-full", 1), group("rhi", "gru", 4)
    ('constructive', 'stress test', 'stress test')
    >>> group("rhi", "layers.py:Mine", 1)
    'own layer'
    """
    known = family_named(family).min_layers
    if task not in known:
        return "own layer"
    least = known[task]
    return "constructive" if least is not None and n_layers >= least else "stress test"
