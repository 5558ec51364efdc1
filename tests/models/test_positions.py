"""Each encoding against an evaluation of its own, number by number."""

import cmath
import math

import pytest
import torch

from ithbit.models import positions
from ithbit.spec import ModelSpec

# Positions past the training length too, as the length-shifted sets have them.
AT = torch.tensor([0, 1, 2, 5, 9, 17])


def test_polynomial_positions_are_two_powers_of_the_training_fraction() -> None:
    for task, last in (("rhi", 8), ("lhi", 9)):
        spec = ModelSpec(task, "gru", n_bits=8, d_model=3, n_heads=1)
        weight = torch.randn(
            2, 3, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
        )
        got = positions.encode({"polynomial": weight}, spec, AT, torch.float64)
        for seed in range(2):
            for row, t in enumerate(AT.tolist()):
                for j in range(3):
                    first, second = weight[seed, j].tolist()
                    expected = first * (t / last) + second * (t / last) ** 2
                    assert got[seed, row, j].item() == pytest.approx(expected, rel=1e-12)


def test_learned_positions_are_rows_of_a_table_of_twice_the_length() -> None:
    spec = ModelSpec("lhi", "gru", n_bits=8, positions="learned")
    params = positions.init(spec, torch.Generator().manual_seed(0))
    assert params["learned"].shape == (18, 16)
    got = positions.encode({"learned": params["learned"][None]}, spec, AT, torch.float32)
    for row, t in enumerate(AT.tolist()):
        assert torch.equal(got[0, row], params["learned"][t])


def test_sinusoidal_positions_are_sines_and_cosines_in_turn() -> None:
    spec = ModelSpec("rhi", "gru", n_bits=8, positions="sinusoidal")
    assert positions.init(spec, torch.Generator()) == {}
    got = positions.encode({}, spec, AT, torch.float64)[0]
    for row, t in enumerate(AT.tolist()):
        for j in range(8):
            angle = t / 10000 ** (2 * j / 16)
            assert got[row, 2 * j].item() == pytest.approx(math.sin(angle), abs=1e-13)
            assert got[row, 2 * j + 1].item() == pytest.approx(math.cos(angle), abs=1e-13)


@pytest.mark.parametrize("name", ["none", "rotary"])
def test_some_encodings_add_nothing(name) -> None:
    spec = ModelSpec("rhi", "softmax-full", n_bits=8, positions=name)
    assert positions.init(spec, torch.Generator()) == {}
    assert positions.encode({}, spec, AT, torch.float32) is None


def test_rotation_turns_neighbouring_pairs_as_complex_numbers() -> None:
    x = torch.randn(6, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    got = positions.rotate(x, AT)
    for row, t in enumerate(AT.tolist()):
        for j in range(4):
            pair = complex(*x[row, 2 * j : 2 * j + 2].tolist())
            turned = pair * cmath.exp(1j * t / 10000 ** (2 * j / 8))
            assert got[row, 2 * j].item() == pytest.approx(turned.real, abs=1e-13)
            assert got[row, 2 * j + 1].item() == pytest.approx(turned.imag, abs=1e-13)


def test_rotated_products_depend_on_the_distance_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 1, 8, dtype=torch.float64, generator=generator)
    products = {
        (s, t): (positions.rotate(q, torch.tensor([s])) @ positions.rotate(k, torch.tensor([t])).T)
        for s, t in ((0, 3), (7, 10), (40, 43), (3, 0))
    }
    assert products[0, 3].item() == pytest.approx(products[7, 10].item(), rel=1e-12)
    assert products[0, 3].item() == pytest.approx(products[40, 43].item(), rel=1e-12)
    assert products[0, 3].item() != pytest.approx(products[3, 0].item(), rel=1e-3)
