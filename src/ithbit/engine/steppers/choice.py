"""Which stepper trains which runs, and why."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

import torch

from ithbit.engine.device import Device
from ithbit.engine.evaluate import Logits
from ithbit.engine.how import Event, How, Notice
from ithbit.engine.steppers import KERNELS, Compile, Kernels, Rows, Stepper, StepperName
from ithbit.engine.steppers.module import Module, why_not_stacked
from ithbit.engine.steppers.plain import Plain
from ithbit.errors import DeviceError
from ithbit.models.classifier import logits
from ithbit.models.layer_source import layer_for
from ithbit.models.own_layer import off_in_evaluation
from ithbit.native import building
from ithbit.spec import ModelSpec, Protocol, RunSpec
from ithbit.tasks.indexing import n_tokens

_PAYS = 1 << 22  # tokens of all examples times layers from which compiling pays: seconds of work


def choose_stepper(
    run: RunSpec, device: Device, kernels: Kernels, compile: Compile = "off"
) -> tuple[StepperName, list[str]]:
    """The stepper for runs like this one, and remarks on that choice."""
    if run.model.code:
        why = why_alone(run.model, device)
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
    return ("stacked", [f"{why}: trained with the plain models"]) if why else ("kernels", [])


def _on_cpu(run: RunSpec, compile: Compile) -> tuple[StepperName, list[str]]:
    if compile == "on":
        return "compiled", []
    if compile == "off" or not _pays(run):
        return "stacked", []
    if why := building.refusal(run.model):
        return "stacked", [f"{why}: trained with the plain models"]
    if building.folder() is None:
        return "stacked", ["no folder to keep compiled code in: trained with the plain models"]
    return ("compiled" if building.ready(run.model) else "stacked"), []


def _pays(run: RunSpec) -> bool:
    """Whether a run may be long enough for compiled code, judging by its spec alone."""
    model, protocol = run.model, run.protocol
    examples = protocol.epoch_examples * protocol.max_epochs
    return examples * n_tokens(model.task, model.n_bits) * model.n_layers >= _PAYS


def evaluator(name: StepperName) -> Logits:
    """The function that evaluates weights trained by this stepper."""
    if name != "compiled":
        return logits
    from ithbit.native.model import logits as compiled

    return compiled


def evaluator_here(model: ModelSpec, device: torch.device) -> tuple[Logits, StepperName]:
    """The fastest evaluation that needs no compiling first, and its name."""
    if device.type == "cpu" and building.refusal(model) is None and building.ready(model):
        from ithbit.native.model import compiled

        with suppress(Exception):  # the code was compiled by another machine or numba version
            compiled(model)
            return evaluator("compiled"), "compiled"
    return logits, "stacked"


def make_stepper(name: StepperName, runs: list[RunSpec], rows: Rows, device: Device) -> Stepper:
    """The stepper of this name; kernels and compiled code, which need more, are imported here."""
    if name == "kernels":
        from ithbit.engine.steppers.kernels import Fused

        return Fused(runs, rows, device)
    if name == "compiled":
        from ithbit.engine.steppers.compiled import Compiled

        return Compiled(runs, rows, device)
    return (Module if name == "module" else Plain)(runs, rows, device)


def why_alone(model: ModelSpec, device: Device) -> str | None:
    """Why the seeds of a model cannot share a stack, or None if they can."""
    return why_not_stacked(model, device.torch) if model.code else None


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
    if not (protocol.beta1 and protocol.beta2):
        return "the kernels need both betas of AdamW above 0"
    return refused_model(model)


@contextmanager
def compiling(runs: list[RunSpec], how: How) -> Iterator[Callable[[RunSpec], bool]]:
    """Compile what these runs need in the background; yields whether a given run can start.

    On a GPU, a run that starts earlier compiles its kernels itself. On a CPU, every run starts
    with the plain models and switches over when its family is compiled.
    """

    def say(text: str) -> None:
        how.watch(Event(runs[0], Notice(text)))

    if not how.device.is_cuda:
        wants = [run.model for run in runs if how.compile == "auto" and _pays(run)]
        wants = [model for model in dict.fromkeys(wants) if building.refusal(model) is None]
        with building.building(wants, say):
            yield lambda run: True
        return
    device, models = how.device, defaultdict[tuple[int, str], dict[ModelSpec, None]](dict)
    wanted = runs if how.kernels != "off" else []
    for model, protocol in dict.fromkeys((run.model, run.protocol) for run in wanted):
        if refusal(model, protocol, device) is None:
            models[protocol.batch_size, protocol.examples][model] = None
    with ExitStack() as stack:
        waited: dict[ModelSpec, list[Callable[[ModelSpec], bool]]] = defaultdict(list)
        for (batch_size, kind), served in models.items():
            from ithbit.kernels.compile_ahead import Ahead

            ahead = stack.enter_context(Ahead(list(served), batch_size, device.torch, say, kind))
            for model in served:
                waited[model].append(ahead.ready)
        yield lambda run: all(ready(run.model) for ready in waited.get(run.model, ()))


def kernels_named(name: str, what: str = "kernels") -> Kernels:
    """The choice of this name, for kernels or for compiled code.

    >>> kernels_named("yes")
    Traceback (most recent call last):
    ...
    ithbit.errors.DeviceError: unknown choice of kernels 'yes'; choose one of auto, on, off
    """
    for choice in KERNELS:
        if choice == name:
            return choice
    raise DeviceError(f"unknown choice of {what} {name!r}; choose one of {', '.join(KERNELS)}")


def check_compile(compile: Compile, runs: Sequence[RunSpec], device: Device) -> None:
    """Raise `DeviceError` if compiled code is on but not available for all the runs."""
    kernels_named(compile, "compile")
    if compile == "on":
        for model in dict.fromkeys(run.model for run in runs):
            why = "it is for a CPU" if device.is_cuda else building.refusal(model)
            if why:
                raise DeviceError(f"compile 'on' was asked for, but {why}; use auto or off")


def check_kernels(kernels: Kernels, runs: Sequence[RunSpec], device: Device) -> None:
    """Raise `DeviceError` if kernels are on but not available for all the runs."""
    if kernels_named(kernels) == "on":
        for model, protocol in dict.fromkeys((run.model, run.protocol) for run in runs):
            why = refusal(model, protocol, device)
            if why:
                raise DeviceError(f"kernels 'on' were asked for, but {why}; use auto or off")
