"""The runs of one spec in progress: all that the loop keeps of them between two epochs.

A run is claimed when it joins the stack and released when it ends. The stack keeps a copy of its
rows as of the last complete epoch; a run is saved and finished from that copy, and returns to it
after a fault.
"""

import math
import time
from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime

from ithbit.display import pluralize
from ithbit.engine.device import Device
from ithbit.engine.optim import AdamState, Plateau
from ithbit.engine.stack import Stack, fresh_state
from ithbit.engine.steppers.choice import choose_stepper, select_faster_stepper, stacking_obstacle
from ithbit.engine.training_context import Event, Notice, TrainingContext, UnfinishedRuns
from ithbit.families import family_named
from ithbit.models.classifier import n_parameters
from ithbit.models.layer_source import layer_for
from ithbit.spec import RunSpec
from ithbit.store.folder import Checkpoint, RunFolder
from ithbit.store.records import Epoch
from ithbit.tasks.indexing import n_tokens

_CPU_TOKENS = 32_768  # tokens per step above which a larger stack no longer helps on a CPU
_CUDA_SEEDS = 64
_CUDA_SCRATCH = 2 << 30  # bytes of working memory for the kernels of one stack
_MAX_SHARES = 512  # rows of partial gradients that the kernels keep per run, at most


