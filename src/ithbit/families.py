"""The six families and the two tasks: names, labels and what the paper's theorems say of them.

`min_layers` is the paper's summary table: the least number of small layers that solves a task, or
None where no constant number does. It makes a configuration *constructive* or a *stress test*; the
table is rederived from constructions and bounds in `theory/`, and a test holds the two together.
"""

from dataclasses import dataclass
from typing import Literal

from ithbit.errors import SpecError

Task = Literal["rhi", "lhi"]
Group = Literal["constructive", "stress test"]

TASKS: tuple[Task, ...] = ("rhi", "lhi")


@dataclass(frozen=True)
class Family:
    """One architecture as the command line names it, and its formal counterpart in the paper."""

    name: str
    label: str
    formal: str  # the formal family of theory/: what the theorems speak of
    attention: bool
    causal: bool
    min_layers: dict[Task, int | None]

    @property
    def has_heads(self) -> bool:
        """Whether its width is cut into heads: attention, and the state space of Mamba2."""
        return self.attention or self.name == "mamba2"


FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        Family("softmax-full", "Full softmax", "softmax-full", True, False, {"rhi": 1, "lhi": 2}),
        Family(
            "softmax-causal", "Causal softmax", "softmax-causal", True, True, {"rhi": 1, "lhi": 2}
        ),
        Family("linear-full", "Full linear", "linear-full", True, False, {"rhi": 2, "lhi": 2}),
        Family(
            "linear-causal", "Causal linear", "linear-causal", True, True, {"rhi": None, "lhi": 2}
        ),
        Family("gru", "GRU", "rnn", False, True, {"rhi": None, "lhi": 1}),
        Family("mamba2", "Mamba", "ssm", False, True, {"rhi": None, "lhi": 2}),
    )
}


def family_named(name: str) -> Family:
    """The family of that name.

    >>> family_named("gru").label
    'GRU'
    """
    if name not in FAMILIES:
        raise SpecError(f"unknown family {name!r}; choose one of {', '.join(FAMILIES)}")
    return FAMILIES[name]


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
    """Whether the paper's theorems promise a small solution at this depth.

    >>> group("rhi", "linear-full", 2), group("rhi", "linear-full", 1), group("rhi", "gru", 4)
    ('constructive', 'stress test', 'stress test')
    """
    least = family_named(family).min_layers[task]
    return "constructive" if least is not None and n_layers >= least else "stress test"
