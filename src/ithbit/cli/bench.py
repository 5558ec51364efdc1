"""`ithbit bench`: how fast training is on this machine, with every available method."""

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ithbit.bench.result import Result


def bench(
    *,
    n: list[int] | None = None,
    seeds: list[int] | None = None,
    device: str = "auto",
    steps: int | None = None,
    repeats: int | None = None,
    quick: bool = False,
    read: Path | None = None,
    json: str | None = None,
) -> "Result":
    """Time the reference, the stacked models and compiled code or kernels, side by side.

    For the nine constructive configurations and the deepest of each family: seconds per run and
    epoch, ratios to the reference, and shares of the peak rates measured on the device. A failure
    is reported in its row, and the others continue. Progress goes to standard error; the JSON file
    is rewritten after every configuration.
    """
    from ithbit.bench.result import read_result
    from ithbit.store.writing import check_writable, json_bytes, write_whole

    file = None if json in (None, "-") else Path(str(json))
    if file is not None:
        check_writable(file)

    def keep(result: "Result") -> None:
        if file is not None:
            write_whole(file, json_bytes(result.to_json()))

    if read is not None:
        found = read_result(read)
    else:
        from ithbit.bench.run import Settings
        from ithbit.bench.run import bench as run_bench

        settings = Settings(tuple(n or (64,)), tuple(seeds or (5,)), device, steps, repeats, quick)
        found = run_bench(settings, partial(print, file=sys.stderr, flush=True), keep)
    keep(found)
    return found


def print_bench(found: Any, json: str | None) -> None:
    from ithbit.bench.text import result_text
    from ithbit.store.writing import json_bytes

    text = json_bytes(found.to_json()).decode() if json == "-" else result_text(found)
    print(text, end="")
