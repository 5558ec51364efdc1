"""Writing a store as two tidy tables: one row per run, and one row per run and epoch."""

import os
from pathlib import Path

from ithbit.errors import OutputError, one_of
from ithbit.store.frame import Records
from ithbit.store.reading import TABLE_FORMATS
from ithbit.store.writing import in_memory, write_whole

_NAMES = ("runs", "histories")


def export(records: Records, folder: Path, form: str) -> list[Path]:
    """Write `runs` and `histories` into a folder as Parquet or CSV; return the two paths.

    A folder that has either table in the other format is refused before anything is written.
    """
    one_of("unknown format", form, TABLE_FORMATS)
    others = [f"{name}.{other}" for name in _NAMES for other in TABLE_FORMATS if other != form]
    for other in others:
        if os.path.isfile(folder / other):
            raise OutputError(
                f"{folder} already has {other}, and a table in two formats cannot be read; "
                "name another folder with --out, or move that file away"
            )
    paths = []
    for name, frame in zip(_NAMES, (records.rows, records.histories()), strict=True):
        write = frame.write_parquet if form == "parquet" else frame.write_csv
        paths.append(write_whole(folder / f"{name}.{form}", in_memory(write)))
    return paths
