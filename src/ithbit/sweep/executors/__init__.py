"""The interface between a sweep and the machines it runs on: submit, alive, release, cancel.

A *share* is a few runs of one spec, trained one stack after another by one process. A *batch* is a
list of shares submitted at once; it is written to the store first (see `ledger`), so that later
processes know what was submitted. A *handle* names a share by its batch and its place in it. An
executor reports which handles are queued or running, nothing more: the store records what is done.

The workers on this machine (`sweep.processes`) need no such interface. They end with the process
that started them and talk to it through pipes, so there is nothing to adopt or to query.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ithbit.sweep.executors.ledger import Batch


@dataclass(frozen=True)
class Handle:
    """A share that was submitted."""

    batch: str
    index: int


@dataclass(frozen=True)
class Job:
    """A share that an executor has queued or is running."""

    handle: Handle
    job_id: str  # the executor's own name for it
    state: str  # such as PENDING or RUNNING
    reason: str = ""  # why it is not running, if known

    @property
    def is_running(self) -> bool:
        return self.state not in ("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED")

    @property
    def failed_to_launch(self) -> bool:
        """Whether the executor holds it after a failed launch, until it is released."""
        return "launch failed" in self.reason.replace("_", " ").lower() and not self.is_running


class Executor(Protocol):
    """What a sweep needs from the machines; errors are `ClusterError`."""

    def largest_batch(self) -> int:
        """How many shares may be submitted at once."""

    def submit(self, batch: "Batch", lock: int | None) -> str:
        """Submit a batch that is in the ledger; return the executor's name for it.

        `lock` is the descriptor of the ledger's lock. A child process that does the work inherits
        it, so that no other process looks before it is done, even if this process is killed.
        """

    def alive(self) -> dict[Handle, Job]:
        """The shares of any batch that are queued or running."""

    def release(self, job: Job) -> None:
        """Release a held share."""

    def cancel(self, jobs: Iterable[Job]) -> None:
        """Cancel shares, running or not."""
