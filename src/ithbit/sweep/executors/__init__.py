"""The seam between a sweep and the machines it runs on: submit, alive, cancel.

A *share* is a few runs of one shape, trained one stack after another by one process. A *batch* is a
list of shares handed over at once; it is written to the store first (see `ledger`), so that whoever
comes later knows what was handed over. A *handle* names a share by its batch and its place in it.
An executor says which handles are queued or running, nothing more: what is done, the store says.

The workers on this machine (`sweep.processes`) need no such seam. They end with the process that
started them and talk to it through pipes, so there is nothing to adopt and nothing to ask.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ithbit.sweep.executors.ledger import Batch


@dataclass(frozen=True)
class Handle:
    """A share that was handed over."""

    batch: str
    index: int


@dataclass(frozen=True)
class Job:
    """A share that an executor has queued or is running."""

    handle: Handle
    job_id: str  # the executor's own name for it
    state: str  # such as PENDING or RUNNING
    reason: str = ""  # why it does not run, if so

    @property
    def is_running(self) -> bool:
        return self.state not in ("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED")

    @property
    def failed_to_launch(self) -> bool:
        """Held by the executor after a failed launch: it stays so until somebody releases it."""
        return "launch failed" in self.reason.replace("_", " ").lower() and not self.is_running


class Executor(Protocol):
    """What a sweep needs of the machines; errors are `ClusterError`."""

    def largest_batch(self) -> int:
        """How many shares may be handed over at once."""

    def submit(self, batch: "Batch", lock: int | None) -> str:
        """Hand over a batch that the ledger holds; the executor's name for it.

        `lock` is the descriptor of the ledger's lock: whatever process does the work inherits it,
        so that nobody looks before the work is done, even if this process is killed meanwhile.
        """

    def alive(self) -> dict[Handle, Job]:
        """The shares that are queued or running, of whatever batch."""

    def release(self, job: Job) -> None:
        """Let a held share go on."""

    def cancel(self, jobs: Iterable[Job]) -> None:
        """End shares, running or not."""
