"""The margins of a model, and a search for a wrong answer that starts where one is likely.

Right answers have a positive *margin*, as `tasks/margins.py` defines it: not zero, and not of a
logit that is NaN or infinite. All of it is *observed* in floats: the sign of a margin within
rounding of 0 may depend on the batch that the input is evaluated in, so inputs with a margin near 0
are evaluated again one by one.

*Structured* inputs are plain strings (`tasks/structured.py`); those with *two bits* are so many
that they come later. *Densities* are strings of two densities with a cut (`tasks/sampling.py`).
*Descent* starts from the inputs of least margin so far and makes single changes, trying all n bit
flips and all n - 1 other indices, as long as the margin falls. *Search* spends a budget: first on
random inputs, half of them densities, every index equally often; then on descent from those of
least margin at each index, where a restart at a local minimum gets some bits flipped at random.
*Empirical*: finding nothing proves nothing.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ithbit.engine.device import one_thread
from ithbit.store.records import Case, Verification
from ithbit.tasks.margins import margin_of
from ithbit.tasks.sampling import draw_densities, draw_examples, stream_keys
from ithbit.tasks.structured import every_index, plain_strings, two_bit_strings

# bits (batch, n) of 0 and 1 as uint8, index (batch) from 1 -> the logit of answer 1 (batch)
Model = Callable[[Tensor, Tensor], Tensor]

NEAR = 1e-4  # far above float32 rounding of logits of order 1
_MOST_RECHECKED = 256  # inputs of least margin that are evaluated again one by one
MOST_CONFIRMED = 8  # inputs wrong in a batch that are evaluated again to confirm it
_CPU_CHUNK = 2048  # what fits the caches of a core; larger is slower
_CUDA_CHUNK = 65536
_BATCH = 1 << 12  # inputs tried at once, before looking for a wrong one; a GPU takes more
_CUDA_BATCH = 1 << 16
_COMPARED_ALL, _COMPARED = 1 << 14, 1 << 11  # inputs on which two evaluators are compared
_STARTS = 64  # of the descent
_RANDOM_SHARE = 4  # one in so many tries of the search is random, the others descend
_RESTARTS = 64  # of the search, at least; every index has at least one
_CUDA_RESTARTS = 512


def margins(logit: Tensor, bits: Tensor, index: Tensor) -> Tensor:
    """The margin of every input, -inf where the logit is not finite.

    >>> margins(torch.tensor([2.0, 2.0]), torch.tensor([[1], [0]]), torch.tensor([1, 1])).tolist()
    [2.0, -2.0]
    """
    answer = bits.gather(1, (index - 1).unsqueeze(1)).squeeze(1)
    return margin_of(logit, answer)


@contextmanager
def in_chunks(model: Model, device: torch.device, workers: int) -> Iterator[Model]:
    """The model for batches of any size, split into chunks that threads share on a CPU.

    One thread per core and one chunk per thread: these models are too small for threads within an
    operation, which would mostly wait for each other.
    """
    size, workers = (_CUDA_CHUNK, 1) if device.type == "cuda" else (_CPU_CHUNK, workers)
    chunk = torch.no_grad()(model)
    with ThreadPoolExecutor(workers) as pool, one_thread():
        yield lambda bits, index: torch.cat(
            list(pool.map(chunk, bits.split(size), index.split(size)))
        )


@dataclass
class Tally:
    """Summary of the inputs evaluated so far: counts, and the inputs of least margin."""

    n_evaluated: int = 0
    n_wrong: int = 0
    n_near: int = 0
    wrong_by_index: dict[int, int] = field(default_factory=dict)
    least: list[Case] = field(default_factory=list)

    def add(self, bits: Tensor, index: Tensor, margin: Tensor) -> None:
        """Add a batch of inputs with their margins. Waits for the device."""
        full = len(self.least) == _MOST_RECHECKED
        bound = margin_key(self.least[-1]) if full else math.inf
        wrong, near = ~(margin > 0), margin.abs() < NEAR
        n_near, n_wrong, n_less = torch.stack(
            [near.sum(), wrong.sum(), (margin < bound).sum()]
        ).tolist()
        self.n_evaluated += len(margin)
        self.n_near += n_near
        self.n_wrong += n_wrong
        if n_wrong:
            for i, count in enumerate(torch.bincount(index[wrong]).tolist()):
                if count:
                    self.wrong_by_index[i] = self.wrong_by_index.get(i, 0) + count
        k = min(_MOST_RECHECKED, n_less if full else len(margin))
        if k == 0:
            return
        value, at = margin.topk(k, largest=False)
        strings, indices = bits[at].tolist(), index[at].tolist()
        cases = {(case.bits, case.index): case for case in self.least}
        for string, i, m in zip(strings, indices, value.tolist(), strict=True):
            text = "".join(map(str, string))
            cases.setdefault((text, i), _case(text, i, m))
        self.least = sorted(cases.values(), key=margin_key)[:_MOST_RECHECKED]


def _case(bits: str, index: int, margin: float) -> Case:
    return Case(bits, index, margin if math.isfinite(margin) else None)


def margin_key(case: Case) -> float:
    """The margin as a sort key: cases whose margin is not finite come first."""
    return -math.inf if case.margin is None else case.margin


class RefutedError(Exception):
    """Raised when a wrong answer ends a search."""


@dataclass
class InputEvaluator:
    """Evaluates inputs and keeps a tally; raises `RefutedError` at the first answer that is wrong
    both in its batch and by itself, unless `count` is set."""

    model: Model  # takes batches of any size
    single: Model
    device: torch.device
    count: bool = False
    tally: Tally = field(default_factory=Tally)

    def __call__(self, bits: Tensor, index: Tensor) -> Tensor:
        """The margins of inputs."""
        values = margins(self.model(bits, index), bits, index)
        before = self.tally.n_wrong
        self.tally.add(bits, index, values)
        if self.tally.n_wrong > before and not self.count:
            wrong = [case for case in self.tally.least if not case.right]
            again = evaluate_singly(self.single, wrong[:MOST_CONFIRMED], self.device)
            if not all(case.right for case in again):
                raise RefutedError
        return values


def tensors(cases: Sequence[Case], device: torch.device) -> tuple[Tensor, Tensor]:
    """Inputs as bits and index."""
    bits = torch.tensor([[int(bit) for bit in case.bits] for case in cases], dtype=torch.uint8)
    return bits.to(device), torch.tensor([case.index for case in cases], device=device)


@torch.no_grad()
def evaluate_singly(model: Model, cases: list[Case], device: torch.device) -> list[Case]:
    """The same inputs, each evaluated by itself; least margin first."""
    inputs = [tensors([case], device) for case in cases]
    values = [float(margins(model(bits, index), bits, index)) for bits, index in inputs]
    again = [_case(case.bits, case.index, m) for case, m in zip(cases, values, strict=True)]
    return sorted(again, key=margin_key)


@torch.no_grad()
def agree(model: Model, stacked: Model, verification: Verification, seed: int = 0) -> bool:
    """Whether the stacked models agree on a CPU: on a counterexample that it is wrong, else on
    every logit with `model`, to within half of the least margin. Tried are the input of least
    margin, its neighbours and random inputs, or all of them if they are few.

    Both round: with weights that make much of the last digits, either may be far from the other.
    """
    cpu, n = torch.device("cpu"), verification.n_bits
    if verification.counterexample is not None:
        return not evaluate_singly(stacked, [verification.counterexample], cpu)[0].right
    if verification.verdict == "unsettled":
        return True
    bits, index = tensors([verification.worst], cpu)
    if verification.n_inputs <= _COMPARED_ALL:
        number = torch.arange(verification.n_inputs)
        more = (number[:, None] // n >> torch.arange(n) & 1).to(torch.uint8), number % n + 1
    else:
        count = min(_COMPARED, max(_COMPARED >> 7, verification.n_evaluated >> 6))
        examples = draw_examples(stream_keys([seed]), n, 0, count, "mixed")
        around = bits ^ torch.eye(min(n, count), n, dtype=torch.uint8)
        at = torch.cat([index.expand(len(around)), examples.index[0]])
        more = torch.cat([around, examples.bits[0]]), at
    bits, index = torch.cat([bits, more[0]]), torch.cat([index, more[1]])
    with one_thread():
        pairs = zip(bits.split(_CPU_CHUNK), index.split(_CPU_CHUNK), strict=True)
        least = margin_key(verification.worst)
        near = (2 * (model(*pair) - stacked(*pair)).abs() <= least for pair in pairs)
        return all(bool(each.all()) for each in near)


def _batch(device: torch.device) -> int:
    return _CUDA_BATCH if device.type == "cuda" else _BATCH


def try_structured(
    evaluate: InputEvaluator, n_bits: int, limit: int, two_bits: bool = False
) -> None:
    """Try at most `limit` structured inputs: those with two bits set or two not set, or all the
    others."""
    strings = two_bit_strings(n_bits, limit // n_bits) if two_bits else plain_strings(n_bits)
    for inputs in every_index(strings, limit, _batch(evaluate.device), evaluate.device):
        evaluate(*inputs)


def try_densities(evaluate: InputEvaluator, n_bits: int, count: int, seed: int) -> None:
    """Try `count` strings of two densities with a cut, at uniform indices."""
    keys = stream_keys([seed], evaluate.device)
    for first in range(0, count, _batch(evaluate.device)):
        examples = draw_densities(keys, n_bits, first, min(_batch(evaluate.device), count - first))
        evaluate(examples.bits[0], examples.index[0])


def descend(evaluate: InputEvaluator, n_bits: int, limit: int) -> None:
    """Descend from the least margins of the tally, each by its best change until none is better,
    with at most `limit` inputs."""
    starts = evaluate.tally.least[: min(_STARTS, limit // (2 * n_bits - 1))]
    bits, index = tensors(starts, evaluate.device)
    least = torch.tensor([margin_key(case) for case in starts], device=evaluate.device)
    while len(index) and len(index) * (2 * n_bits - 1) <= limit:
        limit -= len(index) * (2 * n_bits - 1)
        bits, index, value = _best_change(evaluate, bits, index)
        better = value < least
        bits, index, least = bits[better], index[better], value[better]


def search(evaluate: InputEvaluator, n_bits: int, tries: int, seed: int = 0) -> None:
    """Try at most `tries` inputs (at least one per restart) in search of the least margin.

    >>> def sure(bits, index):
    ...     return (bits.gather(1, index[:, None] - 1)[:, 0] * 2.0 - 1) * (1 + bits.sum(1))
    >>> evaluate = InputEvaluator(sure, sure, torch.device("cpu"))
    >>> search(evaluate, 32, 200_000)
    >>> evaluate.tally.least[0].margin
    1.0
    """
    generator = torch.Generator().manual_seed(seed)
    end = evaluate.tally.n_evaluated + tries
    least_restarts = _CUDA_RESTARTS if evaluate.device.type == "cuda" else _RESTARTS
    restarts = -(-least_restarts // n_bits) * n_bits
    bits, index, least = _random_phase(evaluate, n_bits, restarts, tries // _RANDOM_SHARE, seed)
    while evaluate.tally.n_evaluated + restarts * (2 * n_bits - 1) <= end:
        moved, at, value = _best_change(evaluate, bits, index)
        better = value < least
        index = torch.where(better, at, index)
        least = torch.where(better, value, torch.inf)  # after flips, any first step is taken
        bits = torch.where(better[:, None], moved, _flip_some_bits(bits, generator))


def _random_phase(
    evaluate: InputEvaluator, n_bits: int, restarts: int, tries: int, seed: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The random input of least margin for each restart: bits, index, margin."""
    device, row = evaluate.device, torch.arange(restarts, device=evaluate.device)
    best_index, keys = row % n_bits + 1, stream_keys([seed], evaluate.device)
    best_bits = torch.zeros(restarts, n_bits, dtype=torch.uint8, device=device)
    best = torch.full((restarts,), torch.inf, device=device)
    rows, first = max(1, min(1 << 16, tries) // restarts), 0
    while True:  # at least once: every restart needs an input to start from
        # Each restart gets consecutive strings, so that every index has both kinds.
        bits = draw_examples(keys, n_bits, first, rows * restarts, "mixed").bits[0]
        bits = bits.view(restarts, rows, n_bits).transpose(0, 1)
        flat_index = best_index.repeat(rows)
        margin = evaluate(bits.flatten(0, 1), flat_index)
        value, at = margin.view(rows, restarts).min(0)
        value = value.to(best.dtype)
        best_bits = torch.where((value < best)[:, None], bits[at, row], best_bits)
        best = torch.minimum(best, value)
        first += rows * restarts
        if tries - first < rows * restarts:
            return best_bits, best_index, best


def _best_change(
    evaluate: InputEvaluator, bits: Tensor, index: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """For each input, the single change of least margin: bits, index, margin."""
    n = bits.shape[1]
    one = torch.eye(n, dtype=torch.uint8, device=bits.device)
    same = bits[:, None].expand(-1, n - 1, -1)
    near = torch.cat([bits[:, None] ^ one, same], 1)
    other = (index[:, None] - 1 + torch.arange(1, n, device=bits.device)) % n + 1
    at = torch.cat([index[:, None].expand(-1, n), other], 1)
    value, best = evaluate(near.flatten(0, 1), at.flatten()).view(len(index), -1).min(1)
    row = torch.arange(len(index), device=bits.device)
    return near[row, best], at[row, best], value


def _flip_some_bits(bits: Tensor, generator: torch.Generator) -> Tensor:
    """Flip each bit with chance 1/4: enough to leave a basin, not enough to lose everything."""
    flips = torch.rand(bits.shape, generator=generator) < 0.25
    return bits ^ flips.to(bits.device, torch.uint8)
