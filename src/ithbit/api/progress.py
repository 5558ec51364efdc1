"""Observers of a command at work: the user, by a live board or a bar on a terminal and in a
notebook and by occasional lines elsewhere; a function given as `watch`; and TensorBoard.

A `watch` function gets an `Event`: the run's spec, and as `what` its new epoch, its result, its
failure, or a remark. Calls come one at a time, from the process that started the training. That is
all a tracker needs; TensorBoard below is one such function.
"""

import math
import os
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from rich.console import Console, JustifyMethod, RenderableType
from rich.live import Live
from rich.progress import Progress
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ithbit.api.arguments import Observers, Watch
from ithbit.display import clock, in_one_line, pluralize, printable, say, share_text
from ithbit.engine.tightening import Tightening
from ithbit.errors import OutputError, SpecError
from ithbit.families import family_named
from ithbit.spec import RunSpec
from ithbit.store.records import Epoch, Failure, Result
from ithbit.store.writing import check_writable
from ithbit.sweeps.estimate import nominal_epoch_seconds

if TYPE_CHECKING:
    from ithbit.engine.training_context import Event  # which would load torch

_ROWS = 12  # runs shown at once
_QUIET_SECONDS = 15.0  # between two lines where there is no terminal
_RECENT, _FEWEST = (0.15, 0.25, 0.4), 4  # shares of recent epochs used to predict; at least four
_AGREE = 1.3  # factor within which the three predictions must agree
_EVENTS = "events.out.tfevents"  # how names of files that TensorBoard reads begin
_FLAT = 1e-3  # fall of the log loss per epoch below which it counts as flat


@dataclass
class _Line:
    """What is known of one run."""

    run: RunSpec
    last: Epoch | None = None
    outcome: Result | Failure | None = None
    first_seen: float = 0.0
    first_epoch: int = 0
    last_seen: float = 0.0
    losses: list[float] = field(default_factory=list)  # log held-out losses
    epochs: list[Epoch] = field(default_factory=list)  # of a run that is trained for consistency

    def take(self, epoch: Epoch, now: float) -> None:
        """Record one more epoch."""
        if self.last is None:
            self.first_seen, self.first_epoch = now, epoch.epoch
        self.last, self.last_seen = epoch, now
        self.losses.append(math.log(max(epoch.held_out_loss, sys.float_info.min)))
        if self.run.protocol.consistency:
            self.epochs.append(epoch)

    @property
    def foreseen(self) -> float | None:
        """Epochs until the loss reaches the stopping loss, if it keeps falling at its recent rate;
        with consistency, those of the tightening that are left once the run is solved.

        None where the end cannot be predicted: the rate was not steady, the last epoch comes first,
        or the run stops when it is solved. *Empirical*: in the second halves of the paper's runs
        that stopped by their loss, a number is given after a quarter of the epochs, and nine out of
        ten are right within a factor of two; for runs that stopped when solved fewer than half
        would be, so none is given.
        """
        protocol, epochs_done = self.run.protocol, self.last.epoch if self.last else 0
        if protocol.consistency:
            return Tightening.after(self.epochs).epochs_left
        if len(self.losses) < _FEWEST or not protocol.stop_loss or protocol.stop_when_solved:
            return None
        to_fall = math.log(protocol.stop_loss) - self.losses[-1]
        by_share = [max(1.0, to_fall / self._slope(share)) for share in _RECENT]
        agree = max(by_share) <= _AGREE * min(by_share)
        return by_share[0] if agree and by_share[0] <= protocol.max_epochs - epochs_done else None

    def _slope(self, share: float) -> float:
        """The change of the log loss per epoch, over the last `share` of the epochs."""
        recent = self.losses[-max(_FEWEST, int(share * len(self.losses))) :]
        half = len(recent) // 2
        slope = (median(recent[half:]) - median(recent[:half])) / (len(recent) / 2)
        return min(slope, -_FLAT)

    @property
    def epochs_left(self) -> float:
        """The predicted number; without a prediction, all that the protocol allows."""
        epochs_done = self.last.epoch if self.last else 0
        return (
            self.run.protocol.max_epochs - epochs_done if self.foreseen is None else self.foreseen
        )

    @property
    def seconds_left(self) -> float | None:
        if self.last is None or self.last.epoch == self.first_epoch:
            return None
        pace = (self.last_seen - self.first_seen) / (self.last.epoch - self.first_epoch)
        return pace * self.epochs_left


