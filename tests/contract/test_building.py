"""How a layer is made from what a user gives."""

import pytest
from torch import nn

from ithbit.contract.building import arguments_of


class OwnArguments(nn.GRU):
    def __init__(self, width: int) -> None:
        super().__init__(width, width, batch_first=True)


class Inherits(nn.LSTM):
    pass


@pytest.mark.parametrize(
    ("layer", "arguments"),
    [
        (nn.GRU, "8, 8, batch_first=True"),
        (Inherits, "8, 8, batch_first=True"),
        (OwnArguments, "8"),
    ],
)
def test_torch_recurrences_and_classes_made_of_them(layer: type, arguments: str) -> None:
    assert arguments_of(layer, "layer", 8) == (arguments, False)
