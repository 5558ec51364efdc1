"""A trained run as an ordinary module: the engine's answers, the library's parts, its maps."""

import sys
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.support.synthetic_store import Plan, write_run

import ithbit
from ithbit.errors import SpecError, StoreError
from ithbit.families import FAMILIES, TASKS
from ithbit.models import classifier
from ithbit.models.stacked import part
from ithbit.spec import ModelSpec, RunSpec
from ithbit.store.folder import RunFolder
from ithbit.tasks.sampling import Examples, draw_examples, stream_keys
from ithbit.tasks.tokens import token_table

ATTENTION = [name for name, family in FAMILIES.items() if family.attention]
CASES = [
    *(ModelSpec(*each, n_bits=5, n_layers=n) for *each, n in product(TASKS, FAMILIES, (1, 2, 3))),
    *(
        ModelSpec("lhi", family, n_bits=5, n_layers=2, positions=positions)
        for family, positions in product(FAMILIES, ("none", "learned", "sinusoidal", "rotary"))
        if FAMILIES[family].takes(positions)
    ),
]


def label(spec: ModelSpec) -> str:
    return f"{spec.task}-{spec.family}-L{spec.n_layers}-{spec.positions}"


def finished(store: Path, spec: ModelSpec, params: dict[str, torch.Tensor]) -> RunSpec:
    """A run folder with these weights."""
    run = RunSpec(spec, 0)
    folder = write_run(store, Plan(run, True, 1.0, 5))
    save_file(params, folder / "weights.safetensors")
    return run


@pytest.fixture
def inputs() -> Examples:
    return draw_examples(stream_keys([0]), 5, first=0, count=32)


def engine_logits(spec: ModelSpec, params, inputs: Examples, dtype: torch.dtype) -> torch.Tensor:
    stacked = {name: value[None].to(dtype) for name, value in params.items()}
    return classifier.logits(stacked, spec, token_table(spec.task, 5, dtype=dtype), inputs)[0]


@pytest.mark.parametrize("family", FAMILIES)
def test_loading_leaves_the_global_generator_alone(family, moved, tmp_path, library) -> None:
    spec = ModelSpec("lhi", family, 5, 2)
    run, state = finished(tmp_path, spec, moved(spec, dtype=torch.float32)), torch.get_rng_state()
    ithbit.load(run, store=tmp_path)
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("spec", CASES, ids=label)
@pytest.mark.parametrize("library", [True, False], ids=["library", "plain"])
def test_it_answers_as_the_engine_does(spec, library, moved, inputs, tmp_path, request) -> None:
    if library:
        request.getfixturevalue("library")
    params = moved(spec, dtype=torch.float32)
    run = finished(tmp_path, spec, params)
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-10)):
        model = ithbit.load(run, store=tmp_path, dtype=dtype, library=library)
        wanted = engine_logits(spec, params, inputs, dtype)
        found = model(inputs.bits[0], inputs.index[0])
        assert found.dtype == dtype
        assert (found - wanted).abs().max() <= tolerance * max(1, wanted.abs().max())
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert trained == classifier.n_parameters(spec)


