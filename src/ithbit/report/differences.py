"""In which settings a run differs from the paper's, in words that tell rows and lines apart.

Any field of the model's sizes and of the protocol counts, with one exception: a run that was to
end when first perfect has the successes and the accuracy of the whole one, see `cells.py`.
"""

import re
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

import polars as pl

from ithbit.spec import ModelSpec, Protocol

_NAMES = {
    "d_model": "d",
    "n_heads": "heads",
    "d_ff": "ff",
    "d_state": "state",
    "learning_rate": "lr",
    "batch_size": "batch",
    "max_epochs": "epochs",
}
_SIZES = ("d_model", "n_heads", "d_ff", "d_state")
_PAPER: dict[str, Any] = {name: getattr(ModelSpec, name) for name in _SIZES} | {
    field.name: field.default for field in fields(Protocol) if field.name != "stop_when_solved"
}
_NUMBER = re.compile(r"(\d+(?:\.\d+)?(?:e[-+]?\d+)?)")
UNKNOWN = "settings of another version"


def _word(field: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    return f"{_NAMES.get(field, field.replace('_', ' '))} = {value:.12g}"


def differences(run: dict[str, Any]) -> str:
    """The settings of a run that are not the paper's, "" if there are none.

    >>> differences({"settings": "other", "d_model": 8, "learning_rate": 0.003})
    'd = 8, lr = 0.003'
    """
    found = [_word(n, run[n]) for n, usual in _PAPER.items() if run.get(n, usual) != usual]
    # What only another version knows is not in the table: the run is no more than told apart.
    return ", ".join(found) or (UNKNOWN if run.get("settings") == "other" else "")


def with_differences(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows with a column `differs`."""
    columns = ["settings", *_PAPER]
    kinds = rows.select(columns).unique()
    words = [
        differences({name: value for name, value in kind.items() if value is not None})
        for kind in kinds.iter_rows(named=True)
    ]
    named = kinds.with_columns(pl.Series("differs", words, pl.String))
    return rows.join(named, on=columns, how="left", nulls_equal=True, maintain_order="left")


def shared(differing: Iterable[str]) -> list[str]:
    """The words that all of these have, in the order of the first.

    >>> shared(["d = 8, lr = 0.003", "d = 8, lr = 0.001"])
    ['d = 8']
    """
    words = [each.split(", ") for each in differing]
    return [word for word in words[0] if all(word in each for each in words)] if words else []


def natural(text: str) -> list[tuple[str, float]]:
    """A key that sorts "d = 8" before "d = 32", and "" first."""
    pieces = [*_NUMBER.split(text), "0"]
    return [(pieces[at], float(pieces[at + 1])) for at in range(0, len(pieces), 2)] if text else []