def stack_size(run: RunSpec, device: Device) -> int:
    """How many runs to train at once: many on a GPU, only as many as fit its caches on a CPU."""
    if stacking_obstacle(run.model, device) is not None:
        return 1
    model, batch_size = run.model, run.protocol.batch_size
    tokens = batch_size * n_tokens(model.task, model.n_bits)
    if device.is_cuda:
        # A few rows per token for each block and for the backward pass, and the partial gradients;
        # fp32.
        rows = 6 * (model.n_layers + 1) * tokens
        family = family_named(model.family)
        width = max(model.d_model, model.d_state) if family.has_state else model.d_model
        numbers = rows * width + _MAX_SHARES * n_parameters(model)
        return max(1, min(_CUDA_SEEDS, _CUDA_SCRATCH // (4 * numbers)))
    return max(1, _CPU_TOKENS // tokens)


@dataclass(eq=False)
class Progress:
    """A run in progress: what its next epoch depends on, and its folder."""

    folder: RunFolder
    adam: AdamState  # on the host, as of when its stack was built
    plateau: Plateau
    rate: float  # learning rate of the next epoch
    started_at: str
    history: list[Epoch]
    epochs_saved: int
    evaluation_seconds: float = 0.0
    saved: float = field(default_factory=time.monotonic)  # when its state was last written
    claim: ExitStack = field(default_factory=ExitStack)  # closed when the run is released

    @property
    def run(self) -> RunSpec:
        return self.folder.run

    def checkpoint(self, adam: AdamState) -> Checkpoint:
        """The checkpoint of the run; `adam` is its state after the last complete epoch."""
        best, bad_epochs = self.plateau.best, self.plateau.bad_epochs
        return Checkpoint(len(self.history), best, bad_epochs, vars(adam), self.started_at)

    def is_due(self, older_than: float = -math.inf) -> bool:
        """Whether it has new epochs, and was last saved at least `older_than` seconds ago."""
        unsaved = len(self.history) > self.epochs_saved
        return unsaved and time.monotonic() - self.saved >= older_than

    def save(self, adam: AdamState) -> None:
        """Write its state to disk."""
        self.folder.save(self.checkpoint(adam))
        self.epochs_saved, self.saved = len(self.history), time.monotonic()


class CellTraining:
    """Runs of one spec: active in the stack, or waiting for a place in it."""

    def __init__(self, runs: list[RunSpec], context: TrainingContext) -> None:
        self.context = context
        self.waiting = deque(RunFolder(context.store, run) for run in runs)
        self.suspended: deque[Progress] = deque()  # started, but taken out of a stack after a fault
        self.active: list[Progress] = []
        self.busy: list[RunFolder] = []  # held by other processes
        self.size = stack_size(runs[0], context.device)
        # To the stacked models, until the end: after a fault, or because they are faster.
        self.fell_back = False
        self.captured = True  # on a GPU: steps are replayed from a graph
        self.raised: BaseException | None = None  # by the watcher, to stop the training
        self._stack: Stack | None = None
        self.stepper, notices = choose_stepper(
            runs[0], context.device, context.kernels, context.compile
        )
        for folder in self.waiting:
            folder.create()
            if folder.run.model.code:
                layer = layer_for(folder.run.model)
                folder.keep_layer(layer.source, layer.text)
        for notice in notices:
            self.notify(Event(runs[0], Notice(notice)))

    def notify(self, event: Event) -> None:
        try:
            self.context.watch(event)
        except BaseException as error:
            self.raised = error
            raise

    def fill(self) -> bool:
        """Add waiting runs to the stack while there is room; return whether any run is active."""
        while len(self.active) < self.size and (self.suspended or self.waiting):
            self.unstack()
            if self.suspended:
                self.active.append(self.suspended.popleft())
                continue
            folder = self.waiting.popleft()
            with ExitStack() as claim:
                if not claim.enter_context(folder.claimed()):
                    self.busy.append(folder)
                    continue
                # Checked again now that we hold the folder: another process may have ended the run.
                outcome, shorter = folder.outcome(), folder.shorter()
                if outcome or (shorter and (outcome := folder.end_as(shorter))):
                    self.notify(Event(folder.run, outcome))
                else:
                    self.active.append(self._load(folder, shorter))
                    self.active[-1].claim = claim.pop_all()
        return bool(self.active)

    def _load(self, folder: RunFolder, shorter: RunFolder | None) -> Progress:
        """A run as the store has it: from its checkpoint, a shorter run's, or the beginning."""
        fresh = vars(fresh_state(folder.run))
        checkpoint, remark = folder.load(like=fresh)
        if remark:
            self.notify(Event(folder.run, f"{remark}; starting again"))
        if checkpoint is None and shorter:
            checkpoint = folder.begin_as(shorter, fresh)
            self.notify(Event(folder.run, Notice(_goes_on(shorter, checkpoint))))
        if checkpoint is None:
            now = datetime.now(UTC).isoformat(timespec="seconds")
            checkpoint = Checkpoint(0, math.inf, 0, fresh, now)
        return Progress(
            folder,
            AdamState(**checkpoint.tensors),
            Plateau(checkpoint.plateau_best, checkpoint.plateau_bad_epochs),
            checkpoint.tensors["learning_rate"].item(),
            checkpoint.started_at,
            folder.keep_history(checkpoint.epochs_done),
            checkpoint.epochs_done,
        )

    def stack(self) -> Stack:
        """The stack of the active runs: the same one until a run joins or leaves."""
        if self._stack is None:
            runs, states = [p.run for p in self.active], [p.adam for p in self.active]
            state = AdamState.join(states)
            if self.stepper == "compiled" and self.context.compile == "auto":
                self.stepper = select_faster_stepper(runs, state, self.context.device)
                self.fell_back = self.stepper == "stacked"
            self._stack = Stack(runs, state, self.context.device, self.stepper, self.captured)
        return self._stack

    def maybe_switch_stepper(self) -> None:
        """Switch to compiled code for the coming epochs, once it is ready and if it is faster."""
        if self.stepper == "stacked" and self.context.compile == "auto" and not self.fell_back:
            run = self.active[0].run
            self.stepper, _ = choose_stepper(run, self.context.device, self.context.kernels, "auto")
            if self.stepper != "stacked":
                self.unstack()

    def unstack(self) -> None:
        """Take every active run out of the stack, as it was after its last complete epoch."""
        if self._stack is not None:
            stack, self._stack = self._stack, None
            try:
                for progress, adam in zip(self.active, stack.kept_rows(), strict=True):
                    progress.adam = adam
            finally:
                stack.close()

    def save(self, older_than: float = -math.inf) -> None:
        """Save active runs with new epochs, last saved at least `older_than` seconds ago."""
        due = [progress for progress in self.active if progress.is_due(older_than)]
        if due:
            rows = self._stack.kept_rows() if self._stack else [p.adam for p in self.active]
            for progress, adam in zip(self.active, rows, strict=True):
                if progress in due:
                    progress.save(adam)

    def release(self, progress: Progress) -> None:
        """Release a run, and free its place for the next."""
        self.active = [other for other in self.active if other is not progress]
        progress.claim.close()

    def release_all(self, save: bool = True) -> UnfinishedRuns:
        """Release all runs; return the unfinished ones, those that waited longest first."""
        try:
            if save:
                self.save()
                for progress in filter(Progress.is_due, self.suspended):
                    progress.save(progress.adam)
        finally:
            if self._stack is not None:
                self._stack.close()
            for progress in (*self.active, *self.suspended):
                progress.claim.close()
        waiting = {folder.run: 0 for folder in self.waiting}
        return waiting | {p.run: p.epochs_saved for p in (*self.suspended, *self.active)}


def _goes_on(shorter: RunFolder, checkpoint: Checkpoint | None) -> str:
    most = f"a finished run of at most {pluralize(shorter.run.protocol.max_epochs, 'epoch')}"
    if checkpoint is None:
        why = "a usable optimiser state (earlier versions kept none)"
        return f"{most} is here, but without {why}: trained from scratch"
    return f"{most} continues from epoch {checkpoint.epochs_done}"
