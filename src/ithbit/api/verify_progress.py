"""The bar that `verify` shows: a step per run, and how far its proof and the check of it are."""

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.progress import Progress

from ithbit.api.progress import bars
from ithbit.display import pluralize

if TYPE_CHECKING:
    from ithbit.api.verify_workers import FolderOutcome
    from ithbit.verification.proofs.branch_and_bound import SearchResult


class VerifyProgress:
    """One bar over the folders of runs."""

    def __init__(self, bar: Progress, folders: Sequence[Path]) -> None:
        self._bar, self._folders = bar, folders
        self._now: dict[Path, str] = {}  # the proofs being sought, and how far they are
        self._task = bar.add_task("verifying", total=len(folders))

    def folders(self) -> Iterator[Path]:
        """The folders, with a step of the bar after each."""
        for folder in self._bar.track(self._folders, task_id=self._task):
            self._describe("verifying")
            yield folder

    def steps(
        self, outcomes: "Generator[tuple[Path, FolderOutcome], None, None]"
    ) -> "Generator[tuple[Path, FolderOutcome], None, None]":
        """What came of each folder, with a step of the bar for each."""
        with closing(outcomes):
            for folder, each in outcomes:
                self._now.pop(folder, None)
                self._bar.advance(self._task)
                self._describe(self._proofs())
                yield folder, each

    def proof(self, folder: Path, progress: str) -> None:
        """Show how far the proof of a folder's run is, among others."""
        self._now[folder] = progress
        self._describe(self._proofs())

    def _proofs(self) -> str:
        if not self._now:
            return "verifying"
        first, more = next(iter(self._now.values())), len(self._now) - 1
        return f"verifying: {first}" + (f", and {pluralize(more, 'other')}" if more else "")

    def search(self, now: "SearchResult") -> None:
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
