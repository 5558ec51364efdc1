"""Loss and accuracy on fixed sets: held out at the training length, and shifted to n/2 and 2n."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ithbit.models.classifier import logits, matrix_numbers, with_buffers
from ithbit.models.stacked import Params
from ithbit.spec import ModelSpec, Protocol
from ithbit.tasks.indexing import n_tokens
from ithbit.tasks.margins import counts_as_right, margin_of
from ithbit.tasks.sampling import (
    DOUBLE_LENGTH_SEED,
    HALF_LENGTH_SEED,
    HELD_OUT_SEED,
    Examples,
    draw_examples,
    stream_keys,
)
from ithbit.tasks.structured import every_index, structured_strings
from ithbit.tasks.tokens import TokenTable, token_table

Logits = Callable[[Params, ModelSpec, TokenTable, Examples], Tensor]

_GPU_BATCH = 1000  # launches slow a GPU down: fewer and larger batches than on a CPU
_STRUCTURED_TOKENS = 1 << 20  # of structured inputs after training: about a second on a CPU
_NUMBERS = 1 << 30  # held at a time in evaluation: longer inputs go in smaller batches
_VECTOR = 32  # elements that a CPU's elementwise loop takes at a time: two of the widest vectors


def held_out_examples(
    spec: ModelSpec, protocol: Protocol, seeds: list[int], device: torch.device
) -> Examples:
    """The fixed held-out set of each seed: drawn from seed + 10,000."""
    keys = stream_keys([seed + HELD_OUT_SEED for seed in seeds], device)
    return draw_examples(keys, spec.n_bits, 0, protocol.held_out_examples)


def batch_that_fits(spec: ModelSpec, n_bits: int, most: int) -> int:
    """How many examples to evaluate at a time: `most`, or fewer if they are very long."""
    numbers = matrix_numbers(spec, n_bits) + 4 * spec.d_model * n_tokens(spec.task, n_bits)
    return max(1, min(most, _NUMBERS // numbers))


@torch.no_grad()
def evaluate(
    params: Params,
    spec: ModelSpec,
    table: TokenTable,
    examples: Examples,
    batch_size: int,
    logits: Logits = logits,
) -> tuple[Tensor, Tensor]:
    """Mean loss and accuracy (`counts_as_right`) of each seed on its examples."""
    losses, right = [], []
    for start in range(0, examples.index.shape[1], batch_size):
        stop = start + batch_size
        batch = Examples(examples.bits[:, start:stop], examples.index[:, start:stop])
        answer = batch.answer
        out = logits(params, spec, table, batch)
        losses.append(bce(out, answer))
        right.append(counts_as_right(out, answer))
    return torch.cat(losses, 1).mean(1), torch.cat(right, 1).double().mean(1)


def ordered_mean(x: Tensor) -> Tensor:
    """The mean of each row in double precision: seed example -> seed.

    Halves are added elementwise, so that the order of summation within a row does not depend on the
    number of rows, as it may in a library's reduction on a GPU.
    """
    count = x.shape[1]
    x = F.pad(x.double(), (0, (1 << (count - 1).bit_length()) - count))
    while x.shape[1] > 1:
        half = x.shape[1] // 2
        x = x[:, :half] + x[:, half:]
    return x[:, 0] / count


def bce(out: Tensor, answer: Tensor) -> Tensor:
    """Binary cross-entropy of every example: seed batch.

    A CPU computes exponentials in vectors, and those left at the end of a tensor one by one, which
    rounds differently. Rows are padded so that this never depends on a run being alone or last.
    """
    filled = (0, -out.shape[1] % _VECTOR)
    out, answer = F.pad(out, filled), F.pad(answer.to(out.dtype), filled)
    loss = F.binary_cross_entropy_with_logits(out, answer, reduction="none")
    return loss[:, : loss.shape[1] - filled[1]]


def shifted_accuracy(
    params: Params,
    spec: ModelSpec,
    protocol: Protocol,
    seeds: list[int],
    *,
    logits: Logits = logits,
) -> tuple[list[float] | None, list[float] | None]:
    """Accuracy of each seed at n/2 and 2n bits; None where there is no such length, or a user's
    layer refuses it.

    As in the paper, the query's features are scaled by the instance's own length, while the
    polynomial positions keep the training length.
    """

    params = with_buffers(params, spec, seeds)

    def at(n_bits: int, first_seed: int) -> list[float] | None:
        device = params["embed"].device
        keys = stream_keys([seed + first_seed for seed in seeds], device)
        examples = draw_examples(keys, n_bits, 0, protocol.held_out_examples)
        table = token_table(spec.task, n_bits, params["embed"].dtype, device)
        most = _GPU_BATCH if device.type == "cuda" else protocol.batch_size
        batch_size = batch_that_fits(spec, n_bits, most)
        try:
            accuracy = evaluate(params, spec, table, examples, batch_size, logits)[1]
        except Exception:
            if not spec.code:
                raise
            return None  # the layer works at one length only
        return [float(value) for value in accuracy.tolist()]

    half = at(spec.n_bits // 2, HALF_LENGTH_SEED) if spec.n_bits >= 2 else None
    return half, at(2 * spec.n_bits, DOUBLE_LENGTH_SEED)


@torch.no_grad()
def structured_answers(
    params: Params, spec: ModelSpec, seed: int, logits: Logits = logits
) -> dict[str, Any]:
    """A trained model's answers to structured inputs, as fields of its result: how many inputs
    were tried (as many as the token budget allows), how many were wrong, and the first wrong one.
    """
    params, embed = with_buffers(params, spec, [seed]), params["embed"]
    table = token_table(spec.task, spec.n_bits, embed.dtype, embed.device)
    limit = _STRUCTURED_TOKENS // n_tokens(spec.task, spec.n_bits)
    batch_size = 4 * _GPU_BATCH if embed.is_cuda else _GPU_BATCH
    batch = batch_that_fits(spec, spec.n_bits, batch_size)
    strings = structured_strings(spec.n_bits, limit // spec.n_bits)
    n_tried, wrong, example = 0, 0, None
    for bits, index in every_index(strings, limit, batch, embed.device):
        examples = Examples(bits[None], index[None])
        out = logits(params, spec, table, examples)
        failed = ~(margin_of(out, examples.answer)[0] > 0)
        n_tried, missed = n_tried + len(index), int(failed.sum())
        if missed and not wrong:
            at = int(failed.int().argmax())
            text = "".join(map(str, bits[at].tolist()))
            example = f"bits {text}, index {int(index[at])}"
        wrong += missed
    return {
        "structured_tried": n_tried,
        "structured_wrong": wrong,
        "structured_example": example,
    }
