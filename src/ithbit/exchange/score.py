"""Scoring the answers of a model trained elsewhere, by the paper's criterion and beyond."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ithbit.errors import SpecError
from ithbit.exchange.sets import InputSet, read_sets
from ithbit.families import Task
from ithbit.published import RUNS_PER_CELL, published
from ithbit.shown import Shown, counted

_FORMATS = (".npz", ".csv", ".parquet")


@dataclass(frozen=True, repr=False)
class Score(Shown):
    """Accuracies per set; `held_out` is per seed, and a seed is solved if its accuracy is 1."""

    task: Task
    n_bits: int
    held_out: dict[int, float]
    adversarial: dict[str, float]  # by kind
    exhaustive: float | None
    n_wrong: int | None  # of all inputs
    name: str = "yours"  # what the model is called

    @property
    def solved(self) -> int:
        return sum(accuracy == 1.0 for accuracy in self.held_out.values())

    def to_json(self) -> dict[str, Any]:
        return {"schema": 1, **asdict(self), "solved": self.solved, "seeds": len(self.held_out)}

    def successes(self) -> list[tuple[str, str, str]]:
        """Model, depth and successes: this model above the published ones of its task and n."""
        theirs = [
            (row.label, str(row.n_layers), f"{row.successes[self.n_bits]}/{RUNS_PER_CELL}")
            for row in published().successes
            if row.task == self.task and self.n_bits in row.successes
        ]
        return [(self.name, "", f"{self.solved} of {_sets(self.held_out)}"), *theirs]

    def parts(self) -> Iterator[Any]:
        from rich.box import SIMPLE_HEAD
        from rich.table import Table

        n, rows = self.n_bits, self.successes()
        yield f"{self.task.upper()} at n = {n}"
        table = Table("Model", "L", f"n={n}", box=SIMPLE_HEAD, pad_edge=False)
        for number, row in enumerate(rows):
            table.add_row(*row, end_section=number == 0)
        yield table
        yield (
            f"First row: of the {_sets(self.held_out)}, one for each seed of the data, how many "
            "were answered without a mistake, whether by one model or by one model per set."
        )
        if len(rows) > 1:
            yield "Other rows: the paper's successful seeds out of five, one trained model each."
        else:
            yield f"The paper has no counts at n = {n} to compare with."
        yield "held out, by seed: " + _shares(self.held_out)
        if self.adversarial:
            yield "adversarial, by kind: " + _shares(self.adversarial)
        if self.n_wrong is not None:
            total = f"{n << n:,}"
            wrong = (
                f"{self.n_wrong:,} of {total} wrong" if self.n_wrong else f"right on all {total}"
            )
            yield f"all inputs: {wrong}"


def _sets(held_out: dict[int, float]) -> str:
    return counted(len(held_out), "held-out set")


def _shares(found: dict[str, float] | dict[int, float]) -> str:
    return ", ".join(f"{label}: {share:.4f}" for label, share in found.items())


def score(predictions: Path, data: Path, name: str = "yours") -> Score:
    """Score a file of predictions against the sets of a folder."""
    task, n_bits, sets = read_sets(data)
    given = _read(predictions)
    unknown = sorted(set(given) - set(sets))
    if unknown:
        raise SpecError(
            f"{predictions} answers {', '.join(unknown)}; the sets of {data} are {', '.join(sets)}"
        )
    if "held_out" not in given:
        raise SpecError(f"{predictions} does not answer the set held_out, which the score needs")
    right = {name: _right(given[name], sets[name], predictions) for name in given}
    whole = right.get("exhaustive")
    return Score(
        task,
        n_bits,
        _by_label(right["held_out"], sets["held_out"]),
        _by_label(right["adversarial"], sets["adversarial"]) if "adversarial" in right else {},
        None if whole is None else float(whole.mean()),
        None if whole is None else int((~whole).sum()),
        name,
    )


def _read(path: Path) -> dict[str, NDArray[Any]]:
    """Predictions by set, in row order."""
    if path.suffix not in _FORMATS:
        raise SpecError(f"predictions are {', '.join(_FORMATS)} files, got {path.name!r}")
    if not path.is_file():
        raise SpecError(f"there is no file {path}")
    try:
        if path.suffix == ".npz":
            # Opened here: numpy would leave a damaged file open.
            with path.open("rb") as handle, np.load(handle, allow_pickle=False) as file:
                return {name: file[name] for name in file.files}
        frame = pl.read_csv(path) if path.suffix == ".csv" else pl.read_parquet(path)
    except Exception as error:
        as_savez = (
            "it must be a file that numpy.savez writes, with an array of 0 and 1 for each set"
        )
        why = as_savez if path.suffix == ".npz" else error  # numpy would suggest unpickling it
        raise SpecError(f"{path} cannot be read as {path.suffix}: {why}") from error
    missing = [name for name in ("set", "number", "prediction") if name not in frame.columns]
    if missing:
        raise SpecError(f"{path} lacks the columns {', '.join(missing)}")
    found = {}
    for (name,), part in frame.group_by("set"):
        part = part.sort("number")
        if part["number"].to_list() != list(range(part.height)):
            raise SpecError(f"{path} must answer every number of the set {name} once, from 0 on")
        found[str(name)] = part["prediction"].to_numpy()
    return found


def _right(given: NDArray[Any], wanted: InputSet, path: Path) -> NDArray[np.bool_]:
    answers = np.asarray(given)
    if answers.shape != wanted.index.shape:
        raise SpecError(
            f"{path} has {answers.shape} answers to {wanted.name}, which has "
            f"{len(wanted.index)} inputs; give one answer each"
        )
    if answers.dtype.kind not in "biuf" or not np.isin(answers, (0, 1)).all():
        raise SpecError(f"answers are 0 or 1; {path} has others in {wanted.name}")
    return np.asarray(answers == wanted.answer)


def _by_label(right: NDArray[np.bool_], of: InputSet) -> dict[Any, float]:
    labels = np.array(of.label)
    return {label: float(right[labels == label].mean()) for label in dict.fromkeys(of.label)}
