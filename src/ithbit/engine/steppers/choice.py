"""Which stepper trains which runs, and why.

Whether compiled code pays is found by trying: a few steps with it and with the stacked models, on
copies, timed. Timings vary, so this is decided once: the answer for a model and batch size is kept
with the compiled code, and every stack, worker and resumed run on this machine follows it. The
size of the stack is left out on purpose, although the gain depends on it: otherwise a run's bits
would depend on the runs next to it. Little is lost. Over the six families, 1 to 4 layers and widths
16 to 128, stacks of 1, 3 and as many as fit disagreed only for one linear layer at width 128, where
both take the same time within a tenth.
"""

import hashlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import fields
from pathlib import Path

import torch

from ithbit.engine.device import Device
from ithbit.engine.evaluate import Logits
from ithbit.engine.optim import AdamState
from ithbit.engine.options import Switch
from ithbit.engine.steppers import StackRows, Stepper, StepperName, rows_of
from ithbit.engine.steppers.stacked import CompiledStepper, ModuleStepper, StackedStepper
from ithbit.engine.training_context import Event, Notice, TrainingContext
from ithbit.errors import DeviceError, LayerError
from ithbit.models import own_layer
from ithbit.models.classifier import logits
from ithbit.models.layer_source import layer_for
from ithbit.models.magnitudes import stays_finite
from ithbit.models.own_layer import off_in_evaluation
from ithbit.models.stacked import Params
from ithbit.native import building
from ithbit.spec import ModelSpec, Protocol, RunSpec
from ithbit.tasks.indexing import n_tokens

_PAYS = 1 << 22  # tokens of all examples times layers from which compiling pays: seconds of work
_ROUNDS = 3  # of one step each, after one that is not counted
_TIMED: tuple[StepperName, ...] = ("compiled", "stacked")
# The settings that kernels and compiled code follow, as the stacked models do. A field that the
# protocol gets is not here: they refuse it until they have it.
_FOLLOWED = frozenset(
    ("learning_rate", "beta1", "beta2", "eps", "weight_decay", "clip_norm", "batch_size",
     "epoch_examples", "held_out_examples", "plateau_factor", "plateau_patience",
     "plateau_threshold", "min_learning_rate", "stop_loss", "max_epochs", "stop_when_solved",
     "examples")
)  # fmt: skip
# CPU time of this thread alone: other work on the machine does not count.
_clock = time.thread_time


def choose_stepper(
    run: RunSpec, device: Device, kernels: Switch, compile: Switch = "off"
) -> tuple[StepperName, list[str]]:
    """The stepper for runs like this one, and remarks on that choice."""
    if run.model.code:
        why = stacking_obstacle(run.model, device)
        off = off_in_evaluation(layer_for(run.model), run.model.d_model)
        alone = f"seeds of {run.model.family} train one by one: {why}" if why else None
        return "module", [remark for remark in (alone, off) if remark]
    if kernels == "on":
        return "kernels", []
    if not device.is_cuda:
        return _on_cpu(run, compile)
    if kernels == "off":
        return "stacked", []
    why = refusal(run.model, run.protocol, device)
    return ("stacked", [f"{why}: trained with the stacked models"]) if why else ("kernels", [])


def _on_cpu(run: RunSpec, compile: Switch) -> tuple[StepperName, list[str]]:
    if compile == "on":
        return "compiled", []
    if compile == "off" or not worth_compiling(run):
        return "stacked", []
    if why := compile_refusal(run.model, run.protocol):
        return "stacked", [f"{why}: trained with the stacked models"]
    if building.folder() is None:
        return "stacked", ["no folder to keep compiled code in: trained with the stacked models"]
    return ("compiled" if building.ready(run.model) else "stacked"), []


def worth_compiling(run: RunSpec) -> bool:
    """Whether a run may be long enough for compiled code, judging by its spec alone."""
    model, protocol = run.model, run.protocol
    examples = protocol.epoch_examples * protocol.max_epochs
    return examples * n_tokens(model.task, model.n_bits) * model.n_layers >= _PAYS


def evaluator_here(
    model: ModelSpec, params: Params, device: torch.device
) -> tuple[Logits, StepperName]:
    """The fastest evaluation of a stack that needs no compiling first, and its name: by the stacked
    models if the weights may overflow, on inputs of the trained length."""
    if device.type == "cpu" and building.refusal(model) is None and building.ready(model):
        from ithbit.native.model import compiled, raw_logits

        with suppress(Exception):  # the code was compiled by another machine or numba version
            compiled(model)
            if stays_finite(params, model, model.n_bits).all():
                return raw_logits, "compiled"
    return logits, "stacked"


def make_stepper(
    name: StepperName, runs: list[RunSpec], rows: StackRows, device: Device
) -> Stepper:
    """The stepper of this name; the kernels need Triton, so they are imported only here."""
    if name == "kernels":
        from ithbit.engine.steppers.kernels import KernelStepper

        return KernelStepper(runs, rows, device)
    kinds = {kind.name: kind for kind in (StackedStepper, CompiledStepper, ModuleStepper)}
    return kinds[name](runs, rows, device)