def test_parameters_come_in_the_order_of_the_model(moved, tmp_path) -> None:
    """The library that reads the file gives them in any order, another one in each process."""
    spec = ModelSpec("rhi", "softmax-full", n_bits=5)
    run = finished(tmp_path, spec, moved(spec, dtype=torch.float32))
    block = ithbit.load(run, store=tmp_path, library=False).body[0]
    wanted = part(classifier.init(spec, 0), "blocks.0")
    assert list(block.names) == list(wanted)
    assert [name for name, _ in block.named_parameters()] == list(block.names.values())


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("family", ATTENTION)
@pytest.mark.parametrize("library", [True, False], ids=["library", "plain"])
def test_maps_give_the_blocks_output(family, task, library, moved, inputs, tmp_path) -> None:
    """Values averaged by the map, projected and added, are what the block's next part reads."""
    if library and "softmax" in family:
        pytest.importorskip("transformers")
    spec = ModelSpec(task, family, n_bits=5, n_layers=2)
    params = moved(spec, dtype=torch.float32)
    run = finished(tmp_path, spec, params)
    model = ithbit.load(run, store=tmp_path, dtype="float64", library=library)
    bert = library and "softmax" in family
    blocks = model.body.encoder.layer if bert else model.body
    states: list[tuple[torch.Tensor, torch.Tensor]] = []
    for block in blocks:
        block.register_forward_hook(
            lambda block, args, out: states.append(
                (args[0], out[0] if isinstance(out, tuple) else out)
            )
        )
    model(inputs.bits[0], inputs.index[0])
    maps = model.attention(inputs.bits[0], inputs.index[0])
    tokens = 6 if task == "rhi" else 7
    assert maps.shape == (32, 2, 2, tokens, tokens)
    if "softmax" in family:
        assert torch.allclose(maps.sum(-1), torch.ones_like(maps.sum(-1)), atol=1e-12)
    if FAMILIES[family].causal:
        assert (maps.triu(1) == 0).all()
    for layer, (x, out) in enumerate(states[:2]):
        ours = {k: v.double() for k, v in part(params, f"blocks.{layer}").items()}
        again = block_by_map(family, ours, x, maps[:, layer])
        assert torch.allclose(again, out, atol=1e-10)


def block_by_map(family, p, x, weights) -> torch.Tensor:
    """The block of the paper's experiment, with the attention map given."""
    F = torch.nn.functional
    d = x.shape[-1]

    def norm(y, name, eps):
        return F.layer_norm(y, (d,), p[f"{name}.weight"], p[f"{name}.bias"], eps)

    softmax = "softmax" in family
    read = x if softmax else norm(x, "norm1", 1e-5)
    bias = p["qkv.bias"][2 * d :] if softmax else None
    v = F.linear(read, p["qkv.weight"][2 * d :], bias).unflatten(-1, (2, -1)).transpose(1, 2)
    mixed = (weights @ v).transpose(1, 2).flatten(-2)
    x = x + F.linear(mixed, p["out.weight"], p.get("out.bias"))
    x = norm(x, "norm1", 1e-12) if softmax else x
    read = x if softmax else norm(x, "norm2", 1e-5)
    x = x + F.linear(
        F.gelu(F.linear(read, p["up.weight"], p["up.bias"])), p["down.weight"], p["down.bias"]
    )
    return norm(x, "norm2", 1e-12) if softmax else x


@pytest.mark.parametrize("family", ["softmax-full", "softmax-causal"])
@pytest.mark.parametrize("positions", ["polynomial", "rotary"])
def test_maps_are_the_librarys_own(family, positions, library, moved, inputs, tmp_path) -> None:
    spec = ModelSpec("lhi", family, n_bits=5, n_layers=2, positions=positions)
    run = finished(tmp_path, spec, moved(spec, dtype=torch.float32))
    model = ithbit.load(run, store=tmp_path)
    model.body.set_attn_implementation("eager")  # the one that keeps its maps
    kept = []
    for layer in model.body.encoder.layer:
        layer.attention.self.register_forward_hook(lambda module, args, out: kept.append(out[1]))
    maps = model.attention(inputs.bits[0], inputs.index[0])
    assert torch.allclose(torch.stack(kept, 1), maps, atol=1e-6)


def test_the_library_is_the_one_the_paper_names(library, moved, tmp_path) -> None:
    names = {
        "softmax-full": "BertModel",
        "linear-causal": "Sequential",
        "gru": "ReferenceGru",
        "mamba2": "Mamba2Model",
    }
    for family, name in names.items():
        spec = ModelSpec("lhi", family, n_bits=3)
        run = finished(tmp_path, spec, moved(spec, dtype=torch.float32))
        assert type(ithbit.load(run, store=tmp_path).body).__name__ == name
    assert isinstance(
        ithbit.load(RunSpec(ModelSpec("lhi", "gru", n_bits=3), 0), store=tmp_path).body,
        torch.nn.GRU,
    )


