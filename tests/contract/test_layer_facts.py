"""Misbehaving layers are told for what they are; well-behaved ones are seen as they are."""

import pytest
import torch
from tests.support.paths import BAD_LAYERS

from ithbit.contract.layer_facts import layer_facts, usable
from ithbit.errors import LayerError
from ithbit.models.layer_source import layer_of, load_layer

pytestmark = pytest.mark.usefixtures("short_check")
CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("Random", "Random is not deterministic: the same input gives different outputs"),
        ("Remembers", "Remembers is not deterministic"),
        (
            "WrongShape",
            r"WrongShape returns shape \(32, 9, 4\) for an input of shape \(32, 10, 4\)",
        ),
        ("Tuple", "Tuple returns a tuple of 2; return its output tensor alone"),
        ("NoTensor", "NoTensor returns str, not a tensor"),
        ("Raises", r"Raises raises on .* \(32, 10, 4\): RuntimeError: no kernel for this size$"),
        ("GivesNan", "GivesNan gives NaN on an input of ordinary size"),
        ("MixesBatch", "MixesBatch mixes the examples of a batch"),
        ("FixedWidth", "FixedWidth raises on an input of shape"),
    ],
)
def test_what_cannot_be_probed(name: str, sentence: str) -> None:
    with pytest.raises(LayerError, match=sentence):
        usable(load_layer(f"{BAD_LAYERS}:{name}"), 4, 10, CPU)


def seen(name: str, width: int = 4, n_tokens: int = 10):
    layer = load_layer(name if ":" not in name else f"{BAD_LAYERS}{name}")
    return layer_facts(layer, usable(layer, width, n_tokens, CPU), width, n_tokens)


def test_a_leak_is_found_where_it_is() -> None:
    found = seen(":Leaky")
    assert found.leak is not None
    assert found.leak.output is not None
    assert found.leak.output < found.leak.later
    assert "Leaky is not causal: " in found.sentence("Leaky")
    assert "not causal" in found.obstacle


def test_full_attention_leaks_from_the_first_token() -> None:
    assert seen("transformer-encoder-layer").leak.output == 1


@pytest.mark.parametrize(
    "name", ["lstm", "rnn", "transformer-encoder-layer-causal", ":StateOfThree"]
)
def test_causal_layers_are_seen_as_causal(name: str) -> None:
    found = seen(name)
    assert (found.leak, found.ignores_input, found.dtype) == (None, False, "float64")


def test_a_blind_layer_is_told() -> None:
    found = seen(":Blind")
    assert found.ignores_input
    assert "Blind ignores its input" in found.sentence("Blind")


def test_the_declared_state_is_read() -> None:
    assert seen(":StateOfThree").declared_state == 3
    assert seen("lstm").declared_state == 8
    assert seen("transformer-encoder-layer").declared_state is None


def test_a_layer_that_computes_in_float32_alone() -> None:
    class Single(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.dtype != torch.float32:
                raise TypeError("float32 only")
            return super().forward(x)

    from ithbit.models.layer_source import layer_of

    module = usable(layer_of(lambda width: Single(width, width)), 4, 6, CPU)
    assert next(module.parameters()).dtype == torch.float32


def test_float32_inside_is_not_taken_for_float64() -> None:
    class Hidden(torch.nn.Module):
        """Takes and gives float64, as some kernels do, and sums in float32."""

        def __init__(self, width: int) -> None:
            super().__init__()
            self.map = torch.nn.Linear(width, width)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.map(x).float().cumsum(1).to(x.dtype)

    module = usable(layer_of(Hidden), 4, 6, torch.device("cpu"))
    assert next(module.parameters()).dtype == torch.float32
    plain = usable(load_layer("gru"), 4, 6, torch.device("cpu"))
    assert next(plain.parameters()).dtype == torch.float64
