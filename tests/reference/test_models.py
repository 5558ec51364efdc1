import math
import sys
from collections import defaultdict

import pytest
import torch
from tests.support.their_gradients import export_gradients

from ithbit.errors import IthbitError
from ithbit.families import POSITIONS, family_named
from ithbit.models import classifier
from ithbit.reference import weights
from ithbit.reference.models import build, dense_features
from ithbit.spec import ModelSpec
from ithbit.tasks.indexing import Instance
from ithbit.tasks.sampling import draw_examples, stream_keys
from ithbit.tasks.tokens import token_table


def n_trained(module: torch.nn.Module) -> int:
    """Number of trained parameters; frozen tables do not count."""
    return sum(p.numel() for p in module.parameters() if p.requires_grad)


@pytest.mark.parametrize("layers", [1, 2, 3, 4])
@pytest.mark.parametrize("task", ["rhi", "lhi"])
def test_parameter_counts_are_the_stacked_models_own(family, task, layers, library) -> None:
    for positions in POSITIONS:
        if family_named(family).takes(positions):
            spec = ModelSpec(task, family, n_bits=9, n_layers=layers, positions=positions)
            assert n_trained(build(spec)) == classifier.n_parameters(spec)


def test_dense_features_say_what_the_tokens_are() -> None:
    instance = Instance("lhi", (0, 1, 1, 0), 3)
    bits, index = torch.tensor([instance.bits]), torch.tensor([instance.index])
    rows = dense_features("lhi", bits, index, torch.float64)[0].tolist()
    kinds = {"bit": [1, 0, 0], "index": [0, 1, 0], "end": [0, 0, 1]}
    assert len(rows) == len(instance.tokens)
    for row, token in zip(rows, instance.tokens, strict=True):
        kind = token.split()[0]
        assert row[:3] == kinds[kind]
        assert row[3] == (token == "bit 1")
        assert row[4:] == ([0.5, 0.25] if kind == "index" else [0, 0])


@pytest.mark.parametrize("family", ["softmax-full", "linear-causal", "gru"])
def test_stacked_models_start_as_the_library_does(family, library) -> None:
    """Every parameter has the library's spread over many draws; constants are the same constants.

    *Empirical*, at fixed seeds. A root mean square of N draws of a normal number is known to
    1 / sqrt(2 N), of a uniform one better: the two agree to 5 standard deviations.
    """
    spec = ModelSpec("rhi", family, n_bits=3, n_layers=2)
    _assert_same_spread(spec, "cpu")


def _assert_same_spread(spec: ModelSpec, device: str) -> None:
    draws: dict[str, dict[str, list[torch.Tensor]]] = defaultdict(
        lambda: {"ours": [], "theirs": []}
    )
    for seed in range(60):
        for name, value in classifier.init(spec, seed).items():
            draws[name]["ours"].append(value)
        for name, value in weights.export(build(spec, device, seed), spec).items():
            draws[name]["theirs"].append(value.cpu())
    for name, pair in draws.items():
        ours, theirs = (torch.stack(pair[side]) for side in ("ours", "theirs"))
        if theirs.std() == 0:
            assert torch.equal(ours, theirs), name
        else:
            sizes = [value.square().mean().sqrt().item() for value in (ours, theirs)]
            assert sizes[0] == pytest.approx(sizes[1], rel=5 / math.sqrt(ours.numel())), name
            tops = [value.abs().max().item() for value in (ours, theirs)]
            assert tops[0] == pytest.approx(tops[1], rel=0.35), name


def test_without_transformers_the_message_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)  # Python's mark of an absent module
    with pytest.raises(
        IthbitError, match=r"mamba2 needs transformers.*install ithbit\[reference\]"
    ):
        build(ModelSpec("rhi", "mamba2", n_bits=2))


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")  # fla's import tells what else the machine could have
def test_on_a_gpu_the_libraries_agree_with_the_stacked_models(
    family, moved, library, cuda, monkeypatch
) -> None:
    """Mamba2 is fla's there. Products in full single precision, as the protocol asks."""
    if family == "mamba2":
        pytest.importorskip("fla", reason="fla is not installed (ithbit[reference-gpu])")
    assert not torch.backends.cuda.matmul.allow_tf32
    # Stock PyTorch lets cuDNN's GRU multiply in TF32 (4e-4 off here); without it, cuDNN's own tanh
    # and sigmoid are left, 1.2e-5 off on an H200. Ours is held to float64 in tests/engine.
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    tolerance = 1e-4 if family == "gru" else 1e-5
    spec = ModelSpec("lhi", family, n_bits=20, n_layers=2)
    params = moved(spec, dtype=torch.float32)
    module = build(spec, "cuda")
    assert n_trained(module) == classifier.n_parameters(spec)
    weights.load(module, spec, params)
    examples = draw_examples(stream_keys([0], "cuda"), 20, first=0, count=64)
    theirs = module(examples.bits[0], examples.index[0])
    theirs.square().mean().backward()

    leaves = {name: value[None].cuda().requires_grad_() for name, value in params.items()}
    ours = classifier.logits(leaves, spec, token_table("lhi", 20, device="cuda"), examples)
    ours.square().mean().backward()

    assert (ours[0] - theirs).norm() <= tolerance * theirs.norm()
    expected = export_gradients(module, spec)
    whole = torch.stack([gradient.norm() for gradient in expected.values()]).norm()
    for name, gradient in expected.items():
        own = leaves[name].grad
        error = gradient.norm() if own is None else (own[0] - gradient).norm()
        assert error <= tolerance * gradient.norm() + torch.finfo(torch.float32).eps * whole, name


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")  # fla's import tells what else the machine could have
def test_mamba2_starts_as_fla_does(library, cuda) -> None:
    pytest.importorskip("fla", reason="fla is not installed (ithbit[reference-gpu])")
    spec = ModelSpec("rhi", "mamba2", n_bits=3, n_layers=2)
    _assert_same_spread(spec, "cuda")
    assert "fla" in type(build(spec, "cuda").body.model).__module__
    assert "transformers" in type(build(spec, "cpu").body.model).__module__
