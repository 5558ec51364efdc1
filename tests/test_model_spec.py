import re

import pytest

from ithbit.errors import SpecError
from ithbit.spec import ModelSpec, RunSpec


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"task": "mid"}, "unknown task 'mid'; choose one of rhi, lhi"),
        ({"family": "lstm"}, "unknown family 'lstm'; choose one of softmax-full, softmax-causal"),
        ({"n_bits": 0}, "n must be at least 1, got 0"),
        ({"n_layers": 0}, "layers must be at least 1, got 0"),
        ({"d_model": -2}, "width must be at least 1, got -2"),
        ({"n_heads": 0}, "heads must be at least 1, got 0"),
        ({"d_ff": 0}, "feed-forward width must be at least 1, got 0"),
        ({"d_state": 0}, "state must be at least 1, got 0"),
        ({"n_heads": 3}, "heads must divide the width, got 3 heads at width 16"),
        ({"positions": "alibi"}, "unknown positions 'alibi'; choose one of none, learned"),
        (
            {"family": "gru", "positions": "rotary"},
            "rotary positions need a softmax family, got family 'gru'; use positions 'polynomial'",
        ),
        (
            {"d_model": 6, "positions": "rotary"},
            "rotary positions turn pairs of numbers and need an even head size, got 3",
        ),
        (
            {"d_model": 5, "n_heads": 1, "positions": "sinusoidal"},
            "sinusoidal positions need an even width, got 5",
        ),
    ],
)
def test_what_cannot_be_built_is_refused_with_the_reason(fields, message) -> None:
    given = {"task": "rhi", "family": "softmax-full", "n_bits": 8} | fields
    with pytest.raises(SpecError, match="^model: " + re.escape(message)):
        ModelSpec(**given)


def test_all_problems_are_named_at_once() -> None:
    with pytest.raises(SpecError) as caught:
        ModelSpec("mid", "lstm", n_bits=0, n_layers=0, n_heads=3, positions="alibi")
    for part in ("'mid'", "'lstm'", "n must", "layers must", "heads must divide", "'alibi'"):
        assert part in str(caught.value)


def test_a_users_layer_needs_its_code_and_no_other_family_has_one() -> None:
    spec = ModelSpec("rhi", "layers.py:Mine", 8, code="0123456789ab")
    assert spec == ModelSpec("rhi", "layers.py:Mine", 8, n_heads=5, d_ff=1, code="0123456789ab")
    for code in ("", "0123", "0123456789aB", 7):
        with pytest.raises(SpecError, match="a user's layer needs its code, 12 hexadecimal digits"):
            ModelSpec("rhi", "layers.py:Mine", 8, code=code)
    with pytest.raises(SpecError, match="only a user's layer has a code, got '0123456789ab'"):
        ModelSpec("rhi", "gru", 8, code="0123456789ab")


def test_names_of_users_layers_are_names_of_folders() -> None:
    for family in ("layers.py:Mine", "a b/ü:*?.py:Mine", "x" * 300 + ".py:Mine", "..:.."):
        run = RunSpec(ModelSpec("rhi", family, 8, code="0123456789ab"), seed=0)
        assert re.fullmatch(r"rhi_n8_[A-Za-z0-9._-]+_L1d16_polynomial_s0", run.name)
        assert len(run.folder) < 200
    others = [ModelSpec("rhi", "layers.py:Mine", 8, code=code * 12) for code in "ab"]
    assert len({RunSpec(spec, 0).name for spec in others}) == 1
    assert len({RunSpec(spec, 0).folder for spec in others}) == 2
