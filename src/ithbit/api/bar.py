"""Progress of a command that works through a list: a bar on a terminal and in a notebook.

Apart from `progress.py` because it needs no torch: `ithbit check-certificate` starts at once.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from rich.console import Console
from rich.progress import Progress

T = TypeVar("T")


@contextmanager
def bar(
    items: Sequence[T], doing: str, progress: bool
) -> Iterator[tuple[Iterator[T], Callable[[str], None]]]:
    """The items one by one, and a function to report how far the current item is.

    With `progress`, a bar is shown on a terminal and in a notebook.
    """
    console = Console(stderr=True)
    live = progress and (console.is_terminal or console.is_jupyter)
    with Progress(console=console, transient=True, disable=not live) as shown:
        task = shown.add_task(doing, total=len(items))

        def one_by_one() -> Iterator[T]:
            for item in items:
                yield item
                shown.update(task, advance=1, description=doing)

        yield one_by_one(), lambda text: shown.update(task, description=f"{doing}: {text}")
