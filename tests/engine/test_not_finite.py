"""No evaluator says right where the stacked float32 model gives no finite logit, or a wrong one.

One number of the weights is NaN, infinite or so large that float32 overflows, in every tensor in
turn. The page has the same test in `tests/explore`.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save
from tests.support.damaged_weights import SPECS, damaged, drawn, every_input, plainly_right, stacked
from tests.support.families import PAPER_FAMILIES
from tests.support.one_stack import train

from ithbit.engine.device import choose_device
from ithbit.engine.evaluate import evaluate, structured_answers
from ithbit.engine.optim import AdamState
from ithbit.engine.stack import Stack
from ithbit.engine.steppers import rows_of
from ithbit.loading.model import TrainedModel
from ithbit.models.classifier import init
from ithbit.models.stacked import Params, packed
from ithbit.native import building
from ithbit.spec import ModelSpec, Protocol, RunSpec
from ithbit.store.folder import RunFolder
from ithbit.store.records import Failure
from ithbit.tasks.margins import counts_as_right, margin_of
from ithbit.tasks.sampling import Examples
from ithbit.tasks.tokens import token_table
from ithbit.verification.input_search import margins
from ithbit.verification.run_verification import model_of, verify_model

CPU = choose_device("cpu")


def label(spec: ModelSpec) -> str:
    return f"{spec.task}-{spec.family}-L{spec.n_layers}"


def naively_right(logit: torch.Tensor, answer: torch.Tensor) -> torch.Tensor:
    """As a user may judge a logit: finite, and of the right sign."""
    return logit.isfinite() & ((logit > 0) == (answer == 1)) & (logit != 0)


@pytest.mark.parametrize("spec", SPECS, ids=label)
def test_compiled_code(spec) -> None:
    pytest.importorskip("numba")
    from ithbit.native.model import logits

    names, values, members = zip(*damaged(spec), strict=True)
    params, examples = stacked(list(members)), every_input(spec.n_bits, len(members))
    truth = plainly_right(params, spec, examples)
    out = logits(params, spec, token_table(spec.task, spec.n_bits), examples)
    false = (naively_right(out, examples.answer) & ~truth).any(1).tolist()
    assert not [case for case, wrong in zip(zip(names, values, strict=True), false, strict=True)
                if wrong]  # fmt: skip
    assert 0 < truth.double().mean() < 1  # some cases are harmless: not everything is refused


def test_a_damaged_seed_leaves_the_others_as_they_are() -> None:
    pytest.importorskip("numba")
    from ithbit.native.model import logits

    spec = ModelSpec("lhi", "linear-causal", 3, 2)
    whole, broken = drawn(spec), drawn(spec)
    broken["blocks.1.qkv.weight"][3, 2] = math.nan
    table = token_table(spec.task, 3)
    alone = logits(stacked([whole]), spec, table, every_input(3, 1))
    beside = logits(stacked([broken, whole, broken]), spec, table, every_input(3, 3))
    assert torch.equal(beside[1:2], alone)
    assert beside[[0, 2]].isnan().all()


def check_loaded(spec: ModelSpec, params: Params, what: object, library: bool) -> None:
    examples = every_input(spec.n_bits, 1)
    truth = plainly_right(stacked([params]), spec, examples)[0]
    model = TrainedModel(RunSpec(spec, 0), params, torch.float32, "cpu", library).eval()
    with torch.no_grad():
        out = model(examples.bits[0].long(), examples.index[0])
    assert not (naively_right(out, examples.answer[0]) & ~truth).any(), what


# What a library's fused attention drops, and what overflows in one order only.
_LOADED = [
    ("softmax-full", "blocks.0.qkv.weight", math.nan),
    ("softmax-causal", "blocks.1.qkv.bias", math.inf),
    ("softmax-full", "enter.norm.weight", 1e38),
    ("softmax-causal", "blocks.0.norm2.bias", 1e38),
    ("linear-full", "blocks.0.qkv.weight", 1e38),
    ("gru", "blocks.0.ih.bias", math.inf),
    ("gru", "embed", 3e38),
    ("mamba2", "blocks.0.in.weight", 3e38),
]


@pytest.mark.parametrize(("family", "name", "value"), _LOADED)
def test_loaded_modules(family, name, value) -> None:
    if family == "mamba2":
        pytest.importorskip("transformers")
    spec = ModelSpec("lhi", family, 3, 2)
    for at in range(0, 256, 37):
        params = drawn(spec)
        params[name].view(-1)[at % params[name].numel()] = value
        for library in (True, False):
            check_loaded(spec, params, at, library)


@pytest.mark.slow
@pytest.mark.parametrize("library", [True, False])
@pytest.mark.parametrize("spec", SPECS, ids=label)
def test_loaded_modules_with_every_tensor(spec, library) -> None:
    for name, value, params in damaged(spec):
        check_loaded(spec, params, (name, value), library)


def test_a_loaded_module_with_ordinary_weights_answers_for_itself() -> None:
    spec = ModelSpec("lhi", "softmax-full", 3, 2)
    model = TrainedModel(RunSpec(spec, 0), drawn(spec), torch.float32, "cpu", library=False).eval()
    with torch.no_grad():
        out = model("101", [1, 2, 3])
        raw = model.module(torch.tensor([[1, 0, 1]] * 3), torch.tensor([1, 2, 3]))
    assert torch.equal(out, raw)
    assert out.isfinite().all()


@pytest.mark.parametrize("value", [math.nan, 1e38])
@pytest.mark.parametrize("path", ["stacked", "compiled"])
def test_verify_never_says_right(monkeypatch, path, value) -> None:
    """Weights that are right on all inputs, but for one number."""
    if path == "compiled":
        pytest.importorskip("numba")
    monkeypatch.setattr(building, "ready", lambda spec: path == "compiled")
    spec = ModelSpec("lhi", "linear-causal", 3, 2)
    run, params = RunSpec(spec, 0), drawn(spec)
    params["head.weight"].zero_()
    params["head.bias"].fill_(1.0)  # right where the answer is 1
    whole = verify_model(model_of(run, save(params), CPU.torch), 3, CPU.torch, count=True)
    assert whole.n_wrong == 12
    params["blocks.1.qkv.weight"][3] = value
    found = verify_model(model_of(run, save(params), CPU.torch), 3, CPU.torch, count=True)
    assert found.verdict == "refuted"
    plain = plainly_right(stacked([params]), spec, every_input(3, 1))
    assert found.n_wrong == 24 - int(plain.sum()) > 12


def test_infinite_logits_are_wrong_everywhere() -> None:
    """A model that is infinitely sure of the right answer is not right."""

    def sure(bits: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        answer = bits.gather(1, index[:, None] - 1)[:, 0]
        return torch.where(answer == 1, math.inf, -math.inf)

    found = verify_model(sure, 3, CPU.torch)
    assert (found.verdict, found.n_wrong) == ("refuted", 24)
    assert found.worst.margin is None
    assert "least margin not finite" in found.sentence()

    def sure_once(bits: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        once = (bits == 1).all(1) & (index == 3)
        return torch.where(once, sure(bits, index), sure(bits, index).clamp(-1, 1))

    found = verify_model(sure_once, 8, CPU.torch)
    assert (found.verdict, found.n_wrong) == ("refuted", 1)
    assert found.counterexample is not None
    assert (found.counterexample.bits, found.counterexample.index) == ("1" * 8, 3)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_the_rule(value) -> None:
    logit, answer = torch.full((2,), value), torch.tensor([0, 1])
    assert margin_of(logit, answer).tolist() == [-math.inf] * 2
    assert margins(logit, answer[:, None], torch.tensor([1, 1])).tolist() == [-math.inf] * 2
    assert not counts_as_right(logit, answer).any()


# ---- training


def no_bits(spec: ModelSpec, params: Params, seeds: int = 1) -> tuple[Params, Examples]:
    """A stack, and examples whose answers are all 0, which `logit > 0` is not where it is NaN."""
    index = torch.arange(32).remainder(spec.n_bits).add(1).repeat(seeds, 1)
    return stacked([params] * seeds), Examples(
        torch.zeros(seeds, 32, spec.n_bits, dtype=torch.uint8), index
    )


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("family", PAPER_FAMILIES)
def test_accuracy_of_nan_is_zero(family, compiled) -> None:
    if compiled:
        pytest.importorskip("numba")
    from ithbit.engine.steppers.stacked import evaluator

    ask = evaluator("compiled" if compiled else "stacked")
    spec = ModelSpec("rhi", family, 4)
    params = drawn(spec)
    params["head.bias"].fill_(math.nan)
    whole, examples = no_bits(spec, params)
    loss, accuracy = evaluate(whole, spec, token_table("rhi", 4), examples, 16, ask)
    assert loss.isnan().all()
    assert accuracy.tolist() == [0.0]
    answers = structured_answers(whole, spec, 0, ask)
    assert answers["structured_wrong"] == answers["structured_tried"] > 0


DIVERGING = Protocol(
    batch_size=32, epoch_examples=64, held_out_examples=64, max_epochs=3, learning_rate=1e38,
    min_learning_rate=1e38, stop_when_solved=True,
)  # fmt: skip


@pytest.mark.parametrize("compile", ["off", "on"])
def test_a_run_whose_logits_are_nan_is_not_solved(tmp_path: Path, compile) -> None:
    if compile == "on":
        pytest.importorskip("numba")
    runs = [RunSpec(ModelSpec("rhi", "softmax-full", 1), seed, DIVERGING) for seed in range(4)]
    for done in train(runs, tmp_path, CPU, compile=compile):
        assert isinstance(done, Failure)
        assert done.kind == "diverged"
        assert RunFolder(tmp_path, done.spec).outcome().kind == "diverged"
        assert RunFolder(tmp_path, done.spec).history() == []  # no epoch that could count


@pytest.mark.parametrize("stepper", ["stacked", "compiled"])
def test_a_stack_with_nan_has_no_loss(stepper) -> None:
    """So its run ends as diverged, whatever its accuracy."""
    if stepper == "compiled":
        pytest.importorskip("numba")
    spec = ModelSpec("lhi", "linear-causal", 3, 2)
    runs = [RunSpec(spec, seed, replace(DIVERGING, learning_rate=1e-3)) for seed in (0, 1)]
    broken = drawn(spec)
    broken["blocks.1.qkv.weight"][3, 2] = math.nan
    members = [AdamState.start(packed(each), 1e-3) for each in (drawn(spec), broken)]
    losses, accuracies = Stack(runs, AdamState.join(members), CPU, stepper).evaluate()
    assert [math.isfinite(loss) for loss in losses] == [True, False]
    assert accuracies[0] > 0
    assert accuracies[1] == 0


def test_the_reason_names_the_loss_that_is_not_finite(tmp_path: Path, monkeypatch) -> None:
    """Training went well, and the weights it ended with have no finite logit."""
    monkeypatch.setattr(Stack, "evaluate", lambda self: ([math.nan], [0.0]))
    run = RunSpec(ModelSpec("rhi", "gru", 2), 0, replace(DIVERGING, learning_rate=1e-3))
    (failed,) = train([run], tmp_path, CPU, compile="off")
    assert isinstance(failed, Failure)
    assert failed.error == "the loss is not finite in epoch 1: nan on held-out examples"


def kernels_evaluate(spec: ModelSpec, members: Sequence[Params]) -> tuple[list[float], list[float]]:
    """Held-out loss and accuracy of a stack by the kernels."""
    from ithbit.engine.steppers.kernels import KernelStepper

    protocol = Protocol(batch_size=8, epoch_examples=8, held_out_examples=8, max_epochs=1)
    runs = [RunSpec(spec, seed, protocol) for seed in range(len(members))]
    state = AdamState.join([AdamState.start(packed(member), 1e-3) for member in members])
    loss, accuracy = KernelStepper(runs, rows_of(runs, state, CPU.torch), CPU).evaluate()
    return loss.tolist(), accuracy.tolist()


@pytest.mark.skipif(torch.cuda.is_available(), reason="under Triton's interpreter")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of the interpreter's numpy
@pytest.mark.parametrize("family", PAPER_FAMILIES)
def test_kernels(family) -> None:
    """A whole seed beside one whose NaN or overflow may be dropped on the way."""
    pytest.importorskip("triton")
    name = {"gru": "blocks.0.ih.weight", "mamba2": "blocks.0.dt_bias"}.get(
        family, "blocks.0.qkv.weight"
    )
    spec = ModelSpec("rhi", family, 2)
    members = [drawn(spec) for _ in range(4)]
    for member, value in zip(members[1:], (math.nan, -math.inf, 3e38), strict=True):
        member[name].view(-1)[0] = value
    loss, accuracy = kernels_evaluate(spec, members)
    assert [math.isfinite(each) for each in loss] == [True, False, False, False]
    assert accuracy[0] > 0
    assert accuracy[1:] == [0.0] * 3


@pytest.mark.skipif(torch.cuda.is_available(), reason="under Triton's interpreter")
def test_kernels_answer_nothing_for_weights_that_amplify_their_rounding() -> None:
    """A head that multiplies a state of 1e-8, which the kernels' tanh loses, by 1e8: the stacked
    model is wrong on zeros."""
    pytest.importorskip("triton")
    spec = ModelSpec("rhi", "gru", 1)
    params = {name: torch.zeros_like(value) for name, value in init(spec, 0).items()}
    params["embed"][:2, [0, 1, 3]] = torch.tensor([[-1.0, 0, 2], [0, 1, 0]])
    params["blocks.0.ih.weight"][32:34, :2] = torch.tensor([[1, 0], [0, 2e-8]])
    params["head.weight"][0, :2] = torch.tensor([1, 1e8])
    loss, accuracy = kernels_evaluate(spec, [params])
    assert math.isnan(loss[0])
    assert accuracy == [0.0]
