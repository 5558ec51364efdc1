"""How runs are to be trained, as a user chooses it: read and checked once, before torch is loaded,
and passed on as one object."""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, get_args

from ithbit.errors import DeviceError, IthbitError, SpecError, as_int

if TYPE_CHECKING:
    from ithbit.engine.device import Device  # which would load torch

DEVICES = ("auto", "cpu", "cuda")
Switch = Literal["auto", "on", "off"]  # whether to use the kernels, or compiled code


@dataclass(frozen=True)
class TrainingOptions:
    """Where and with which code to train, how many at once, and for how long.

    `workers` are processes: by default one per core or per GPU. With `minutes`, runs that have not
    ended by then are saved; with `retry_failed`, failed runs are tried again. Names are those that
    a user gives, checked here; all problems are reported at once.

    >>> TrainingOptions(workers=0, kernels="yes")
    Traceback (most recent call last):
    ...
    ithbit.errors.SpecError: workers must be at least 1, got 0; unknown choice of kernels 'yes'; \
choose one of auto, on, off
    """

    device: str = "auto"
    workers: int | None = None
    kernels: str = "auto"  # a `Switch`, as is `compile`
    compile: str = "auto"
    retry_failed: bool = False
    minutes: float | None = None

    def __post_init__(self) -> None:
        problems = (
            _workers_problem(self.workers),
            device_problem(self.device),
            _switch_problem("kernels", self.kernels),
            _switch_problem("compile", self.compile),
        )
        errors = [problem for problem in problems if problem is not None]
        if errors:
            raise type(errors[0])("; ".join(map(str, errors)))

    @cached_property
    def chosen_device(self) -> "Device":
        """The device of this machine that the name stands for, chosen at first use: this loads
        torch. Raises `DeviceError` if the machine has none."""
        from ithbit.engine.device import choose_device

        return choose_device(self.device)


def device_problem(name: object) -> DeviceError | None:
    """The error if a name stands for no device on any machine; cuda:1 is the second GPU."""
    kind, colon, index = name.partition(":") if isinstance(name, str) else ("", "", "")
    if kind in DEVICES and (not colon or (kind == "cuda" and index.isdecimal())):
        return None
    return DeviceError(f"unknown device {name!r}; choose one of {', '.join(DEVICES)}")


def _switch_problem(what: str, name: object) -> DeviceError | None:
    choices = get_args(Switch)
    if name in choices:
        return None
    return DeviceError(f"unknown choice of {what} {name!r}; choose one of {', '.join(choices)}")


def _workers_problem(workers: object) -> IthbitError | None:
    try:
        if workers is None or as_int("workers", workers) >= 1:
            return None
    except SpecError as error:
        return error
    return SpecError(f"workers must be at least 1, got {workers}")
