"""In which settings a run differs from the paper's, as fields with values, and in words.

Every model size and every field of the protocol counts, except stopping when first perfect, which
changes neither successes nor accuracy (see `cells.py`). The encoding of positions counts too,
unless the run belongs to the paper's own ablation of encodings.
"""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

import polars as pl

from ithbit.published import Settings, Variant, published
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
_USUAL = _PAPER | {"positions": "polynomial"}
# Settings that only another version knows are not in the table: the run can only be marked.
_UNKNOWN = ("settings", "other")
_OF_SETTINGS = ["settings", *_USUAL, "task", "family", "n_layers", "n_bits"]  # columns


def settings_of(run: Mapping[str, Any]) -> Settings:
    """The settings of a run that are not the paper's, in the order of the protocol. A field that
    the run lacks, or that is None, has the paper's value.

    >>> settings_of({"settings": "other", "d_model": 8, "learning_rate": 0.003})
    (('d_model', 8), ('learning_rate', 0.003))
    """
    values = {name: value for name in _USUAL if (value := run.get(name)) is not None}
    settings = [(n, values[n]) for n, usual in _PAPER.items() if values.get(n, usual) != usual]
    if not settings and run.get("settings") == "other":
        settings = [_UNKNOWN]
    positions = values.get("positions", "polynomial")
    if positions != "polynomial" and (settings or not _of_ablation(run)):
        settings.append(("positions", positions))
    return tuple(settings)


def _of_ablation(run: Mapping[str, Any]) -> bool:
    """Whether the paper's ablation of encodings has this model and length."""
    paper, model = published(), Variant(run["task"], run["family"], run["n_layers"])
    lengths = {row.n_bits for row in paper.positions}
    return run["n_bits"] in lengths and model in paper.positions_variants


def settings_text(settings: Settings) -> str:
    """Settings in words, "" for the paper's.

    >>> settings_text((("d_model", 8), ("examples", "mixed")))
    'd = 8, mixed examples'
    """
    return ", ".join(_word(*each) for each in settings)


def _word(field: str, value: Any) -> str:
    if (field, value) == _UNKNOWN:
        return "settings of another version"
    if isinstance(value, str):
        return f"{value} {_name(field)}"
    return f"{_name(field)} = {value:.12g}"


def _name(field: str) -> str:
    return _NAMES.get(field, field.replace("_", " "))


def settings_order(settings: Settings) -> list[tuple[str, float]]:
    """A sort key: the paper's settings first, then by names, and d = 8 before d = 32."""
    return [
        (_word(field, value), 0) if isinstance(value, str) else (_name(field), value)
        for field, value in settings
    ]


def with_differences(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows with two more columns: `differs`, the run's settings in words, and `encoding`, its
    positions, or polynomial where `differs` names them."""
    kinds = rows.select(_OF_SETTINGS).unique()
    all_settings = [settings_of(kind) for kind in kinds.iter_rows(named=True)]
    encodings = [
        "polynomial" if "positions" in dict(settings) else positions
        for settings, positions in zip(all_settings, kinds["positions"], strict=True)
    ]
    kinds = kinds.with_columns(
        pl.Series("differs", [settings_text(settings) for settings in all_settings], pl.String),
        pl.Series("encoding", encodings, pl.String),
    )
    return rows.join(kinds, on=_OF_SETTINGS, how="left", nulls_equal=True, maintain_order="left")


def settings_by_text(rows: pl.DataFrame) -> dict[str, Settings]:
    """The settings behind each text in the column `differs`, the paper's first, then by names."""
    first = rows.unique("differs", keep="first", maintain_order=True)
    settings = {run["differs"]: settings_of(run) for run in first.iter_rows(named=True)}
    return dict(sorted(settings.items(), key=lambda each: settings_order(each[1])))


def split_shared_and_distinct(
    settings: Iterable[Settings],
) -> tuple[Settings, dict[Settings, Settings]]:
    """What all of these settings share, and what distinguishes each from the others.

    >>> wide, usual = (("d_model", 8), ("max_epochs", 6)), (("max_epochs", 6),)
    >>> shared, distinct = split_shared_and_distinct([wide, usual])
    >>> shared, distinct[wide], distinct[usual]
    ((('max_epochs', 6),), (('d_model', 8),), (('d_model', 16),))
    """
    kinds = {each: dict(each) for each in settings}
    values = dict.fromkeys(value for each in kinds for value in each)
    shared = tuple(value for value in values if all(value in each for each in kinds))
    varying = dict.fromkeys(field for field, value in values if (field, value) not in shared)
    # Next to the paper's settings, only deviations are named.
    usual = {} if () in kinds else _USUAL
    distinct = {}
    for each, of in kinds.items():
        by_field = usual | of
        distinct[each] = tuple((field, by_field[field]) for field in varying if field in by_field)
    return shared, distinct
