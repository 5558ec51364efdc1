import pytest
import torch
from tests.support.every_token import token_rows

from ithbit.reference.models import dense_features
from ithbit.tasks.indexing import all_inputs, n_tokens
from ithbit.tasks.tokens import token_table


@pytest.mark.parametrize("task", ["rhi", "lhi"])
@pytest.mark.parametrize("n", [1, 2, 5])
def test_rows_of_the_table_are_the_dense_features(task, n) -> None:
    """For every input of the length; each token also stands where the table says it does."""
    table = token_table(task, n, dtype=torch.float64)
    assert len(table.features) == len(table.positions) == 3 * n + (task == "lhi")
    for bits, index in all_inputs(n):
        bits, index = torch.from_numpy(bits), torch.from_numpy(index)
        rows = token_rows(task, bits, index)
        expected = dense_features(task, bits, index, torch.float64)
        assert torch.equal(table.features[rows], expected)
        places = torch.arange(n_tokens(task, n)).expand(len(bits), -1)
        assert torch.equal(table.positions[rows], places)


def test_rows_keep_leading_axes() -> None:
    bits = torch.tensor([[[0, 1], [1, 1]], [[1, 0], [0, 0]], [[0, 0], [1, 0]]])
    index = torch.tensor([[1, 2], [2, 1], [1, 1]])
    rows = token_rows("lhi", bits, index)
    assert rows.shape == (3, 2, 4)
    for i in range(3):
        for j in range(2):
            assert torch.equal(rows[i, j], token_rows("lhi", bits[i, j], index[i, j]))
