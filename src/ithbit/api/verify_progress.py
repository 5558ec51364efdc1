"""The bar that `verify` shows: a step per run, and how far its proof and the check of it are."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.progress import Progress

from ithbit.api.progress import bars

if TYPE_CHECKING:
    from ithbit.verification.proofs.branch_and_bound import Found


class VerifyProgress:
    """One bar over the folders of runs."""

    def __init__(self, bar: Progress, folders: Sequence[Path]) -> None:
        self._bar, self._folders = bar, folders
        self._task = bar.add_task("verifying", total=len(folders))

    def folders(self) -> Iterator[Path]:
        """The folders, with a step of the bar after each."""
        for folder in self._bar.track(self._folders, task_id=self._task):
            self._describe("verifying")
            yield folder

    def search(self, now: "Found") -> None:
        """Show how far the search for a proof is."""
        self._describe(f"verifying: {now.sentence()}")

    def certificate(self, numbers: Sequence[int]) -> Iterable[int]:
        """The same numbers, those of the leaves of a certificate, shown one by one."""
        for k, number in enumerate(numbers, 1):
            self._describe(f"verifying: checking the certificate, {k:,} of {len(numbers):,}")
            yield number

    def _describe(self, description: str) -> None:
        self._bar.update(self._task, description=description)


@contextmanager
def verify_progress(progress: bool, folders: Sequence[Path]) -> Iterator[VerifyProgress]:
    """The bar, shown with `progress` on a terminal and in a notebook."""
    with bars(progress) as bar:
        yield VerifyProgress(bar, folders)
