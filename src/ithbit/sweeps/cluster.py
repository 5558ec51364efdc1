"""A sweep on a cluster: submit what is missing, watch the store, resubmit what was lost.

The store decides. A run is *done* when its result or failure is there, *live* while a share that
holds it is queued or running, and otherwise *missing*: it is submitted, up to `MAX_ATTEMPTS` times
in a row without a new epoch. Shares that another process submitted are adopted.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

from ithbit.engine.device import Device
from ithbit.engine.outcomes import forget_failures, record_failure
from ithbit.engine.training_context import Event, Notice, StopRequest, Watcher
from ithbit.errors import ClusterError, SpecError, first_of
from ithbit.models.layer_source import is_session_only
from ithbit.spec import RunSpec
from ithbit.store.folder import RunFolder
from ithbit.store.records import Failure, Result
from ithbit.store.status import check_store, statuses
from ithbit.sweeps.executors.ledger import Handle, Job, Ledger, Share
from ithbit.sweeps.executors.slurm import Slurm
from ithbit.sweeps.processes import MAX_ATTEMPTS
from ithbit.sweeps.runner import group
from ithbit.sweeps.threads import Stack, stacks_per_process, thread_safe_watcher

MAX_RELEASES = 3  # of a share that is held after a failed launch; then it is resubmitted
SETTLE_SECONDS = 5.0  # out of the queue before a share counts as ended: files may appear late
_STORE_SECONDS = 1.0  # between two looks at the store
_QUEUE_SECONDS = (1.0, 15.0)  # between two looks at the queue: longer while nothing happens
_REFUSED_SECONDS = 20.0  # before retrying what the cluster refused
_MAX_REFUSALS = 3  # in a row, with nothing of ours in the queue
_CANCEL_SECONDS = 60.0  # to wait for cancelled shares to leave the queue


class ClusterSweep:
    """Runs, the store they share and a cluster, with what is known of its queue so far."""

    def __init__(
        self,
        runs: Iterable[RunSpec],
        store: Path,
        cluster: Slurm,
        device: Device,
        runs_per_job: int | None = None,
        watch: Watcher = lambda event: None,
        retry_failed: bool = False,
    ) -> None:
        check_store(store)
        self.runs = list(dict.fromkeys(runs))
        if is_session_only(self.runs):
            raise SpecError(
                "a layer or family of these runs exists only in this Python process, so no job of "
                "a cluster can train it; put it in a file, or train here"
            )
        self.store, self.cluster, self.device = store.resolve(), cluster, device
        self.runs_per_job, self.retry_failed = runs_per_job, retry_failed
        # A remark is reported once, not at every query.
        self.watch = thread_safe_watcher(watch, StopRequest())
        self.ledger = Ledger(self.store)
        self._done: dict[RunSpec, Result | Failure] = {}
        self._history_sizes: dict[str, int] = {}
        self._gone_since: dict[Handle, float] = {}
        self._releases: Counter[Handle] = Counter()
        self._has_looked = False
        self._settled: set[Handle] = set()  # closed when this process first looked
        self._retried: set[str] = set()  # ids of failed runs to try again
        self._refused: list[float] = []  # when, in a row

    @property
    def _unfinished(self) -> list[RunSpec]:
        return [run for run in self.runs if run not in self._done]

    def submit(self) -> tuple[int, int]:
        """Submit what is missing, without waiting; return how many runs are live and how many
        are done."""
        n_live, settling = self._look(patient=False)
        while settling:
            time.sleep(_STORE_SECONDS)
            n_live, settling = self._look(patient=False)
        return n_live, len(self._done)

    def finish(self) -> list[Result | Failure]:
        """Submit, watch and resubmit until every run is done; return each run's outcome.

        Errors of the first look are raised at once. Later, a cluster that is away is waited for.
        """
        self._look(patient=False)
        looked = changed = time.monotonic()
        while self._unfinished:
            time.sleep(_STORE_SECONDS)
            now = time.monotonic()
            if self._report_changes():
                changed = now
            shortest, longest = _QUEUE_SECONDS
            if now - looked >= min(longest, max(shortest, (now - changed) / 4)):
                self._look(patient=True)
                looked = time.monotonic()
        return [self._done[run] for run in self.runs]

    def _look(self, patient: bool) -> tuple[int, bool]:
        """Query the queue and submit what is missing; return how many runs are live, and whether
        some share left the queue too recently to count as ended."""
        with self.ledger.locked() as lock:
            try:
                live = self.cluster.alive()
            except ClusterError as error:
                if not patient:
                    raise
                self._remark(f"{error}; waiting, running jobs continue")
                return 0, True
            if not self._has_looked:
                self._first_look(live)
            submitted = self.ledger.shares()
            self._free_held(submitted, live)
            # After the query: a share that had left the queue has its results.
            self._report_changes()
            fresh, missing, settling = self._missing(submitted, live)
            n_live = len(self._unfinished) - len(fresh) - sum(map(len, missing.values()))
            _raise_problems(missing)
            shares = [self._share(runs) for runs in tasks(fresh, self.device, self.runs_per_job)]
            for share, runs in missing.items():
                shares += self._replacements(share, runs)
            return n_live + self._submit_shares(shares, lock, n_live, patient), settling

    def _missing(
        self, submitted: list[Share], live: dict[Handle, Job]
    ) -> tuple[list[RunSpec], dict[Share, list[RunSpec]], bool]:
        """The runs that are in no share, those of shares that ended, by share, and whether there
        are others whose share has only just left the queue."""
        latest = {run.run_id: share for share in submitted for run in share.runs}
        fresh: list[RunSpec] = []
        missing: dict[Share, list[RunSpec]] = defaultdict(list)
        settling, now = False, time.monotonic()
        for run in self._unfinished:
            share = latest.get(run.run_id)
            if share is not None and share.handle in live:
                self._gone_since.pop(share.handle, None)
            elif share is None or share.handle in self._settled or run.run_id in self._retried:
                fresh.append(run)
            elif now - self._gone_since.setdefault(share.handle, now) >= SETTLE_SECONDS:
                missing[share].append(run)
            else:
                settling = True
        self._retried = set()
        return fresh, missing, settling

    def _first_look(self, live: dict[Handle, Job]) -> None:
        """Remove completed batches, note closed shares, and forget failures if `retry_failed`."""
        self._has_looked = True
        for batch in self.ledger.batches():
            runs = [run for share in batch.shares for run in share.runs]
            all_done = all(status == "done" for status in statuses(self.store, runs).values())
            if all_done and not any(share.handle in live for share in batch.shares):
                self.ledger.remove(batch)
            self._settled.update(share.handle for share in batch.shares if share.is_closed)
        if self.retry_failed:
            self._retried = {run.run_id for run in forget_failures(self.runs, self.store)}

    def _free_held(self, submitted: list[Share], live: dict[Handle, Job]) -> None:
        """Release shares that are held after a failed launch, a few times; then cancel them."""
        for share in submitted:
            job = live.get(share.handle)
            if job is None or not job.failed_to_launch:
                continue
            self._releases[share.handle] += 1
            if self._releases[share.handle] <= MAX_RELEASES:
                self._remark(f"job {job.job_id} was held after a failed launch; released")
                self.cluster.release(job)
            else:
                self._remark(f"job {job.job_id} was held again and again; cancelled")
                share.note("held")
                self.cluster.cancel([job])

    def _share(self, runs: list[RunSpec], attempt: int = 1) -> Share:
        return Share(tuple(runs), attempt, self._epochs(runs))

    def _epochs(self, runs: Iterable[RunSpec]) -> int:
        return sum(len(RunFolder(self.store, run).history()) for run in runs)

    def _replacements(self, share: Share, runs: list[RunSpec]) -> list[Share]:
        """The shares that replace a lost share; runs lost too often are recorded as failed.

        Runs lost without a new epoch are separated, so that a run that brings its share down does
        so alone.
        """
        if not share.submitted and not share.trace():
            return [self._share(runs, share.attempt)]  # it never reached the queue
        if self._epochs(share.runs) > share.epochs:
            self._remark(f"a job ended early, its runs continue: {_names(runs)}")
            return [self._share(runs)]
        if share.attempt < MAX_ATTEMPTS:
            self._remark(f"a job ended without a new epoch, tried again: {_names(runs)}")
            return [self._share([run], share.attempt + 1) for run in runs]
        for run in runs:
            error = (
                f"its job on the cluster ended {MAX_ATTEMPTS} times in a row without a new "
                f"epoch; the last one's log is {share.log}"
            )
            record_failure(self.store, run, error)
        return []

    def _submit_shares(
        self, shares: list[Share], lock: int | None, n_live: int, patient: bool
    ) -> int:
        """Submit shares in as few batches as the cluster accepts; return how many runs they hold.

        A refusal while other runs of ours are live may be a limit of the cluster: it is retried
        later. With none live, it is raised: at once unless `patient`, else after a few refusals.
        """
        if not shares or (
            self._refused and time.monotonic() < self._refused[-1] + _REFUSED_SECONDS
        ):
            return 0
        n_runs = 0
        try:
            largest = self.cluster.largest_batch()
            for start in range(0, len(shares), largest):
                chunk = shares[start : start + largest]
                batch = self.ledger.write(chunk, self.device.torch.type)
                try:
                    self.cluster.submit(batch, lock)
                except ClusterError:
                    self.ledger.remove(batch)
                    raise
                n_runs += sum(len(share.runs) for share in chunk)
                self._refused = []
        except ClusterError as error:
            self._refused.append(time.monotonic())
            hopeless = not patient or len(self._refused) >= _MAX_REFUSALS
            if hopeless and not n_live + n_runs:
                raise
            self._remark(f"{error}; tried again later")
        return n_runs

    def _report_changes(self) -> bool:
        """Report what is new in the store to the watcher; return whether a run was completed."""
        n_before = len(self._done)
        for run in self._unfinished:
            folder = RunFolder(self.store, run)
            if outcome := folder.outcome():
                self._done[run] = outcome
                self.watch(Event(run, outcome))
                continue
            history = folder.path / "history.jsonl"
            size = history.stat().st_size if history.exists() else 0
            if size != self._history_sizes.get(run.run_id, 0):
                self._history_sizes[run.run_id] = size
                for epoch in folder.history()[-1:]:
                    self.watch(Event(run, epoch))
        return len(self._done) > n_before

    def _remark(self, text: str) -> None:
        self.watch(Event(self.runs[0], Notice(text)))


def tasks(
    runs: Iterable[RunSpec], device: Device, runs_per_task: int | None = None
) -> list[list[RunSpec]]:
    """The runs of each task: as many stacks as one process trains at once, one on a CPU and several
    on a GPU; or as many runs of one spec as asked for."""
    stacks: list[Stack] = group(runs, device, n_workers=1, size=runs_per_task)
    each = 1 if runs_per_task else stacks_per_process(device.torch.type)
    n_tasks = -(-len(stacks) // each)
    # Dealt in turn, since stacks come largest first: tasks take about the same time.
    return [[run for stack in stacks[k::n_tasks] for run in stack] for k in range(n_tasks)]


def _raise_problems(shares: Iterable[Share]) -> None:
    """Raise what the user must fix; the shares concerned are closed, so that it is raised once."""
    problems = {share: problem for share in shares if (problem := problem_of(share))}
    for share in problems:
        share.close()
    if problems:
        problem = next(iter(problems.values()))
        more = f" ({len(problems)} jobs ended this way)" if len(problems) > 1 else ""
        raise ClusterError(f"{problem}{more}; nothing was resubmitted, other jobs continue")


def problem_of(share: Share) -> str | None:
    """What the user must fix before a share that ended is tried again, or None."""
    job = f"job {share.index} of {share.folder.name}"
    if share.is_closed:
        return f"{job} was cancelled; run the command again to continue"
    if not share.submitted:
        return None
    trace = share.trace()
    if not trace:
        return (
            f"{job} ended without a trace in {share.folder.parents[1]}: its node cannot write "
            "there, or it was cancelled before it began; give a --store that every node sees under "
            "the same path"
        )
    if trace[-1].startswith("error "):
        return trace[-1].removeprefix("error ")
    if trace[-1].startswith("started") and share.attempt > 1:
        lines = share.log_lines()
        last = f": {lines[-1]}" if lines else ""
        return f"ithbit did not come up on a node, {trace[-1].removeprefix('started ')}{last}"
    return None


def cancel(runs: Iterable[RunSpec], store: Path, cluster: Slurm) -> int:
    """Cancel every live share that holds one of the runs; return how many there were. The runs keep
    their progress and resume from it when they are submitted again."""
    ledger = Ledger(store)
    run_ids = {run.run_id for run in runs}
    with ledger.locked():
        live, jobs = cluster.alive(), {}
        for share in ledger.shares():
            if share.handle in live and any(run.run_id in run_ids for run in share.runs):
                share.close()
                jobs[share.handle] = live[share.handle]
        cluster.cancel(jobs.values())
    deadline = time.monotonic() + _CANCEL_SECONDS
    while jobs and time.monotonic() < deadline:
        if jobs.keys().isdisjoint(cluster.alive()):
            break
        time.sleep(_STORE_SECONDS)
    return len(jobs)


def _names(runs: list[RunSpec]) -> str:
    return first_of([run.name for run in runs], 3)
