"""Where training events go: to the progress board, a function given as `watch`, and TensorBoard.

A `watch` function gets an `Event`: the run's spec, and as `what` its new epoch, its result, its
failure, or a remark. Calls come one at a time, from the process that started the training. That is
all a tracker needs; TensorBoard below is one such function.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ithbit.errors import OutputError, SpecError
from ithbit.shown import counted
from ithbit.spec import RunSpec
from ithbit.store.records import Epoch

if TYPE_CHECKING:
    from ithbit.engine.how import Event

Watch = Callable[["Event"], None]


class TensorBoard:
    """Writes every epoch's numbers to `folder`/RUN FOLDER; closes a run's file when the run ends.

    Epochs that an earlier command trained are not written again, so a resumed run continues its
    curve.
    """

    def __init__(self, folder: Path) -> None:
        if find_spec("tensorboard") is None:
            raise SpecError("--tensorboard needs TensorBoard: pip install 'ithbit[tensorboard]'")
        if folder.exists() and not folder.is_dir():
            raise OutputError(f"{folder} is a file; TensorBoard needs a folder")
        self.folder = folder
        self._writers: dict[str, Any] = {}

    def __call__(self, event: "Event") -> None:
        from torch.utils.tensorboard.writer import SummaryWriter

        run = event.run.folder
        if isinstance(event.what, Epoch):
            if run not in self._writers:
                self._writers[run] = SummaryWriter(str(self.folder / run))
            numbers = asdict(event.what)
            step = numbers.pop("epoch")
            for name, value in numbers.items():
                self._writers[run].add_scalar(name, value, step)
        elif not isinstance(event.what, str) and run in self._writers:
            self._writers.pop(run).close()

    def close(self) -> None:
        """Close the files of runs that have not ended."""
        while self._writers:
            self._writers.popitem()[1].close()


@contextmanager
def watching(
    runs: Sequence[RunSpec],
    remark: str,
    watch: Watch | None,
    tensorboard: str | Path | None,
    progress: bool,
) -> Iterator[Watch]:
    """The function that the engine calls with every event.

    It passes events to the board (with `progress`), to TensorBoard, and to the user's `watch`.
    """
    with ExitStack() as stack:
        told: list[Watch] = []
        if tensorboard is not None:
            told.append(stack.enter_context(closing(TensorBoard(Path(tensorboard)))))
        if watch is not None:
            told.append(watch)
        if progress:
            from ithbit.api.progress import Board

            board = stack.enter_context(Board(runs))
            board.console.print(f"{counted(len(runs), 'run')}; {remark}", style="dim", markup=False)
            told.insert(0, board.watch)

        def tell(event: "Event") -> None:
            for each in told:
                each(event)

        yield tell