def test_without_the_library_it_is_plain(moved, tmp_path, monkeypatch) -> None:
    spec = ModelSpec("lhi", "mamba2", n_bits=3)
    run = finished(tmp_path, spec, moved(spec, dtype=torch.float32))
    monkeypatch.setitem(sys.modules, "transformers", None)
    model = ithbit.load(run, store=tmp_path)
    assert type(model.module).__name__ == "SingleSeedModel"
    assert type(model.body).__name__ == "ModuleList"
    assert model("101", 2).shape == ()


def test_hooks_fire_and_change_the_answer(moved, tmp_path) -> None:
    spec = ModelSpec("rhi", "gru", n_bits=3)
    run = finished(tmp_path, spec, moved(spec, dtype=torch.float32))
    for library in (True, False):
        model = ithbit.load(run, store=tmp_path, library=library)
        before = model("101", 2)
        layer = model.body if library else model.body[0]
        layer.register_forward_hook(lambda module, args, out: out * 0)
        assert model("101", 2) == model("011", 1) != before  # nothing of the input gets through
        model("101", 2).backward()
        assert next(model.parameters()).grad is not None


@pytest.fixture
def gru(moved, tmp_path) -> RunSpec:
    spec = ModelSpec("lhi", "gru", n_bits=4)
    return finished(tmp_path, spec, moved(spec, dtype=torch.float32))


def test_a_run_may_be_named_in_many_ways(gru, tmp_path) -> None:
    wanted = ithbit.load(gru, store=tmp_path)("1011", 3)
    for name in (
        gru.name,
        gru.run_id,
        gru.folder,
        tmp_path / gru.folder,
        str(tmp_path / gru.folder),
    ):
        assert ithbit.load(name, store=tmp_path)("1011", 3) == wanted
    with pytest.raises(StoreError, match="there is no run 'nobody'"):
        ithbit.load("nobody", store=tmp_path)
    with pytest.raises(StoreError, match="there is no run 'rhi_n4_gru"):
        ithbit.load(RunSpec(ModelSpec("rhi", "gru", n_bits=4), 0), store=tmp_path)


