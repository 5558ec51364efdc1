"""The arithmetic and memory traffic that one optimiser step of one run cannot do without.

Only products are counted: 2 operations for a multiplication and its addition. Activation functions,
norms, softmax, gates, the optimiser and drawing the data are not, so a share of a ceiling computed
from this is a lower bound. The exact savings of `models/stacked.py` are subtracted: before the
first mixing, the token-wise products are those of the token table, once per step and not once per
example, and the last block answers at one token only. Sums over pairs of tokens are counted as the
models compute them, token by token; with a causal mask, only the pairs that it leaves. The backward
pass has two products for each one of the forward pass: a step costs three forward passes.

Letters: B examples, T tokens, R rows of the token table, d width, m feed-forward width, H heads,
N numbers of state per channel.
"""

from collections.abc import Iterator

from ithbit.families import family_named
from ithbit.layouts import MAMBA2
from ithbit.spec import ModelSpec
from ithbit.tasks.indexing import N_FEATURES, n_tokens

_FLOAT_BYTES = 4
_POSITION_FEATURES = 2


def step_flops(model: ModelSpec, batch: int) -> int:
    """Floating-point operations of one step of one run: three times the forward pass.

    >>> one = step_flops(ModelSpec("rhi", "softmax-full", n_bits=64), batch=256)
    >>> two = step_flops(ModelSpec("rhi", "softmax-full", n_bits=64, n_layers=2), batch=256)
    >>> two > 10 * one  # the first of two blocks has every token to answer for
    True
    """
    d = model.d_model
    products = table_rows(model) * d * (N_FEATURES + _POSITION_FEATURES) + batch * d
    products += sum(each for each, _ in _blocks(model, batch))
    return 3 * 2 * products


def step_bytes(model: ModelSpec, batch: int) -> int:
    """Bytes of activations that one step of one run must move at least.

    Each block's input and output once in the forward pass, and their gradients once in the backward
    pass. Data are drawn where they are used, so the first block's input is the token table.

    >>> step_bytes(ModelSpec("rhi", "gru", n_bits=8), batch=1)  # 24 rows in, one out, 16 wide
    3200
    """
    return 2 * _FLOAT_BYTES * model.d_model * sum(rows for _, rows in _blocks(model, batch))


def table_rows(model: ModelSpec) -> int:
    """Distinct tokens: two bits and one query per position, and for LHI the end token."""
    return 3 * model.n_bits + (model.task == "lhi")


def _blocks(model: ModelSpec, batch: int) -> Iterator[tuple[int, int]]:
    """For each block, the multiply-adds of its forward pass, and the rows that enter and leave."""
    d, m, N = model.d_model, model.d_ff, model.d_state
    family, n = family_named(model.family), n_tokens(model.task, model.n_bits)
    tokens = batch * n
    for number in range(model.n_layers):
        first, last = number == 0, number == model.n_layers - 1
        rows = table_rows(model) if first else tokens  # that enter
        out = batch if last else tokens  # rows that leave
        query = rows if first else out  # rows projected for those that leave
        every = n * (n + 1) // 2 if family.causal else n * n
        pairs = batch * (n if last else every)  # of tokens, to be mixed
        if family.kind == "gru":
            # The recurrence goes through every token even where only one state is needed.
            products = rows * 3 * d * d + tokens * 3 * d * d
        elif family.kind == "mamba2":
            gate = query * d * d
            enter = rows * d * (d + 2 * N + model.n_heads)
            convolution = MAMBA2.taps * (tokens * (d + N) + out * N)
            products = gate + enter + convolution + pairs * (N + d) + out * d * d
        else:
            products = query * d * d + rows * 2 * d * d  # queries; keys and values
            products += out * (d * d + 2 * d * m)  # output projection and feed-forward part
            if family.kind == "linear" and not family.causal and not last:
                # Sums of keys with values and of keys, computed once and read by every query.
                products += tokens * (2 * d * model.d_head + d)
            else:
                products += pairs * 2 * d
        yield products, rows + out