class Board:
    """Progress of a set of runs on standard error; `watch` is its only input. Where it is shown
    `live`, enter that context."""

    def __init__(self, runs: Sequence[RunSpec]) -> None:
        self.console = Console(stderr=True)
        self._lines = {run.run_id: _Line(run) for run in runs}
        self._started = self._spoken = time.monotonic()
        self._begun: float | None = None  # when the first epoch ended
        self._work = 0.0  # nominal seconds of the epochs trained since
        # In a notebook rich draws through ipywidgets; without them, lines are printed.
        in_notebook = self.console.is_jupyter and find_spec("ipywidgets") is not None
        self.live: Live | None = None
        if self.console.is_terminal or in_notebook:
            self.live = Live(get_renderable=self._table, console=self.console, transient=True)

    def watch(self, event: "Event") -> None:
        """Take in an event from the engine."""
        line, now = self._lines[event.run.run_id], time.monotonic()
        match event.what:
            case Epoch():
                line.take(event.what, now)
                if self._begun is None:  # until now, processes were starting up
                    self._begun = now
                else:
                    self._work += nominal_epoch_seconds(event.run)
            case Result() | Failure():
                line.outcome = event.what
                if not self.live or isinstance(event.what, Failure):
                    self._say(f"{event.run.name}: {_outcome_text(event.what)}")
            case remark:
                self._say(remark)
        if not self.live and now - self._spoken >= _QUIET_SECONDS:
            self._say(self._summary())

    def _say(self, text: str) -> None:
        self._spoken = time.monotonic()
        if self.live:
            self.console.print(printable(text), style="yellow", markup=False)
        else:
            say(text, file=sys.stderr)

    def _summary(self) -> str:
        active = [line for line in self._lines.values() if line.last and not line.outcome]
        epochs = ", ".join(
            f"{line.run.name} epoch {line.last.epoch} "
            f"accuracy {share_text(line.last.held_out_accuracy, 3)}"
            for line in active[:2]
            if line.last
        )
        return self._headline() + (f"; {epochs}" if epochs else "")

    def _headline(self) -> str:
        n_done = sum(line.outcome is not None for line in self._lines.values())
        elapsed = time.monotonic() - self._started
        failed = sum(isinstance(line.outcome, Failure) for line in self._lines.values())
        among = f" ({failed} failed)" if failed else ""
        counts = f"{n_done} of {pluralize(len(self._lines), 'run')} done{among}, {clock(elapsed)}"
        seconds = None if n_done == len(self._lines) else self._seconds_left()
        return counts if seconds is None else f"{counts}, {self._about} {clock(seconds)} left"

    @property
    def _about(self) -> str:
        """How to read the time left: an estimate if a run has ended or every open run's end is
        predicted, else an upper limit."""
        lines = self._lines.values()
        some_ended = any(isinstance(line.outcome, Result) for line in lines)
        all_foreseen = all(line.outcome or line.foreseen is not None for line in lines)
        return "about" if some_ended or all_foreseen else "at most"

    def _seconds_left(self) -> float | None:
        """For all runs: at the pace so far, assuming that waiting runs take as many epochs as the
        finished ones; at least the time that the slowest active run still needs."""
        if not self._work or self._begun is None:
            return None
        results = [x.outcome for x in self._lines.values() if isinstance(x.outcome, Result)]
        shares = [result.epochs / result.spec.protocol.max_epochs for result in results]
        share = sum(shares) / len(shares) if shares else 1.0
        open_lines = [line for line in self._lines.values() if line.outcome is None]
        work = sum(
            nominal_epoch_seconds(line.run) * line.epochs_left * (1.0 if line.last else share)
            for line in open_lines
        )
        alone = max((line.seconds_left or 0.0 for line in open_lines), default=0.0)
        return max(alone, work * (time.monotonic() - self._begun) / self._work)

    def _table(self) -> Table:
        table = Table(title=self._headline(), box=None)
        for name in ("run", "epoch", "", "loss", "accuracy", "left"):
            side: JustifyMethod = "left" if name in ("run", "") else "right"
            table.add_column(name, justify=side, no_wrap=name == "run")
        lines = list(self._lines.values())
        active = [line for line in lines if line.last and not line.outcome]
        waiting = [line for line in lines if not line.last and not line.outcome]
        finished = [line for line in lines if line.outcome]
        for line in (active + waiting + finished[::-1])[:_ROWS]:
            table.add_row(*_cells(line))
        return table


def _label(run: RunSpec) -> str:
    """The run's name shortened to fit an eighty-column terminal, always with the seed."""
    model = run.model
    family = family_named(model.family).label if model.code else model.family
    return f"{model.task} {printable(family[-14:])} L{model.n_layers} n{model.n_bits} s{run.seed}"


