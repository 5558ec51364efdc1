"""The result of a capacity search: one row per cell, as a table, as CSV and as plain data."""

import csv
import io
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, get_args

from ithbit.capacity_search.search_rounds import SearchState
from ithbit.capacity_search.state import state_limits
from ithbit.display import Printable, pluralize
from ithbit.errors import StoreError
from ithbit.families import family_named

HEADS = (
    *("task", "layer", "L", "width", "n learnt", "rate", "state", "bits/number", "32·S"),
    "n*",
)


@dataclass(frozen=True)
class Capacity:
    """One cell: solved at n = `solved_at`, failed at n = `failed_at`, with its state and limits.

    `solved_at` is 0 if no length was solved; `failed_at` is None if no larger length failed (in a
    final search, not even the longest allowed). If `final` is false, the search stopped before the
    bracket was narrow enough, and `solved_at` may still be unconfirmed. `verdicts` counts the
    verdicts of `verify` on the runs that stand at `solved_at`. All but the limits is *observed*.
    """

    task: str
    family: str
    layers: int
    width: int
    solved_at: int
    failed_at: int | None
    final: bool
    rate: float | None  # the learning rate at which most seeds stand at `solved_at`
    stand: int  # seeds that stand there
    seeds: int
    verdicts: str
    tried: str  # lengths in the order tried: + solved, - failed
    state: int | None
    state_origin: str
    float_limit: int | None
    n_star: int | None
    n_star_status: str
    declared: int | None = None  # state that a user's layer declares
    code: str = ""

    @property
    def label(self) -> str:
        return family_named(self.family).label

    @property
    def cell(self) -> tuple[str | int, ...]:
        return self.family, self.code, self.task, self.layers, self.width

    @property
    def middle(self) -> float | None:
        """The geometric mean of the bracket; None if either end is open."""
        if not self.solved_at or self.failed_at is None:
            return None
        return math.sqrt(self.solved_at * self.failed_at)

    @property
    def bits_per_number(self) -> float | None:
        """Bits learnt per number of the state; None while no length is solved yet."""
        if not self.state or not (self.solved_at or self.final):
            return None
        return self.solved_at / self.state

    @property
    def bracket(self) -> str:
        """The bracket as short text: solved at the first n, failed at the second."""
        low, high = self.solved_at, self.failed_at
        if not low:
            return "–" if high is None else f"< {high}"
        return f"≥ {low}" if high is None else f"{low} to {high}"

    def sentence(self) -> str:
        """The cell in words."""
        depth = f"{pluralize(self.layers, 'layer')} of width {self.width}"
        head = f"{self.task.upper()}, {self.label}, {depth}"
        if not self.solved_at:
            return f"{head}: no length solved so far"
        stand = f"{self.stand} of {pluralize(self.seeds, 'seed')} tried"
        end = "" if self.failed_at is None else f", fails at n = {self.failed_at}"
        per = self.bits_per_number
        each = "" if per is None else f"; {per:.2g} bits for each of {self.state} numbers of state"
        if not self.final:
            return (
                f"{head}: so far n = {self.solved_at} ({stand}){end}{each}; the search is not done"
            )
        return f"{head}: learns n = {self.solved_at} ({stand}){end}{each}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"bits_per_number": self.bits_per_number}


def row(state: SearchState, measure: bool = False) -> Capacity:
    """The row of a cell. `measure` measures its state, which takes up to a minute or so."""
    model, ends, at_low = state.model, state.bracket, state.lower
    verdicts = sorted(set(state.verdicts))
    return Capacity(
        model.task,
        model.family,
        model.n_layers,
        model.d_model,
        ends.low or 0,
        ends.high,
        state.done,
        at_low.rate if at_low else None,
        at_low.stand if at_low else 0,
        at_low.runs if at_low else 0,
        ", ".join(f"{state.verdicts.count(each)} {each}" for each in verdicts),
        state.lengths,
        code=model.code,
        **asdict(state_limits(model, measure)),
    )


@dataclass(frozen=True, repr=False)
class Capacities(Printable):
    """The rows of a search, a sentence on what was asked, and which cells are stuck and why."""

    rows: tuple[Capacity, ...]
    asked: str
    stuck: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[Capacity]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, at: int) -> Capacity:
        return self.rows[at]

    @property
    def final(self) -> bool:
        """Whether every bracket is final."""
        return all(each.final for each in self.rows)

    def to_json(self) -> dict[str, Any]:
        rows = [each.to_json() for each in self.rows]
        return {"schema": 1, "asked": self.asked, "rows": rows, "stuck": list(self.stuck)}

    def render(self) -> Iterator[Any]:
        from rich.table import Table
        from rich.text import Text

        table = Table()
        for head in HEADS:
            # Names and numbers are never cut short.
            justify: Any = "left" if head in HEADS[:2] else "right"
            table.add_column(head, justify=justify, overflow="fold")
        for each in self.rows:
            table.add_row(*map(str, cells(each)))
        yield table
        yield from map(Text, self.stuck)
        if not self.final:
            yield "… the search is not done: rerun the same command to continue"
        yield Text(
            f"n learnt: solved at the first n, failed at the second. {self.asked} State: measured "
            "as the causal rank (c: counted). 32·S: the most bits that a recurrent evaluation in "
            "32-bit numbers can hold. n*, proved or conditional: shown where it is below that."
        )

    def csv(self) -> str:
        """The rows as CSV."""
        out = io.StringIO()
        writer = csv.DictWriter(
            out, [field.name for field in fields(Capacity)], lineterminator="\n"
        )
        writer.writeheader()
        writer.writerows(asdict(each) for each in self.rows)
        return out.getvalue()


def cells(each: Capacity) -> tuple[object, ...]:
    """The values of a row as shown under `HEADS`."""
    per, dots = each.bits_per_number, "" if each.final else " …"
    mark = "" if each.state_origin == "measured" else " c"
    return (
        each.task.upper(),
        each.label,
        each.layers,
        each.width,
        each.bracket + dots,
        "–" if each.rate is None else f"{each.rate:g}",
        "–" if each.state is None else f"{each.state}{mark}",
        "–" if per is None else f"{per:.2f}",
        "–" if each.float_limit is None else f"{each.float_limit:,}",
        "–" if each.n_star is None else f"{each.n_star:,} ({each.n_star_status})",
    )


def read_rows(path: Path) -> tuple[Capacity, ...]:
    """The rows that `Capacities.csv` wrote; raises `StoreError` if they cannot be read."""
    try:
        with open(path, newline="", encoding="utf-8") as file:
            return tuple(map(_read, csv.DictReader(file)))
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, csv.Error) as error:
        raise StoreError(f"{path} does not hold capacities: {error}") from error


def _read(line: dict[str, Any]) -> Capacity:
    values: dict[str, Any] = {}
    for field in fields(Capacity):
        kind, *may_be_none = get_args(field.type) or (field.type,)
        text = line[field.name]
        read = {"True": True, "False": False}.__getitem__ if kind is bool else kind
        values[field.name] = None if may_be_none and text == "" else read(text)
    return Capacity(**values)


def atlas() -> tuple[Capacity, ...]:
    """The known capacities: those of results/capacity."""
    with as_file(files("ithbit.capacity_search").joinpath("atlas.csv")) as path:
        return read_rows(path)
