"""Loading and building layers: every way it can go wrong has its sentence."""

from pathlib import Path

import pytest
import torch

from ithbit.errors import LayerError
from ithbit.probe.adapters import ADAPTERS
from ithbit.probe.layer import layer_of, load_layer

FILE = Path(__file__).with_name("bad_layers.py")


def test_the_width_is_given_by_position_by_name_or_not_at_all() -> None:
    assert load_layer(f"{FILE}:StateOfThree").build(7).enter.in_features == 7
    assert load_layer(f"{FILE}:keyword").build(4).in_features == 4
    assert load_layer(f"{FILE}:FixedWidth").build(3).map.in_features == 3
    assert load_layer("torch.nn:Identity").build(3)(torch.ones(1)).item() == 1


def test_weights_depend_on_the_seed_alone() -> None:
    layer = load_layer("lstm")
    torch.manual_seed(5)
    first = layer.build(4, seed=1).cell.weight_ih_l0
    state = torch.random.get_rng_state()
    assert torch.equal(layer.build(4, seed=1).cell.weight_ih_l0, first)
    assert not torch.equal(layer.build(4, seed=2).cell.weight_ih_l0, first)
    assert torch.equal(torch.random.get_rng_state(), state)  # the user's generator is left alone


def test_the_digest_follows_the_code(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("import torch\nMine = torch.nn.Identity\n")
    before = load_layer(f"{path}:Mine").digest
    path.write_text("import torch\nMine = torch.nn.Identity  # changed\n")
    assert load_layer(f"{path}:Mine").digest != before
    assert layer_of(torch.nn.Identity).digest == layer_of(torch.nn.Identity).digest is not None


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("nothing", "'nothing' is no layer; give PATH.py:Factory"),
        ("missing.py:Layer", r"there is no file missing\.py"),
        (f"{FILE}:Missing", "has no Missing; it has Blind, .*, FailsToBuild"),
        (f"{FILE}:number", "number in .* is int, which cannot be called"),
        ("no_such_package.layers:Mine", "the module no_such_package.layers cannot be imported"),
    ],
)
def test_what_cannot_be_loaded(text: str, sentence: str) -> None:
    with pytest.raises(LayerError, match=sentence):
        load_layer(text)


def test_imports_from_beside_the_file_and_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "beside_it.py").write_text("import torch\nMine = torch.nn.Identity\n")
    (tmp_path / "user_layers.py").write_text("from beside_it import Mine\n")
    monkeypatch.chdir(tmp_path)
    for text in (f"{tmp_path / 'user_layers.py'}:Mine", "user_layers:Mine"):
        assert isinstance(load_layer(text).build(3), torch.nn.Identity)


def test_a_file_that_fails(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    for code, said in (("1 / 0", "ZeroDivisionError"), ("import sys; sys.exit()", "SystemExit")):
        path.write_text(code)
        with pytest.raises(LayerError, match=f"cannot be imported: {said}"):
            load_layer(f"{path}:Mine")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("needs_two", r"needs_two needs arguments \(width, heads\); wrap it"),
        ("gives_a_number", r"gives_a_number gives int, not a torch\.nn\.Module"),
        ("Exits", "Exits cannot be built at width 4: SystemExit: 7"),
        ("FailsToBuild", "cannot be built at width 4: ValueError: heads must divide the width"),
    ],
)
def test_what_cannot_be_built(name: str, sentence: str) -> None:
    with pytest.raises(LayerError, match=sentence):
        load_layer(f"{FILE}:{name}").build(4)


def test_a_factory_must_be_callable() -> None:
    with pytest.raises(LayerError, match="a factory must be callable, got int"):
        layer_of(7)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ADAPTERS)
def test_adapters_keep_the_shape(name: str) -> None:
    x = torch.randn(2, 5, 6, generator=torch.Generator().manual_seed(0))
    assert load_layer(name).build(6)(x).shape == x.shape


@pytest.mark.skipif(torch.cuda.is_available(), reason="says something else with a GPU")
def test_fla_without_a_gpu_is_told() -> None:
    with pytest.raises(LayerError, match="fla:GatedLinearAttention needs a CUDA GPU"):
        load_layer("fla:GLA").build(16)


@pytest.mark.gpu
@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize("kind", ["GLA", "DeltaNet", "GatedDeltaNet", "RWKV7", "RetNet", "HGRN2"])
def test_fla_layers_run_or_say_why_not(kind: str) -> None:
    from ithbit.probe.behaviour import behaviour, usable

    device = torch.device("cuda")
    try:
        module = usable(load_layer(f"fla:{kind}"), 16, 10, device)
    except LayerError as error:
        pytest.skip(str(error))  # a kernel that refuses these sizes, in its own words
    assert behaviour(module, 16, 10).leak is None