def select_faster_stepper(runs: list[RunSpec], state: AdamState, device: Device) -> StepperName:
    """Compiled code or the stacked models for runs in this state, which is not changed."""
    note = _note(runs[0])
    if recorded := _read_note(note):
        return recorded
    steppers = [
        make_stepper(name, runs, rows_of(runs, state.clone(), device.torch), device)
        for name in _TIMED
    ]
    least = dict.fromkeys(_TIMED, float("inf"))
    for round in range(1 + _ROUNDS):
        for stepper in steppers:
            began = _clock()
            stepper.step(runs[0].protocol.batch_size)
            if round:
                least[stepper.name] = min(least[stepper.name], _clock() - began)
    best = min(_TIMED, key=least.__getitem__)
    with suppress(OSError):  # also if another worker was first: its answer counts
        if note is not None:
            with note.open("x") as file:
                times = ", ".join(f"{name} {seconds:.3g}" for name, seconds in least.items())
                file.write(f"{best} is faster; seconds per step: {times}\n")
    return _read_note(note) or best


def _note(run: RunSpec) -> Path | None:
    """Where the answer for such runs is kept."""
    what = repr((run.model, run.protocol.batch_size))
    folder = building.folder()
    return folder and folder / f"trial-{hashlib.sha256(what.encode()).hexdigest()[:12]}"


def _read_note(note: Path | None) -> StepperName | None:
    """What an earlier trial found, or None if there was none."""
    with suppress(OSError):
        words = note.read_text().split() if note else []
        return next((name for name in _TIMED if words[:1] == [name]), None)
    return None


def stacking_obstacle(model: ModelSpec, device: Device) -> str | None:
    """Why the seeds of a model cannot share a stack, or None if they can; found by trying."""
    if not model.code:
        return None
    if not device.is_cuda or torch.cuda.is_available():
        return own_layer.stacking_obstacle(model, device.torch)
    try:  # on a machine that only submits runs, to others that have a GPU
        return own_layer.stacking_obstacle(model, torch.device("cpu"))
    except LayerError as error:
        return f"it cannot be tried here ({error})"


def _not_followed(protocol: Protocol) -> str | None:
    """A setting that only the stacked models follow and that is not at its default, if any."""
    changed = [item for item in fields(protocol) if getattr(protocol, item.name) != item.default]
    return next((item.name for item in changed if item.name not in _FOLLOWED), None)


def refusal(model: ModelSpec, protocol: Protocol, device: Device) -> str | None:
    """Why the kernels cannot train such runs on this device, or None if they can."""
    if model.code:
        return f"there are no kernels for {model.family}, a user's layer"
    try:
        from triton import knobs

        from ithbit.kernels.step import refusal as refused_model
    except ImportError as error:
        return f"the kernels need Triton, which cannot be imported ({error})"
    if not device.is_cuda and not knobs.runtime.interpret:
        return "the kernels need a CUDA GPU"
    if name := _not_followed(protocol):
        return f"the kernels do not follow {name}"
    if not (protocol.beta1 and protocol.beta2):
        return "the kernels need both betas of AdamW above 0"
    return refused_model(model)


def compile_refusal(model: ModelSpec, protocol: Protocol) -> str | None:
    """Why compiled code cannot train such runs, or None if it can."""
    if name := _not_followed(protocol):
        return f"compiled code does not follow {name}"
    return building.refusal(model)


@contextmanager
def compiling(runs: list[RunSpec], context: TrainingContext) -> Iterator[Callable[[RunSpec], bool]]:
    """Compile what these runs need in the background; yields whether a given run can start.

    On a GPU, a run that starts earlier compiles its kernels itself. On a CPU, every run starts
    with the stacked models and switches over when its family is compiled.
    """

    def say(text: str) -> None:
        context.watch(Event(runs[0], Notice(text)))

    if not context.device.is_cuda:
        auto = context.compile == "auto"
        wants = [run for run in runs if auto and worth_compiling(run)]
        wants = [run for run in wants if compile_refusal(run.model, run.protocol) is None]
        with building.building(list(dict.fromkeys(run.model for run in wants)), say):
            yield lambda run: True
        return
    device, models = context.device, defaultdict[tuple[int, str], dict[ModelSpec, None]](dict)
    kernel_runs = runs if context.kernels != "off" else []
    for model, protocol in dict.fromkeys((run.model, run.protocol) for run in kernel_runs):
        if refusal(model, protocol, device) is None:
            models[protocol.batch_size, protocol.examples][model] = None
    with ExitStack() as stack:
        waited: dict[ModelSpec, list[Callable[[ModelSpec], bool]]] = defaultdict(list)
        for (batch_size, kind), served in models.items():
            from ithbit.kernels.compile_ahead import KernelPrecompiler

            ahead = stack.enter_context(
                KernelPrecompiler(list(served), batch_size, device.torch, say, kind)
            )
            for model in served:
                waited[model].append(ahead.ready)
        yield lambda run: all(ready(run.model) for ready in waited.get(run.model, ()))


def check_switches(runs: Sequence[RunSpec], context: TrainingContext) -> None:
    """Raise `DeviceError` if kernels or compiled code are on but not available for all the runs."""
    for model, protocol in dict.fromkeys((run.model, run.protocol) for run in runs):
        if context.kernels == "on" and (why := refusal(model, protocol, context.device)):
            raise DeviceError(f"kernels 'on' were asked for, but {why}; use auto or off")
        if context.compile == "on":
            why = compile_refusal(model, protocol)
            why = "it is for a CPU" if context.device.is_cuda else why
            if why:
                raise DeviceError(f"compile 'on' was asked for, but {why}; use auto or off")
