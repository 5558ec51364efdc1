"""Arguments shared by several API functions, read from the forms in which users give them."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ithbit.errors import SpecError, whole
from ithbit.families import task_named
from ithbit.models.layer_source import family_of
from ithbit.spec import ModelSpec, Protocol
from ithbit.sweep.select import parse_seeds

Seeds = Iterable[int] | str
Layer = Callable[..., Any]


def seeds_of(seeds: Seeds) -> list[int]:
    """Seeds as numbers; a string such as "0-4" or "0,3,8-9" is parsed. A single number is rejected,
    since it could mean one seed or a count.

    >>> seeds_of("0,3,8-9")
    [0, 3, 8, 9]
    """
    if isinstance(seeds, str):
        return parse_seeds(seeds)
    if not isinstance(seeds, Iterable):
        raise SpecError(f"seeds must be numbers such as range(5) or [3], got {seeds!r}")
    return list(seeds)


def listed(values: Any) -> list[Any]:
    """One value or several as a list; None gives an empty list.

    >>> listed("gru"), listed([1, 2]), listed(None)
    (['gru'], [1, 2], [])
    """
    if values is None:
        return []
    if isinstance(values, str) or not isinstance(values, Iterable):
        return [values]
    return list(values)


def protocol_of(
    protocol: Protocol | None,
    max_epochs: int | None = None,
    stop_when_solved: bool = False,
    examples: str | None = None,
    lr: float | None = None,
    batch_size: int | None = None,
) -> Protocol:
    """The protocol (by default the paper's) with the most often changed settings replaced.

    >>> protocol_of(None, max_epochs=3).max_epochs
    3
    """
    if not isinstance(protocol, Protocol | None):
        raise SpecError(
            "protocol must be a Protocol, as in ithbit.Protocol(max_epochs=10), got "
            f"{type(protocol).__name__}"
        )
    return (protocol or Protocol()).changed(
        max_epochs=max_epochs,
        stop_when_solved=stop_when_solved or None,
        examples=examples,
        learning_rate=lr,
        batch_size=batch_size,
    )


def model_of(
    task: str,
    family: str | Layer,
    n: int,
    layers: int,
    width: int,
    heads: int,
    ff: int,
    positions: str,
) -> ModelSpec:
    """The model of a family or of a user's layer, given as `"layers.py:Mine"` or as its factory."""
    named, code = family_of(family)
    return ModelSpec(
        task_named(task),
        named,
        n_bits=n,
        n_layers=layers,
        d_model=width,
        n_heads=heads,
        d_ff=ff,
        positions=positions,
        code=code,
    )


def on_slurm(on: str, local: dict[str, str], slurm: dict[str, Any]) -> bool:
    """Whether to train on Slurm; raise `SpecError` if an option is given that the other place has.

    >>> on_slurm("local", {"kernels": "off"}, {"slurm": None, "detach": True})
    Traceback (most recent call last):
    ...
    ithbit.errors.SpecError: --slurm and --detach need --on slurm
    """
    if on not in ("local", "slurm"):
        raise SpecError(f"--on must be local or slurm, got {on!r}")
    for option, choice in local.items():
        if on == "slurm" and choice != "auto":
            raise SpecError(f"--{option} {choice} needs --on local; on Slurm each task chooses")
    if on == "local" and any(slurm.values()):
        *most, last = (f"--{option}" for option in slurm)
        raise SpecError(f"{', '.join(most)} and {last} need --on slurm")
    return on == "slurm"


def at_least_one(**numbers: int | None) -> None:
    """Raise `SpecError` if a number is given that is not whole or is below 1.

    >>> at_least_one(workers=0)
    Traceback (most recent call last):
    ...
    ithbit.errors.SpecError: workers must be at least 1, got 0
    """
    for name, number in numbers.items():
        if number is not None and whole(name, number) < 1:
            raise SpecError(f"{name} must be at least 1, got {number}")


def path_of(name: str, given: str | Path) -> Path:
    """A path given as a string or as a path.

    >>> path_of("store", 3)
    Traceback (most recent call last):
    ...
    ithbit.errors.SpecError: store must be a path, got int
    """
    if not isinstance(given, str | Path):
        raise SpecError(f"{name} must be a path, got {type(given).__name__}")
    return Path(given)


def bits_of(bits: str | Iterable[int]) -> tuple[int, ...]:
    """Bits given as a string or as numbers.

    >>> bits_of("101"), bits_of([1, 0, 1])
    ((1, 0, 1), (1, 0, 1))
    """
    found = [str(bit) for bit in bits] if isinstance(bits, Iterable) else []
    if not found or set(found) - {"0", "1"}:
        raise SpecError(f"bits must be a string of 0 and 1 such as 1011, got {bits!r}")
    return tuple(int(bit) for bit in found)
