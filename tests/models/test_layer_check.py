"""One check of a layer: training and `probe` refuse the same layers with the same sentence."""

from pathlib import Path

import pytest
import torch
from tests.support.paths import BAD_LAYERS

import ithbit
from ithbit.engine.device import choose_device
from ithbit.engine.steppers.choice import choose_stepper
from ithbit.errors import LayerError
from ithbit.models import classifier, own_layer
from ithbit.models.layer_source import LayerSource, load_layer
from ithbit.models.own_layer import check_layer, identical, off_in_evaluation
from ithbit.spec import ModelSpec, RunSpec
from ithbit.tasks.sampling import draw_examples, stream_keys
from ithbit.tasks.tokens import token_table

CPU = torch.device("cpu")


def model(layer: LayerSource) -> ModelSpec:
    return ModelSpec("lhi", layer.family, 8, d_model=4, code=layer.code)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("ForgetsBatchFirst", "mixes the examples of a batch: .* need batch_first=True"),
        ("AttendsToTheBatch", "mixes the examples of a batch"),
        ("NormsTheBatch", "mixes the examples of a batch: .* no statistics .* over the batch"),
        ("MixesBatch", "mixes the examples of a batch"),
        ("AlwaysDrops", r"is not deterministic: .*F\.dropout needs training=self\.training"),
        ("Random", "is not deterministic"),
        ("Remembers", "is not deterministic"),
        ("KeepsAState", "is not deterministic: .* keep nothing from one call to the next"),
        ("Averages", "changes its buffer mean while it computes"),
        ("Halves", r"has a parameter map\.weight that is of torch\.float16"),
        ("GivesNan", "gives NaN on an input of ordinary size"),
        ("WrongShape", r"returns shape \(32, 9, 4\) for an input of shape \(32, 10, 4\)"),
        ("Raises", "raises on an input of shape"),
    ],
)
def test_what_training_refuses_probe_refuses(tmp_path: Path, name: str, sentence: str) -> None:
    layer, text = load_layer(f"{BAD_LAYERS}:{name}"), f"{BAD_LAYERS}:{name}"
    said = set()
    for refuse in (
        lambda: own_layer.stacking_obstacle(model(layer), CPU),
        lambda: ithbit.train("lhi", text, n=8, width=4, store=tmp_path, device="cpu", seeds=[0]),
        lambda: ithbit.probe(text, n=8, width=4, train=False, device="cpu"),
    ):
        with pytest.raises(LayerError, match=f"^{name} {sentence}") as error:
            refuse()
        said.add(str(error.value))
    assert len(said) == 1


@pytest.mark.parametrize("name", ["Leaky", "Blind", "Overflows", "KeepsItsAttention", "Kinks"])
def test_what_passes(name: str) -> None:
    check_layer(load_layer(f"{BAD_LAYERS}:{name}"), 4, 10, CPU)


def test_what_overflows_in_training_may_share_a_stack() -> None:
    assert own_layer.stacking_obstacle(model(load_layer(f"{BAD_LAYERS}:Overflows")), CPU) is None


def test_the_trial_leaves_nothing_on_the_module() -> None:
    """A tensor made inside `vmap` cannot be used outside it."""
    spec = model(load_layer(f"{BAD_LAYERS}:KeepsAConstant"))
    assert "item()" in (own_layer.stacking_obstacle(spec, CPU) or "")
    params = classifier.stack([classifier.init(spec, 0)])
    examples = draw_examples(stream_keys([0]), 8, 0, 16)
    assert classifier.logits(params, spec, token_table("lhi", 8), examples).isfinite().all()


def test_a_layer_with_parts_that_rest_is_told() -> None:
    layer = load_layer(f"{BAD_LAYERS}:RestsInEvaluation")
    remark = (
        "RestsInEvaluation runs in evaluation mode: its dropout is off and its BatchNorm keeps its "
        "first statistics"
    )
    assert off_in_evaluation(layer, 4) == remark
    run = RunSpec(model(layer), 0)
    assert choose_stepper(run, choose_device("cpu"), "auto") == ("module", [remark])
    for name in (
        "lstm",
        "transformer-encoder-layer",
        f"{BAD_LAYERS}:NormsTheBatch",
        f"{BAD_LAYERS}:Blind",
    ):
        assert off_in_evaluation(load_layer(name), 4) is None


def test_numbers_of_any_kind_can_be_compared() -> None:
    for one in (torch.tensor([True]), torch.tensor(3), torch.tensor([torch.nan, 1.0])):
        assert identical(one, one.clone())
    assert not identical(torch.zeros(2), torch.zeros(3))
    assert not identical(torch.tensor([torch.nan]), torch.tensor([1.0]))


def test_a_long_reason_is_cut_at_a_word() -> None:
    why = own_layer.stacking_obstacle(model(load_layer(f"{BAD_LAYERS}:KeepsAConstant")), CPU) or ""
    assert why.endswith(" …")
    assert len(why) <= 120