def _cells(line: _Line) -> list[RenderableType]:
    label = Text(_label(line.run))
    match line.outcome:
        case Result() as done:
            best, ending = share_text(done.max_accuracy), "solved" if done.solved else "not solved"
            return [label, str(done.epochs), "", f"{done.final_loss:.2e}", best, ending]
        case Failure():
            return [label, "", "", "", "", "failed"]
    if line.last is None:
        return [label, "", "", "", "", "waiting"]
    last, limit = line.last, line.run.protocol.max_epochs
    seconds = line.seconds_left
    return [
        label,
        f"{last.epoch}/{limit}",
        ProgressBar(total=limit, completed=last.epoch, width=8),
        f"{last.held_out_loss:.2e}",
        share_text(last.held_out_accuracy),
        "" if seconds is None else ("≤ " if line.foreseen is None else "") + clock(seconds),
    ]


def _outcome_text(outcome: Result | Failure) -> str:
    if isinstance(outcome, Failure):
        return f"failed: {in_one_line(outcome.error)}"
    if outcome.solved:
        return f"solved in epoch {outcome.first_solved_epoch}, stopped at {outcome.epochs}"
    best = share_text(outcome.max_accuracy)
    return f"not solved in {pluralize(outcome.epochs, 'epoch')}, best {best}"


class TensorBoard:
    """Appends every epoch's numbers to a file in `folder`/RUN FOLDER; see `watching`.

    Epochs that an earlier command trained are not written again, so a resumed run continues its
    curve. Each epoch is written at once and by this thread (TensorBoard's own writer has another),
    so that a full disk is noticed here: it ends the curves, not the runs.
    """

    def __init__(self, folder: Path) -> None:
        if find_spec("tensorboard") is None:
            raise SpecError("--tensorboard needs TensorBoard: pip install 'ithbit[tensorboard]'")
        if folder.exists() and not folder.is_dir():
            raise OutputError(f"{folder} is a file; TensorBoard needs a folder")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(f"cannot write {folder}: {error.strerror or error}") from error
        check_writable(folder / _EVENTS)
        self.folder, self._broken = folder, False
        self._file = f"{_EVENTS}.{time.time():.0f}.{socket.gethostname()}.{os.getpid()}"

    def __call__(self, event: "Event") -> None:
        if self._broken or not isinstance(event.what, Epoch):
            return
        try:
            self._write(self.folder / event.run.folder / self._file, event.what)
        except OSError as error:
            self._broken = True
            why = f"cannot write {self.folder}: {error.strerror or error}"
            say(f"ithbit: {why}; training continues without TensorBoard", file=sys.stderr)

    def _write(self, file: Path, epoch: Epoch) -> None:
        from tensorboard.compat.proto.event_pb2 import Event as Record
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        numbers = asdict(epoch)
        step = numbers.pop("epoch")
        values = [Summary.Value(tag=name, simple_value=value) for name, value in numbers.items()]
        records = [Record(wall_time=time.time(), step=step, summary=Summary(value=values))]
        file.parent.mkdir(exist_ok=True)
        if not file.exists():
            records.insert(0, Record(wall_time=time.time(), file_version="brain.Event:2"))
        with open(file, "ab") as out:
            for record in records:
                RecordWriter(out).write(record.SerializeToString())


@contextmanager
def watching(runs: Sequence[RunSpec], remark: str, observers: Observers) -> Iterator[Watch]:
    """The function that the engine calls with every event.

    It passes events to the board (with `progress`), to TensorBoard, and to the user's `watch`, in
    this order.
    """
    with ExitStack() as stack:
        receivers: list[Watch] = []
        if observers.tensorboard is not None:
            receivers.append(TensorBoard(Path(observers.tensorboard)))
        if observers.watch is not None:
            receivers.append(observers.watch)
        if observers.progress:
            board = Board(runs)
            stack.enter_context(board.live or nullcontext())
            board.console.print(
                f"{pluralize(len(runs), 'run')}; {remark}", style="dim", markup=False
            )
            receivers.insert(0, board.watch)

        def notify(event: "Event") -> None:
            for receive in receivers:
                receive(event)

        yield notify


def bars(progress: bool) -> Progress:
    """Bars on standard error, shown with `progress` on a terminal and in a notebook."""
    console = Console(stderr=True)
    live = progress and (console.is_terminal or console.is_jupyter)
    return Progress(console=console, transient=True, disable=not live)
