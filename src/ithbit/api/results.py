"""What training returns: the outcome of every run, and how it is shown."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ithbit.shown import Shown, counted
from ithbit.store.reading import read_history
from ithbit.store.records import Failure, Result

_NAMED = 5  # failed runs listed by name in a summary


class Results(Shown, list[Result | Failure]):
    """The outcome of every run, in order: a list that prints as a table of seeds, or as a count."""

    def __init__(self, outcomes: Iterable[Result | Failure], store: Path) -> None:
        super().__init__(outcomes)
        self.store = store
        for outcome in self:  # each can then be loaded without naming the store
            object.__setattr__(outcome, "store", store.absolute())

    @property
    def failures(self) -> list[Failure]:
        return [outcome for outcome in self if isinstance(outcome, Failure)]

    @property
    def results(self) -> list[Result]:
        return [outcome for outcome in self if isinstance(outcome, Result)]

    @property
    def solved(self) -> int:
        """How many were right on every held-out sample in some epoch, whatever came after."""
        diverged = (str(self.store / f.spec.folder) for f in self.failures if f.diverged)
        return sum(result.solved for result in self.results) + sum(
            any(epoch.held_out_accuracy == 1.0 for epoch in read_history(folder))
            for folder in diverged
        )

    def to_json(self) -> list[dict[str, Any]]:
        return [outcome.to_json() for outcome in self]

    def parts(self) -> Iterator[Any]:
        from rich.text import Text

        diverged = sum(failure.diverged for failure in self.failures)
        not_run = len(self.failures) - diverged  # which says nothing about learning
        if len({(outcome.spec.model, outcome.spec.protocol) for outcome in self}) == 1:
            yield self._table()
            by_error = defaultdict(list)
            for failure in self.failures:
                by_error[failure.error].append(str(failure.spec.seed))
            for error, seeds in by_error.items():
                which = "seed" if len(seeds) == 1 else "seeds"
                yield Text(f"{which} {', '.join(seeds)} failed: {error}")
            for result in self.results:
                said = result.structured_sentence()
                if said and result.solved:
                    yield Text(f"seed {result.spec.seed}: solved on samples, {said}")
            left = f"; {not_run} could not be run and are not counted" if not_run else ""
            said = (
                f"{self.solved} of {counted(len(self) - not_run, 'seed')} reached held-out "
                f"accuracy 1.0 (observed on samples, not proved){left}"
            )
            if not_run == len(self):
                said = "No seed could be run, which says nothing about learning"
            yield Text(f"{said}. Run folders: {self.store}/")
            return
        apart = f" {diverged} diverged," if diverged else ""
        yield (
            f"{counted(len(self), 'run')}: {self.solved} solved,{apart} {not_run} failed. "
            f"Run folders: {self.store}/"
        )
        for failure in self.failures[:_NAMED]:
            yield f"  failed: {failure.spec.name}: {failure.error}"
        if len(self.failures) > _NAMED:
            yield f"  failed: … and {len(self.failures) - _NAMED} more"

    def _table(self) -> Any:
        from rich.table import Table

        run = self[0].spec
        m = run.model
        title = f"{m.task.upper()} {m.family} L={m.n_layers} n={m.n_bits}, {m.positions} positions"
        table = Table(title=f"{title} ({run.group})")
        # As many columns as fit in eighty characters.
        heads = ("seed", "solved", "best acc.", "epochs", "ended by", "at n/2", "at 2n", "s/epoch")
        for head in heads:
            table.add_column(head, justify="right")
        for outcome in self:
            if not isinstance(outcome, Result):
                table.add_row(str(outcome.spec.seed), "diverged" if outcome.diverged else "failed")
                continue
            half, double = outcome.half_length_accuracy, outcome.double_length_accuracy
            table.add_row(
                str(outcome.spec.seed),
                f"epoch {outcome.first_solved_epoch}" if outcome.solved else "no",
                f"{outcome.max_accuracy:.4f}",
                str(outcome.epochs),
                outcome.stopped_by,
                "–" if half is None else f"{half:.3f}",
                "–" if double is None else f"{double:.3f}",
                f"{outcome.seconds_per_epoch:.3f}",
            )
        return table