def test_what_training_returned_knows_its_store(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    tiny = ithbit.Protocol(batch_size=32, epoch_examples=64, held_out_examples=32, max_epochs=1)
    runs = ithbit.train(
        "lhi", "gru", n=2, seeds=[0], protocol=tiny, store="q", workers=1, device="cpu"
    )
    wanted = ithbit.load(runs[0].spec, store="q")("10", 2)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert ithbit.load(runs[0])("10", 2) == wanted
    found = ithbit.verify(runs, device="cpu")
    assert (tmp_path / "q" / runs[0].spec.folder / "verification.json").exists()
    assert ithbit.load(found[0])("10", 2) == wanted
    # A store that is named takes precedence; what is stored and compared is as before.
    with pytest.raises(StoreError, match="there is no store other"):
        ithbit.load(runs[0], store="other")
    assert "store" not in runs[0].to_json()
    assert runs[0] == RunFolder(tmp_path / "q", runs[0].spec).result()


@pytest.mark.parametrize("given", [None, 3, ModelSpec("lhi", "gru", n_bits=4)])
def test_what_is_no_run(given) -> None:
    sentence = f"a run is a folder, .* got {type(given).__name__}$"
    for function in (ithbit.load, lambda run: ithbit.verify([run]), lambda r: ithbit.explore([r])):
        with pytest.raises(SpecError, match=sentence):
            function(given)
    with pytest.raises(SpecError, match=r"got list; choose one of its elements, as in runs\[0\]"):
        ithbit.load([given])


def test_inputs_in_many_forms(gru, tmp_path) -> None:
    model = ithbit.load(gru, store=tmp_path)
    one = model("1011", 3)
    assert one.shape == ()
    for bits in ([1, 0, 1, 1], (1, 0, 1, 1), np.array([1, 0, 1, 1]), torch.tensor([1, 0, 1, 1])):
        assert model(bits, 3) == one
        assert model(bits, np.int64(3)) == one
    assert model(torch.tensor([True, False, True, True]), 3) == one
    several = model(["1011", "0100"], [3, 3])
    assert several.shape == (2,)
    assert torch.allclose(several[0], one)
    assert torch.equal(model([[1, 0, 1, 1], [0, 1, 0, 0]], 3), several)
    assert model("1011", [1, 2, 3, 4]).shape == (4,)
    assert model("10110011", 7).shape == ()  # twice the length: what the shifted sets ask


@pytest.mark.parametrize(
    ("bits", "index", "sentence"),
    [
        ("1021", 1, "string of 0 and 1 such as 1011, got '1021'"),
        ([1, 2], 1, "bits must be 0 or 1"),
        ([0.5, 1], 1, "bits must be whole numbers"),
        ("101", 4, r"the index must be in 1..3, got 4"),
        ("101", 0, r"the index must be in 1..3, got 0"),
        ("", 1, "give bits as"),
        (["10", "101"], 1, "the same number of bits"),
        ([[1, 0], [1]], 1, "bits must be whole numbers"),
        (["10", "01"], [1, 2, 1], "got 2 rows of bits and 3 indices"),
        ("10", "x", "the index must be whole numbers"),
    ],
)
def test_bad_inputs_are_one_sentence(gru, tmp_path, bits, index, sentence) -> None:
    with pytest.raises(SpecError, match=sentence):
        ithbit.load(gru, store=tmp_path)(bits, index)


def test_what_it_cannot_give(gru, tmp_path, moved) -> None:
    with pytest.raises(SpecError, match="gru has no attention maps"):
        ithbit.load(gru, store=tmp_path).attention("1011", 1)
    with pytest.raises(SpecError, match="unknown dtype 'float16'; choose one of float32, float64"):
        ithbit.load(gru, store=tmp_path, dtype="float16")
    spec = ModelSpec("lhi", "linear-full", n_bits=2, positions="learned")
    run = finished(tmp_path, spec, moved(spec, dtype=torch.float32))
    with pytest.raises(SpecError, match="positions for up to 4 bits, got 5"):
        ithbit.load(run, store=tmp_path)("10110", 1)


def test_damaged_weights_are_refused(gru, tmp_path) -> None:
    file = tmp_path / gru.folder / "weights.safetensors"
    params = load_file(file)
    save_file({name: value for name, value in params.items() if name != "embed"}, file)
    with pytest.raises(StoreError, match="do not fit its model"):
        ithbit.load(gru, store=tmp_path)
    file.write_bytes(b"nonsense")
    with pytest.raises(StoreError, match="are damaged"):
        ithbit.load(gru, store=tmp_path)
    file.unlink()
    with pytest.raises(StoreError, match=r"has no weights\.safetensors that can be read"):
        ithbit.load(gru, store=tmp_path)


def test_what_is_around_the_blocks_has_names_for_hooks_and_saved_weights(moved, tmp_path) -> None:
    spec = ModelSpec("lhi", "softmax-full", n_bits=5, n_layers=2)
    run = finished(tmp_path, spec, moved(spec, dtype=torch.float32))
    module = ithbit.load(run.run_id, store=tmp_path, library=False).module
    parts = ["embed", "positions", "enter", "body", "leave", "head"]
    assert [name for name, _ in module.named_children()] == parts
    around = {name for name in module.state_dict() if not name.startswith("body.")}
    assert around == {
        *("embed.own_weight", "positions.own_polynomial", "head.own_weight", "head.own_bias"),
        *("enter.own_norm_weight", "enter.own_norm_bias", "enter.own_type"),
    }


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("plain", [False, True])
def test_nan_in_the_weights_gives_no_answer(plain, dtype, moved, tmp_path, library) -> None:
    """Though a library's fused attention drops it."""
    spec = ModelSpec("lhi", "softmax-full", 5, 2)
    params = moved(spec, dtype=torch.float32)
    params["blocks.0.qkv.weight"][0, 0] = float("nan")
    model = ithbit.load(
        finished(tmp_path, spec, params), dtype=dtype, store=tmp_path, library=not plain
    )
    with torch.no_grad():
        assert model("10110", [1, 2, 3, 4, 5]).isnan().all()
        assert model("10110", 3).isnan()
