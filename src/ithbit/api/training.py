"""Training one configuration, what it returns, and what it trains on."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ithbit.api.arguments import (
    Layer,
    Observers,
    Seeds,
    Watch,
    checked,
    model_of,
    protocol_of,
    renamed,
    seeds_of,
)
from ithbit.display import Columns, Printable, in_one_line, pluralize, share_text
from ithbit.engine.options import TrainingOptions
from ithbit.errors import SpecError, as_int
from ithbit.families import task_named
from ithbit.spec import Protocol, RunSpec, cell
from ithbit.store.reading import check_kind, read_history
from ithbit.store.records import Failure, Result

if TYPE_CHECKING:
    from ithbit.tasks.indexing import Instance

_MOST_SHOWN = 1_000_000  # bits of samples; that many take seconds to print
_NAMED = 5  # failed runs listed by name in a summary


class Results(Printable, list[Result | Failure]):
    """The outcome of every run, in order: a list that prints as a table of seeds, or as a count."""

    def __init__(self, outcomes: Iterable[Result | Failure], store: Path) -> None:
        super().__init__(outcomes)
        self.store = store
        self.solved = self._count_solved()
        # Each outcome can then be loaded without naming the store. Where a record was read is no
        # part of it, neither compared nor stored: so it is no field, and no `replace` can set it.
        for outcome in self:
            object.__setattr__(outcome, "store", store.absolute())

    @property
    def failures(self) -> list[Failure]:
        return [outcome for outcome in self if isinstance(outcome, Failure)]

    @property
    def results(self) -> list[Result]:
        return [outcome for outcome in self if isinstance(outcome, Result)]

    def _count_solved(self) -> int:
        """How many were right on every held-out sample in some epoch, whatever came after; for runs
        that diverged, the history in the store has the epochs."""
        diverged = (str(self.store / f.spec.folder) for f in self.failures if f.diverged)
        return sum(result.solved for result in self.results) + sum(
            any(epoch.held_out_accuracy == 1.0 for epoch in read_history(folder))
            for folder in diverged
        )

    def to_json(self) -> list[dict[str, Any]]:
        return [outcome.to_json() for outcome in self]

    def render(self) -> Iterator[Any]:
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
                yield Text(f"{which} {', '.join(seeds)} failed: {in_one_line(error)}")
            for result in self.results:
                sentence = result.structured_sentence()
                if sentence and result.solved:
                    yield Text(
                        f"seed {result.spec.seed}: solved on samples, {in_one_line(sentence)}"
                    )
            uncounted = f"; {not_run} could not be run and are not counted" if not_run else ""
            summary = (
                f"{self.solved} of {pluralize(len(self) - not_run, 'seed')} reached held-out "
                f"accuracy 1.0 (observed on samples, not proved){uncounted}"
            )
            if not_run == len(self):
                summary = "No seed could be run, which says nothing about learning"
            yield Text(f"{summary}. Run folders: {self.store}/")
            return
        counts = f"{self.solved} solved,{f' {diverged} diverged,' if diverged else ''}"
        yield (
            f"{pluralize(len(self), 'run')}: {counts} {not_run} failed. Run folders: {self.store}/"
        )
        for failure in self.failures[:_NAMED]:
            yield f"  failed: {failure.spec.name}: {in_one_line(failure.error)}"
        if len(self.failures) > _NAMED:
            yield f"  failed: … and {len(self.failures) - _NAMED} more"

    def _table(self) -> Columns:
        run = self[0].spec
        m = run.model
        title = f"{m.task.upper()} {m.family} L={m.n_layers} n={m.n_bits}, {m.positions} positions"
        # As many columns as fit in eighty characters.
        heads = ("seed", "solved", "best acc.", "epochs", "ended by", "at n/2", "at 2n", "s/epoch")
        rows = []
        for outcome in self:
            if not isinstance(outcome, Result):
                rows.append([str(outcome.spec.seed), "diverged" if outcome.diverged else "failed"])
                continue
            half, double = outcome.half_length_accuracy, outcome.double_length_accuracy
            row = [
                str(outcome.spec.seed),
                f"epoch {outcome.first_solved_epoch}" if outcome.solved else "no",
                share_text(outcome.max_accuracy),
                str(outcome.epochs),
                outcome.stopped_by,
                "–" if half is None else share_text(half, 3),
                "–" if double is None else share_text(double, 3),
                f"{outcome.seconds_per_epoch:.3f}",
            ]
            rows.append(row)
        return Columns(f"{title} ({run.group})", heads, rows)


@renamed(compile="compiled")
@checked
def train(
    task: str,
    family: str | Layer,
    *,
    n: int = 8,
    layers: int = 1,
    seeds: Seeds = "0-4",
    positions: str = "polynomial",
    width: int = 16,
    heads: int = 2,
    ff: int = 64,
    lr: float | None = None,
    batch_size: int | None = None,
    max_epochs: int | None = None,
    stop_when_solved: bool = False,
    examples: str | None = None,
    consistency: float | None = None,
    protocol: Protocol | None = None,
    device: str = "auto",
    kernels: str = "auto",
    compiled: str = "auto",
    workers: int | None = None,
    store: str | Path = "runs",
    retry_failed: bool = False,
    tensorboard: str | Path | None = None,
    watch: Watch | None = None,
    progress: bool = False,
) -> Results:
    """Train one configuration under the paper's protocol, several seeds at once.

    Finished runs are read from the store, and unfinished ones continue from their checkpoints: stop
    it at any time and run it again.

    >>> import tempfile, ithbit
    >>> tiny = ithbit.Protocol(batch_size=32, epoch_examples=64, held_out_examples=32, max_epochs=1)
    >>> with tempfile.TemporaryDirectory() as store:
    ...     results = train("rhi", "gru", n=2, seeds=[0, 1], protocol=tiny, store=store, workers=1)
    >>> [(result.spec.seed, result.epochs) for result in results]
    [(0, 1), (1, 1)]
    """
    options = TrainingOptions(device, workers, kernels, compiled, retry_failed)
    model = model_of(task, family, positions, (n, layers, width, heads, ff))
    protocol = protocol_of(
        protocol, max_epochs, stop_when_solved, examples, lr, batch_size, consistency
    )
    runs = cell(model, protocol, seeds_of(seeds))
    return run_here(runs, store, options, Observers(watch, tensorboard, progress))


def run_here(
    runs: list[RunSpec], store: str | Path, options: TrainingOptions, observers: Observers
) -> Results:
    """Train runs on this machine."""
    store = Path(store)
    check_kind(store)

    # These import torch, which takes seconds: report mistakes first.
    from ithbit.api.progress import watching
    from ithbit.sweeps.runner import run_all

    with watching(runs, options.chosen_device.reason, observers) as watch:
        outcomes = run_all(runs, store, options, watch)
    return Results(outcomes, store)


@checked
def params(
    task: str,
    family: str | Layer,
    *,
    n: int = 8,
    layers: int = 1,
    positions: str = "polynomial",
    width: int = 16,
    heads: int = 2,
    ff: int = 64,
) -> int:
    """Count the trained parameters of one configuration.

    >>> params("lhi", "mamba2", layers=2)
    3261
    """
    model = model_of(task, family, positions, (n, layers, width, heads, ff))
    from ithbit.models.classifier import n_parameters

    return n_parameters(model)


class Samples(Printable, list["Instance"]):
    """Instances, in order."""

    def render(self) -> Iterator[str]:
        for number, instance in enumerate(self):
            yield ("\n" if number else "") + " | ".join(instance.tokens)
            yield f"index {instance.index} asks for bit number {instance.index}: {instance.answer}"


@checked
def sample(
    task: str, *, n: int = 8, seed: int = 0, count: int = 1, examples: str | None = None
) -> Samples:
    """Show inputs in readable form: the first training examples of a seed.

    >>> sample("rhi", n=4)
    bit 0 | bit 1 | bit 1 | bit 1 | index 3
    index 3 asks for bit number 3: 1
    """
    known_task = task_named(task)
    n, seed, count = as_int("n", n), as_int("seed", seed), as_int("count", count)
    if n < 1 or seed < 0 or count < 1:
        raise SpecError(
            f"n and count must be at least 1 and the seed at least 0, got n={n}, count={count}, "
            f"seed={seed}"
        )
    if n * count > _MOST_SHOWN:
        raise SpecError(
            f"sample shows at most {_MOST_SHOWN:,} bits, got n={n} with count={count}; take fewer"
        )
    kind = protocol_of(None, examples=examples).examples
    from ithbit.tasks.indexing import Instance
    from ithbit.tasks.sampling import draw_examples, stream_keys

    batch = draw_examples(stream_keys([seed]), n, 0, count, kind)
    rows = zip(batch.bits[0].tolist(), batch.index[0].tolist(), strict=True)
    return Samples(Instance(known_task, tuple(bits), index) for bits, index in rows)
