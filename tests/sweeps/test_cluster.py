"""The loop over an executor, with one that trains in this process and misbehaves on request."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ithbit.engine.device import Device
from ithbit.engine.training_context import Event
from ithbit.errors import ClusterError, SpecError
from ithbit.families import FAMILIES, Family
from ithbit.spec import ModelSpec, Protocol, RunSpec
from ithbit.store.folder import RunFolder
from ithbit.store.records import Failure, Result
from ithbit.sweeps import cluster
from ithbit.sweeps.cluster import MAX_RELEASES, ClusterSweep, cancel, tasks
from ithbit.sweeps.executors.ledger import Batch, Handle, Job, Ledger, Share, live_runs
from ithbit.sweeps.executors.node import train_share
from ithbit.sweeps.processes import MAX_ATTEMPTS
from ithbit.sweeps.runner import group
from ithbit.sweeps.select import sweep_runs
from ithbit.sweeps.threads import STACKS_A_GPU

PROTOCOL = Protocol(epoch_examples=64, held_out_examples=20, max_epochs=2, stop_loss=1e-30)
RUNS = [
    RunSpec(ModelSpec("rhi", "gru", n_bits=3), seed=seed, protocol=PROTOCOL) for seed in range(5)
]
CPU = Device(torch.device("cpu"), "for tests")


class Toy:
    """An executor of this process: a share waits for one look, is trained at the next, and has left
    the queue at the one after. Behaviour by attempt: what to do instead of training."""

    def __init__(self, *instead: str, largest: int = 100) -> None:
        self.instead, self.largest = list(instead), largest
        self.waiting: dict[Handle, Share] = {}
        self.submissions: list[Batch] = []
        self.released = 0
        self.refuse: list[str] = []

    def largest_batch(self) -> int:
        return self.largest

    def submit(self, batch: Batch, lock: int | None) -> str:
        assert lock is not None
        if self.refuse:
            raise ClusterError(self.refuse.pop(0))
        self.submissions.append(batch)
        self.waiting |= {share.handle: share for share in batch.shares}
        (batch.folder / "submitted").write_text("1\n")
        return "1"

    def alive(self) -> dict[Handle, Job]:
        seen = {handle: Job(str(handle), "RUNNING") for handle in self.waiting}
        for handle, share in list(self.waiting.items()):
            what = self.instead.pop(0) if self.instead else "train"
            if what == "stay":
                continue
            if what == "hold":
                seen[handle] = Job(str(handle), "PENDING", "launch failed requeued held")
                continue
            if what != "vanish":
                share.note("started on toy as toy")
            if what == "train":
                train_share(share.folder.with_suffix(".json"), share.index)
            elif what == "die":
                share.note("ready")
            elif what.startswith("error"):
                share.note(what)
            elif what == "log":
                share.log.write_text("python: not found\n")
            del self.waiting[handle]
        return seen

    def release(self, job: Job) -> None:
        self.released += 1

    def cancel(self, jobs: Iterable[Job]) -> None:
        gone = {job.job_id for job in jobs}
        self.waiting = {at: share for at, share in self.waiting.items() if str(at) not in gone}


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(cluster, "_STORE_SECONDS", 0.001)
    monkeypatch.setattr(cluster, "_QUEUE_SECONDS", (0.0, 0.0))
    monkeypatch.setattr(cluster, "_REFUSED_SECONDS", 0.0)


def sweep_of(store: Path, toy: Toy, runs=RUNS, said=None, **options) -> ClusterSweep:
    def watch(event: Event) -> None:
        if said is not None and isinstance(event.what, str):
            said.append(event.what)

    return ClusterSweep(runs, store, toy, CPU, watch=watch, **options)


def test_everything_is_trained_once(tmp_path):
    toy = Toy()
    outcomes = sweep_of(tmp_path, toy, runs_per_job=2).finish()
    assert [outcome.spec for outcome in outcomes] == RUNS
    assert all(isinstance(outcome, Result) for outcome in outcomes)
    (batch,) = toy.submissions
    assert [len(share.runs) for share in batch.shares] == [2, 2, 1]
    again = Toy()
    assert sweep_of(tmp_path, again).finish() == outcomes
    assert not again.submissions
    assert not Ledger(tmp_path).batches()


def test_a_family_that_only_this_process_knows_is_not_submitted(tmp_path, monkeypatch):
    monkeypatch.setitem(FAMILIES, "mean", Family("mean"))
    toy = Toy()
    with pytest.raises(SpecError, match="exists only in this Python process"):
        sweep_of(tmp_path, toy, [RunSpec(ModelSpec("rhi", "mean", n_bits=3), 0), *RUNS])
    assert not toy.submissions


def test_a_stack_for_each_job_unless_told_otherwise(tmp_path):
    toy = Toy()
    sweep_of(tmp_path, toy).submit()
    assert [len(share.runs) for share in toy.submissions[0].shares] == [5]


def test_a_task_of_a_gpu_holds_what_one_gpu_trains_at_once():
    runs = list(sweep_runs("paper"))
    gpu = Device(torch.device("cuda"), "for tests")
    shared = tasks(runs, gpu)
    assert sorted(run.run_id for task in shared for run in task) == sorted(r.run_id for r in runs)
    stacks = [len(group(task, gpu, n_workers=1)) for task in shared]
    assert max(stacks) == STACKS_A_GPU
    assert len(shared) == -(-len(group(runs, gpu, n_workers=1)) // STACKS_A_GPU)
    assert tasks(runs, CPU) == group(runs, CPU, n_workers=1)
    assert tasks([], gpu) == []


def test_no_more_jobs_at_once_than_the_cluster_takes(tmp_path):
    toy = Toy(largest=2)
    sweep_of(tmp_path, toy, runs_per_job=1).finish()
    assert [len(batch.shares) for batch in toy.submissions] == [2, 2, 1]


def test_live_jobs_are_adopted(tmp_path):
    toy = Toy(*["stay"] * 3)
    assert sweep_of(tmp_path, toy).submit() == (5, 0)
    assert sweep_of(tmp_path, toy).submit() == (5, 0)
    assert {run.seed for run in live_runs(tmp_path, toy.alive())} == {0, 1, 2, 3, 4}
    sweep_of(tmp_path, toy).finish()
    assert len(toy.submissions) == 1


def test_a_lost_job_is_tried_again_run_by_run(tmp_path):
    toy, said = Toy("die"), []
    outcomes = sweep_of(tmp_path, toy, RUNS[:2], said).finish()
    assert all(isinstance(outcome, Result) for outcome in outcomes)
    assert [[len(t.runs) for t in batch.shares] for batch in toy.submissions] == [[2], [1, 1]]
    assert [share.attempt for share in toy.submissions[1].shares] == [2, 2]
    assert "a job ended without a new epoch, tried again" in said[0]


def test_attempts_have_a_limit_and_can_be_renewed(tmp_path):
    toy = Toy(*["die"] * MAX_ATTEMPTS)
    (failure,) = sweep_of(tmp_path, toy, RUNS[:1]).finish()
    assert isinstance(failure, Failure)
    assert f"ended {MAX_ATTEMPTS} times in a row without a new epoch" in failure.error
    assert len(toy.submissions) == MAX_ATTEMPTS
    (kept,) = sweep_of(tmp_path, toy, RUNS[:1]).finish()
    assert kept == failure
    (result,) = sweep_of(tmp_path, toy, RUNS[:1], retry_failed=True).finish()
    assert isinstance(result, Result)
    assert toy.submissions[-1].shares[0].attempt == 1


def test_an_attempt_with_a_new_epoch_does_not_count(tmp_path):
    """As under a time limit: the runs stay together and the count begins anew."""
    toy, said = Toy("stay", "die"), []
    sweep = sweep_of(tmp_path, toy, RUNS[:2], said)
    sweep.submit()
    short = [replace(run, protocol=replace(PROTOCOL, max_epochs=1)) for run in RUNS[:1]]
    sweep_of(tmp_path, Toy(), short).finish()
    line = (RunFolder(tmp_path, short[0]).path / "history.jsonl").read_text()
    folder = RunFolder(tmp_path, RUNS[0])
    folder.create()
    (folder.path / "history.jsonl").write_text(line)
    sweep.finish()
    assert "a job ended early, its runs continue" in said[0]
    (share,) = toy.submissions[-1].shares
    assert (share.attempt, share.epochs, len(share.runs)) == (1, 1, 2)


def test_what_never_reached_the_queue_is_handed_over(tmp_path):
    """The submitter was killed after it wrote the batch."""
    toy = Toy()
    sweep_of(tmp_path, toy).submit()
    toy.waiting.clear()
    (toy.submissions[0].folder / "submitted").unlink()
    again = Toy()
    sweep_of(tmp_path, again).finish()
    assert again.submissions[0].shares[0].attempt == 1


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (["vanish"], "ended without a trace in"),
        (["error no CUDA here"], "no CUDA here"),
        (["log", "log"], "did not come up on a node, on toy as toy: python: not found"),
    ],
)
def test_what_a_person_must_mend_is_told_once(tmp_path, what, message):
    toy = Toy(*what)
    with pytest.raises(ClusterError, match=message) as error:
        sweep_of(tmp_path, toy, RUNS[:1]).finish()
    assert "nothing was resubmitted" in str(error.value)
    assert len(toy.submissions) == len(what)
    (result,) = sweep_of(tmp_path, toy, RUNS[:1]).finish()
    assert isinstance(result, Result)


def test_held_jobs_are_released_a_few_times(tmp_path):
    toy, said = Toy(*["hold"] * (MAX_RELEASES + 1)), []
    (result,) = sweep_of(tmp_path, toy, RUNS[:1], said).finish()
    assert isinstance(result, Result)
    assert toy.released == MAX_RELEASES
    assert "held again and again" in " ".join(said)


def test_cancelled_runs_are_not_handed_over_again_by_whoever_watches(tmp_path):
    toy = Toy(*["stay"] * 20)
    watcher = sweep_of(tmp_path, toy)
    watcher.submit()
    assert cancel(RUNS[:1], tmp_path, toy) == 1
    assert cancel(RUNS[:1], tmp_path, toy) == 0
    with pytest.raises(ClusterError, match="was cancelled; run the command again to continue"):
        watcher.finish()
    toy.instead.clear()
    assert len(sweep_of(tmp_path, toy).finish()) == 5
    assert len(toy.submissions) == 2


def test_a_refusal_leaves_nothing_behind(tmp_path):
    toy = Toy()
    toy.refuse = ["Slurm refused: invalid partition"]
    with pytest.raises(ClusterError, match="invalid partition"):
        sweep_of(tmp_path, toy).finish()
    assert not Ledger(tmp_path).batches()


def test_a_refusal_while_others_run_is_waited_out(tmp_path):
    toy, said = Toy("stay", largest=1), []
    sweep_of(tmp_path, toy, RUNS[:1]).submit()
    toy.refuse = ["Slurm refused: too many jobs"]
    outcomes = sweep_of(tmp_path, toy, RUNS[:2], said).finish()
    assert all(isinstance(outcome, Result) for outcome in outcomes)
    assert said[0] == "Slurm refused: too many jobs; tried again later"


def test_a_lasting_refusal_ends_the_wait(tmp_path):
    toy = Toy("die")
    sweep = sweep_of(tmp_path, toy, RUNS[:1])
    sweep.submit()
    toy.refuse = ["Slurm refused: account expired"] * 10
    with pytest.raises(ClusterError, match="account expired"):
        sweep.finish()
    assert len(toy.refuse) == 7


class Away(Toy):
    """An executor whose queue cannot be asked at the looks that are given by number."""

    def __init__(self, *looks: int) -> None:
        super().__init__()
        self.looks, self.n_looks = looks, 0

    def alive(self) -> dict[Handle, Job]:
        self.n_looks += 1
        if self.n_looks in self.looks:
            raise ClusterError("Slurm refused: Unable to contact slurm controller")
        return super().alive()


def test_a_controller_that_is_away_is_waited_for_later_on(tmp_path):
    toy, said = Away(2, 3, 4), []
    (result,) = sweep_of(tmp_path, toy, RUNS[:1], said).finish()
    assert isinstance(result, Result)
    assert len(toy.submissions) == 1
    assert [text for text in said if "Unable to contact" in text] == [
        "Slurm refused: Unable to contact slurm controller; waiting, running jobs continue"
    ]


def test_a_controller_that_is_away_at_the_beginning_is_told(tmp_path):
    with pytest.raises(ClusterError, match="Unable to contact"):
        sweep_of(tmp_path, Away(1)).finish()
