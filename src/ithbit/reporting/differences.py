"""In which settings a run differs from the paper's, in words that distinguish rows and lines.

Every model size and every field of the protocol counts, except stopping when first perfect, which
changes neither successes nor accuracy (see `cells.py`). The encoding of positions counts too,
unless the run belongs to the paper's own ablation of encodings.
"""

import re
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

import polars as pl

from ithbit.published import Variant, published
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
    name = _NAMES.get(field, field.replace("_", " "))
    return f"{value} {name}" if isinstance(value, str) else f"{name} = {value:.12g}"


_USUAL = {_word(name, "")[1:]: _word(name, value) for name, value in _PAPER.items()} | {
    "positions": "polynomial positions"
}


def differences(run: dict[str, Any]) -> str:
    """The settings of a run that are not the paper's, "" if there are none.

    >>> differences({"settings": "other", "d_model": 8, "learning_rate": 0.003})
    'd = 8, lr = 0.003'
    """
    found = [_word(n, run[n]) for n, usual in _PAPER.items() if run.get(n, usual) != usual]
    # Settings that only another version knows are not in the table: the run can only be marked.
    if not found and run.get("settings") == "other":
        found = [UNKNOWN]
    if run.get("positions", "polynomial") != "polynomial" and (found or not _of_ablation(run)):
        found.append(_word("positions", run["positions"]))
    return ", ".join(found)


def _of_ablation(run: dict[str, Any]) -> bool:
    """Whether the paper's ablation of encodings has this model and length."""
    paper, model = published(), Variant(run["task"], run["family"], run["n_layers"])
    lengths = {row.n_bits for row in paper.positions}
    return run["n_bits"] in lengths and model in paper.positions_variants


def with_differences(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows with columns `differs` and `encoding`: the cell's, polynomial if `differs` names
    the run's own."""
    columns = ["settings", *_PAPER, "positions", "task", "family", "n_layers", "n_bits"]
    kinds = rows.select(columns).unique()
    words = [
        differences({name: value for name, value in kind.items() if value is not None})
        for kind in kinds.iter_rows(named=True)
    ]
    named = kinds.with_columns(pl.Series("differs", words, pl.String))
    told = pl.col("differs").str.ends_with(" positions")
    named = named.with_columns(
        encoding=pl.when(told).then(pl.lit("polynomial")).otherwise("positions")
    )
    return rows.join(named, on=columns, how="left", nulls_equal=True, maintain_order="left")


def _by_field(differs: str) -> dict[str, str]:
    """The words for settings by the field they describe.

    >>> _by_field("d = 8, mixed examples")
    {'d': 'd = 8', 'examples': 'mixed examples'}
    """
    words = differs.split(", ") if differs else []
    return {w.partition(" = ")[0] if " = " in w else w.split(" ")[-1]: w for w in words}


def split_shared_and_distinct(differing: Iterable[str]) -> tuple[list[str], dict[str, str]]:
    """What all of these settings share, and what distinguishes each from the others.

    >>> split_shared_and_distinct(["d = 8, epochs = 6", "epochs = 6"])
    (['epochs = 6'], {'d = 8, epochs = 6': 'd = 8', 'epochs = 6': 'd = 16'})
    """
    kinds = {each: _by_field(each) for each in differing}
    words = [word for fields in kinds.values() for word in fields.values()]
    shared = [w for w in dict.fromkeys(words) if all(w in f.values() for f in kinds.values())]
    varying = dict.fromkeys(
        name for found in kinds.values() for name, word in found.items() if word not in shared
    )
    usual = {} if "" in kinds else _USUAL  # beside the paper's settings, only deviations are named
    told = {
        each: ", ".join(filter(None, (found.get(n, usual.get(n)) for n in varying)))
        for each, found in kinds.items()
    }
    return shared, told


def natural(text: str) -> list[tuple[str, float]]:
    """A key that sorts "d = 8" before "d = 32", and "" first."""
    pieces = [*_NUMBER.split(text), "0"]
    return [(pieces[at], float(pieces[at + 1])) for at in range(0, len(pieces), 2)] if text else []
