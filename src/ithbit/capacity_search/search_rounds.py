"""The search over a store: the state of each cell's search, and rounds that advance all cells.

A search stores nothing but the runs. Its state is derived from the store each time: the same
lengths are tried in the same order, as far as their runs have ended. Each round trains the next
runs of all open cells together, so that a GPU has enough to do.

A run *succeeds* if it is solved (right on every held-out sample in some epoch) and no wrong answer
of its final weights is known, neither on the structured inputs that training ends with nor on those
that `verify` tried. Runs at the lower end of a bracket are verified before the bracket counts as
final. A run that diverged has failed; one that could not be run, e.g. for lack of memory, says
nothing about learning.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from textwrap import shorten

from ithbit.capacity_search.search import (
    Bracket,
    LengthResult,
    SearchSettings,
    Try,
    bracket,
    replay,
)
from ithbit.display import pluralize
from ithbit.engine.device import Device
from ithbit.engine.outcomes import forget_failures
from ithbit.errors import StoreError
from ithbit.families import family_named
from ithbit.spec import ModelSpec, Protocol, RunSpec, cell
from ithbit.store.folder import RunFolder
from ithbit.store.reading import check_kind, read_verification
from ithbit.store.records import Failure, Result, VerificationRecord
from ithbit.verification.record_merging import is_enough
from ithbit.verification.run_verification import ALWAYS, verify_run

# Most runs are still wrong somewhere at their first perfect epoch, so a run continues until its
# held-out loss is small: half as many epochs again; the paper's 1e-6 takes several times that.
PROTOCOL = Protocol(examples="mixed", stop_loss=1e-3, max_epochs=200)
BUDGET = 1 << 16  # inputs tried in the search for a wrong answer; up to n = 16 all of them
GPU_MINUTES = 0.75  # per round: runs not done by then continue in the next, with new ones


@dataclass(frozen=True)
class SearchState:
    """The state of the search of one cell: the lengths settled, in order, and what comes next.

    `model` may have any length. The bracket is final when no run is left to train or to verify and
    none is stuck.
    """

    model: ModelSpec
    tried: tuple[LengthResult, ...] = ()
    trying: int | None = None
    train: tuple[RunSpec, ...] = ()
    verify: tuple[RunSpec, ...] = ()
    stuck: tuple[Failure, ...] = ()  # wanted runs that could not be run or verified
    verdicts: tuple[str, ...] = ()  # of the runs that succeed at the lower end

    @property
    def bracket(self) -> Bracket:
        return bracket({each.n: each.solved for each in self.tried})

    @property
    def lower(self) -> LengthResult | None:
        """The lower end of the bracket."""
        return next((each for each in self.tried if each.n == self.bracket.low), None)

    @property
    def done(self) -> bool:
        return not (self.train or self.verify or self.stuck)

    @property
    def lengths(self) -> str:
        """The lengths settled, in order: + for solved, - for failed."""
        return " ".join(f"{each.n}{'+' if each.solved else '-'}" for each in self.tried)

    def sentence(self) -> str:
        """The state in one line."""
        model, now = self.model, "done"
        if self.train:
            rates = sorted({run.protocol.learning_rate for run in self.train})
            at = ", ".join(f"{rate:g}" for rate in rates)
            now = f"n = {self.trying} at {at}, {pluralize(len(self.train), 'run')}"
        elif self.stuck:
            why = shorten(self.stuck[0].error, 200, placeholder="…")
            now = f"n = {self.trying} cannot be settled: {why}"
        name = family_named(model.family).label if model.code else model.family
        head = f"{model.task} {name} L{model.n_layers} d{model.d_model}"
        return ": ".join(filter(None, (head, self.lengths, now)))


@dataclass
class Search:
    """One search over one store."""

    ask: SearchSettings
    store: Path
    protocol: Protocol = PROTOCOL
    _ended: dict[RunSpec, Result | Failure] = field(default_factory=dict)

    def sentence(self) -> str:
        """What counts as solved, in a sentence."""
        ask, protocol = self.ask, self.protocol
        rates = ", ".join(f"{rate:g}" for rate in ask.rates)
        return (
            f"A length counts as solved if {ask.need} of {pluralize(len(ask.seeds), 'seed')} "
            f"succeed within {pluralize(protocol.max_epochs, 'epoch')} of {protocol.examples} "
            f"examples, at the best of the learning rates {rates}, and are not refuted; until a "
            "search is done, if the first seeds do. Observed, not proved."
        )

    def runs(self, model: ModelSpec, n: int) -> dict[Try, RunSpec]:
        """All runs of a cell at one length, whether ever needed or not."""
        at_n, seeds = replace(model, n_bits=n), self.ask.seeds
        protocols = [replace(self.protocol, learning_rate=rate) for rate in self.ask.rates]
        runs = [run for protocol in protocols for run in cell(at_n, protocol, seeds)]
        return {(run.protocol.learning_rate, run.seed): run for run in runs}

    def state(self, model: ModelSpec) -> SearchState:
        """The state of the search of a cell according to the store."""
        check_kind(self.store)
        settled, trying, tries = replay(lambda n: self._successes(model, n), self.ask)
        if trying is None:
            return self._with_verdicts(SearchState(model, settled))
        runs = self.runs(model, trying)
        outcomes = {runs[each]: self._ended.get(runs[each]) for each in tries}
        train = tuple(run for run, outcome in outcomes.items() if outcome is None)
        stuck = tuple(outcome for outcome in outcomes.values() if isinstance(outcome, Failure))
        return SearchState(model, settled, trying, train, stuck=stuck)

    def _with_verdicts(self, state: SearchState) -> SearchState:
        """A narrow bracket with the verdicts and the unverified runs at its lower end."""
        model, low = state.model, state.lower
        if low is None:
            return state
        runs = self.runs(model, low.n)
        successful = [each for each, does in self._successes(model, low.n).items() if does]
        records = {
            runs[each]: self._record(runs[each]) for each in successful if each[0] == low.rate
        }
        verified = {run: record for run, record in records.items() if record is not None}
        enough = {run for run, record in verified.items() if is_enough(record, BUDGET, count=False)}
        verdicts = tuple(record.found.verdict for record in verified.values())
        verify = tuple(run for run in records if run not in enough)
        return replace(state, verify=verify, verdicts=verdicts)

    def _successes(self, model: ModelSpec, n: int) -> dict[Try, bool]:
        """Whether each run of a length succeeded, for the runs that finished or diverged."""
        successes = {}
        for each, run in self.runs(model, n).items():
            if run not in self._ended and (ended_outcome := RunFolder(self.store, run).outcome()):
                self._ended[run] = ended_outcome
            done = self._ended.get(run)
            if isinstance(done, Result) or (done is not None and done.diverged):
                successes[each] = self._is_right(run, done)
        return successes

    def _is_right(self, run: RunSpec, outcome: Result | Failure) -> bool:
        if isinstance(outcome, Failure) or not outcome.solved:
            return False
        record = self._record(run)  # knows more than the structured inputs, which it tries too
        return record.found.verdict != "refuted" if record else not outcome.structured_wrong

    def _record(self, run: RunSpec) -> VerificationRecord | None:
        return read_verification(str(self.store / run.folder))

    def retry(self, model: ModelSpec) -> None:
        """Forget the failures that a cell is stuck at, so that those runs are tried again."""
        for run in forget_failures([each.spec for each in self.state(model).stuck], self.store):
            del self._ended[run]

    def verified(self, model: ModelSpec, device: Device) -> SearchState:
        """The state of a cell after verifying the lower end of its bracket, if it has one. If the
        weights of a run there cannot be read, the cell is stuck; the other cells continue."""
        while (state := self.state(model)).verify:
            for run in state.verify:
                try:
                    verify_run(self.store / run.folder, device, BUDGET, always=ALWAYS)
                except StoreError as error:
                    failure = Failure(run, str(error), traceback="", epoch=0, kind="error")
                    return replace(state, trying=run.model.n_bits, stuck=(failure,))
        return state


Train = Callable[[list[RunSpec]], object]


def rounds(
    searches: Mapping[ModelSpec, Search], train: Train, device: Device, until: float
) -> Iterator[list[SearchState]]:
    """Advance all cells round by round until all brackets are final or time is up; yield where
    they stand before every round and at the end. Runs that could not be run before are retried."""
    if time.monotonic() < until:
        for model, search in searches.items():
            search.retry(model)
    while True:
        states = [search.verified(model, device) for model, search in searches.items()]
        yield states
        runs = [run for state in states for run in state.train]
        if not runs or time.monotonic() >= until:
            return
        train(runs)


def round_minutes(device: Device, until: float) -> float | None:
    """Time limit of a round in minutes; None if it has none."""
    most = GPU_MINUTES if device.is_cuda else math.inf
    minutes = min(most, max(0.0, until - time.monotonic()) / 60)
    return None if math.isinf(minutes) else minutes
