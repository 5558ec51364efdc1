"""Outcomes of runs in the store: the one place that decides which runs to train."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from ithbit.engine.memory import check_memory
from ithbit.engine.steppers.choice import check_switches
from ithbit.engine.training_context import Event, TrainingContext
from ithbit.errors import StoreError, first_of
from ithbit.spec import RunSpec
from ithbit.store.folder import RunFolder
from ithbit.store.records import Failure, Result
from ithbit.store.status import check_store

_NAMED = 5  # damaged runs named in a message


def to_train(
    runs: Sequence[RunSpec], context: TrainingContext, retry_failed: bool
) -> tuple[list[RunSpec], int]:
    """The runs to train, and the most memory that one of them needs; raises if they cannot be.

    The watcher receives the outcomes of the others, which are only read: also from a store that is
    not writable, and whatever memory they took.
    """
    check_switches(runs, context)
    outcomes = _outcomes(context.store, runs)
    # Once per call: no run is retried forever.
    failed = {run for run in runs if retry_failed and isinstance(outcomes[run], Failure)}
    todo = [run for run in runs if outcomes[run] is None or run in failed]
    needed = check_memory(todo, context)
    forget_failures(failed, context.store)
    for run, outcome in outcomes.items():
        if outcome is not None and run not in failed:
            context.watch(Event(run, outcome))
    if todo:
        check_store(context.store)
    return todo, needed


def record_failure(store: Path, run: RunSpec, error: str) -> Failure:
    """Record that a run could not be trained, whether or not it already has a folder."""
    folder = RunFolder(store, run)
    folder.create()
    failure = Failure(run, error, "", len(folder.history()), "error")
    folder.fail(failure)
    return failure


def forget_failures(runs: Iterable[RunSpec], store: Path) -> list[RunSpec]:
    """Clear the failures among these runs, so that they are tried again; return those runs."""
    folders = [RunFolder(store, run) for run in runs]
    failed = [folder for folder in folders if isinstance(folder.outcome(), Failure)]
    for folder in failed:
        folder.forget_failure()
    return [folder.run for folder in failed]


def _outcomes(store: Path, runs: Iterable[RunSpec]) -> dict[RunSpec, Result | Failure | None]:
    """Each run's outcome in the store; one error reports all damaged runs."""
    outcomes, damaged = {}, []
    for folder in (RunFolder(store, run) for run in runs):
        try:
            outcomes[folder.run] = folder.outcome()
        except StoreError as error:
            damaged.append((folder.path, error))
    if len(damaged) == 1:
        raise damaged[0][1]
    if damaged:
        names = first_of([str(path) for path, _ in damaged], _NAMED)
        raise StoreError(
            f"{len(damaged)} folders hold no readable run (`ithbit status` says why); they are "
            "left as they are: restore the files, or move the folders away to train again: "
            f"{names}"
        )
    return outcomes
