"""Arguments shared by several API functions, read from the forms in which users give them."""

import inspect
import warnings
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from textwrap import shorten
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, get_args, get_origin

from ithbit.errors import IthbitError, SpecError, as_int
from ithbit.families import FAMILIES, TASKS, task_named
from ithbit.models.layer_source import family_of
from ithbit.spec import ModelSpec, Protocol
from ithbit.sweeps.select import parse_seeds
from ithbit.theory.architecture import FORMAL_FAMILIES

if TYPE_CHECKING:
    from ithbit.engine.training_context import Event

Seeds = Iterable[int] | str
Layer = Callable[..., Any]
Watch = Callable[["Event"], None]  # its argument: see `progress.py`
Given = ParamSpec("Given")
Returned = TypeVar("Returned")

# What a parameter with such an annotation takes. Names of something are listed where they are
# looked up, which only something hashable can be.
_KINDS: dict[frozenset[Any], tuple[str, Any]] = {
    frozenset({str, Path}): ("a path", (str, Path)),
    frozenset({str}): ("a string", Hashable),
    frozenset({Literal}): ("a string", Hashable),
    frozenset({bool}): ("True or False", bool),
    frozenset({Callable}): ("a function", Callable),
}


@dataclass(frozen=True)
class Observers:
    """Who gets the events of a training: a function, TensorBoard's folder, and with `progress` the
    user, on standard error."""

    watch: Watch | None = None
    tensorboard: str | Path | None = None
    progress: bool = False


def checked(function: Callable[Given, Returned]) -> Callable[Given, Returned]:
    """A public API function that raises `SpecError` for a path, name, flag or callback that is
    none. Numbers, runs and layers, which have several forms, are checked where they are read.

    >>> import ithbit
    >>> ithbit.runs(3)
    Traceback (most recent call last):
    ...
    ithbit.errors.SpecError: store must be a path, got 3
    """
    parameters = inspect.signature(function).parameters

    @wraps(function)
    def call(*args: Given.args, **kwargs: Given.kwargs) -> Returned:
        args, kwargs = _with_known_names(tuple(parameters), args, kwargs)
        for name, value in (*zip(parameters, args, strict=False), *kwargs.items()):
            form = parameters[name].annotation if name in parameters else None
            forms = get_args(form) if isinstance(form, UnionType) else (form,)
            kinds = frozenset(get_origin(each) or each for each in forms)
            what, kind = _KINDS.get(kinds - {NoneType}, ("", object))
            if not (isinstance(value, kind) or (value is None and NoneType in kinds)):
                got = shorten(repr(value), 60, placeholder="…")
                raise SpecError(f"{name} must be {what}, got {got}")
            if what == "a path":
                check_path(name, value)
        try:
            return function(*args, **kwargs)
        except PermissionError as error:  # of a folder on the way to a store or a file
            where = "" if error.filename is None else f" {error.filename}"
            raise IthbitError(f"cannot read or write{where}: {error.strerror}") from error

    return call


def _with_known_names(parameters: tuple[str, ...], args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The arguments with tasks and families named as records name them."""
    readers = {"task": known_name, "family": known_name}
    return (
        tuple(
            readers[name](value) if name in readers else value
            for name, value in zip((*parameters, *[""] * len(args)), args, strict=False)
        ),
        {
            name: readers[name](value) if name in readers else value
            for name, value in kwargs.items()
        },
    )


def known_name(word: Any) -> Any:
    """A task or family as records name it, given in capitals or as tables print it; everything else
    as it is. Also for a list of them.

    >>> known_name("RHI"), known_name("Full softmax"), known_name(["GRU", "Mamba"])
    ('rhi', 'softmax-full', ['gru', 'mamba2'])
    >>> known_name("layers.py:RHI"), known_name("elsewhere"), known_name("MQAR")
    ('layers.py:RHI', 'elsewhere', 'mqar')
    """
    if isinstance(word, list | tuple):
        return [known_name(each) for each in word]
    if not isinstance(word, str):
        return word
    labels = {family.label.lower(): name for name, family in FAMILIES.items()}
    names = {each.lower(): each for each in (*TASKS, *FAMILIES, *FORMAL_FAMILIES)}
    name = word.strip().lower()
    if (canonical := (labels | names).get(name)) is None and name.replace("-", "").isalpha():
        from ithbit.theory.recall.tasks import RECALL_ONLY

        canonical = name if name in RECALL_ONLY else None
    return word if canonical is None else canonical


def renamed(**new_names: str) -> Callable[[Callable[Given, Returned]], Callable[Given, Returned]]:
    """A public API function that also accepts earlier names of its keywords, each mapped to the
    name it has now, with a `DeprecationWarning`. Its signature shows only the names of now.

    >>> import ithbit
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     _ = ithbit.bound("rhi", "rnn", all=True)
    >>> print(caught[0].message)
    bound: the keyword 'all' is deprecated, use 'all_routes'
    """

    def decorate(function: Callable[Given, Returned]) -> Callable[Given, Returned]:
        @wraps(function)
        def call(*args: Given.args, **kwargs: Given.kwargs) -> Returned:
            name = function.__name__
            for old in new_names.keys() & kwargs.keys():
                new = new_names[old]
                if new in kwargs:
                    raise TypeError(f"{name} got {old!r} and {new!r}, which are the same keyword")
                text = f"{name}: the keyword {old!r} is deprecated, use {new!r}"
                warnings.warn(text, DeprecationWarning, stacklevel=2)
                kwargs[new] = kwargs.pop(old)
            return function(*args, **kwargs)

        return call

    return decorate


def check_path(name: str, path: str | Path | None) -> None:
    """Raise `SpecError` for a text that names no file or folder: an empty one would mean the
    current folder."""
    if isinstance(path, str) and not path.strip():
        raise SpecError(f"{name} must name a file or folder, got {path!r}; the current one is .")
    if "\0" in str(path):
        raise SpecError(f"{name} must be a path, got {path!r:.60}")


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


def as_list(values: Any) -> list[Any]:
    """One value or several as a list; None gives an empty list.

    >>> as_list("gru"), as_list([1, 2]), as_list(None)
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
    consistency: float | None = None,
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
        consistency=consistency,
    )


def model_of(
    task: str, family: str | Layer, positions: str, sizes: tuple[int, int, int, int, int]
) -> ModelSpec:
    """The model of a family or of a user's layer, given as `"layers.py:Mine"` or as its factory;
    the sizes are n, layers, width, heads and ff."""
    family_name, code = family_of(family)
    return ModelSpec(task_named(task), family_name, *sizes, positions=positions, code=code)


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
        if number is not None and as_int(name, number) < 1:
            raise SpecError(f"{name} must be at least 1, got {number}")


def bits_of(bits: str | Iterable[int]) -> tuple[int, ...]:
    """Bits given as a string or as numbers.

    >>> bits_of("101"), bits_of([1, 0, 1])
    ((1, 0, 1), (1, 0, 1))
    """
    digits = [str(bit) for bit in bits] if isinstance(bits, Iterable) else []
    if not digits or set(digits) - {"0", "1"}:
        raise SpecError(f"bits must be a string of 0 and 1 such as 1011, got {bits!r}")
    return tuple(int(bit) for bit in digits)
