"""Margins of a model on inputs of the indexing task, and a summary of very many of them.

The *margin* of an input is the logit of answer 1 if the answer is 1, and its negative if it is 0:
right answers have a positive margin. Zero and NaN are not right. All of it is *observed* in floats:
the sign of a margin within rounding of 0 may depend on the batch that the input is evaluated in, so
inputs with a margin near 0 are evaluated again one by one.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ithbit.engine.device import one_thread
from ithbit.store.records import Case

# bits (batch, n) of 0 and 1 as uint8, index (batch) from 1 -> the logit of answer 1 (batch)
Model = Callable[[Tensor, Tensor], Tensor]

NEAR = 1e-4  # far above float32 rounding of logits of order 1
_ALONE = 256  # at most so many inputs, those of least margin, are evaluated again one by one
TRUSTED = 8  # at most so many inputs that are wrong in a batch are evaluated again to confirm it
_CPU_CHUNK = 2048  # what fits the caches of a core; larger is slower
_CUDA_CHUNK = 65536


def margins(logit: Tensor, bits: Tensor, index: Tensor) -> Tensor:
    """The margin of every input, -inf where the logit is NaN.

    >>> margins(torch.tensor([2.0, 2.0]), torch.tensor([[1], [0]]), torch.tensor([1, 1])).tolist()
    [2.0, -2.0]
    """
    answer = bits.gather(1, (index - 1).unsqueeze(1)).squeeze(1)
    margin = torch.where(answer == 1, logit, -logit)
    return torch.where(margin.isnan(), -math.inf, margin)


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
        full = len(self.least) == _ALONE
        bound = order(self.least[-1]) if full else math.inf
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
        k = min(_ALONE, n_less if full else len(margin))
        if k == 0:
            return
        value, at = margin.topk(k, largest=False)
        strings, indices = bits[at].tolist(), index[at].tolist()
        found = {(case.bits, case.index): case for case in self.least}
        for string, i, m in zip(strings, indices, value.tolist(), strict=True):
            text = "".join(map(str, string))
            found.setdefault((text, i), _case(text, i, m))
        self.least = sorted(found.values(), key=order)[:_ALONE]


def _case(bits: str, index: int, margin: float) -> Case:
    return Case(bits, index, margin if math.isfinite(margin) else None)


def order(case: Case) -> float:
    """The margin as a sort key: cases whose margin is not finite come first."""
    return -math.inf if case.margin is None else case.margin


class RefutedError(Exception):
    """Raised when a wrong answer ends a search."""


@dataclass
class Asker:
    """Evaluates inputs and keeps a tally; raises `RefutedError` at the first answer that is wrong
    both in its batch and alone, unless `count` is set."""

    model: Model  # takes batches of any size
    single: Model
    device: torch.device
    count: bool = False
    tally: Tally = field(default_factory=Tally)

    def __call__(self, bits: Tensor, index: Tensor) -> Tensor:
        """The margins of inputs."""
        found = margins(self.model(bits, index), bits, index)
        before = self.tally.n_wrong
        self.tally.add(bits, index, found)
        if self.tally.n_wrong > before and not self.count:
            wrong = [case for case in self.tally.least if not case.right]
            if not all(case.right for case in alone(self.single, wrong[:TRUSTED], self.device)):
                raise RefutedError
        return found


def tensors(cases: Sequence[Case], device: torch.device) -> tuple[Tensor, Tensor]:
    """Inputs as bits and index."""
    bits = torch.tensor([[int(bit) for bit in case.bits] for case in cases], dtype=torch.uint8)
    return bits.to(device), torch.tensor([case.index for case in cases], device=device)


@torch.no_grad()
def alone(model: Model, cases: list[Case], device: torch.device) -> list[Case]:
    """The same inputs, each evaluated by itself; least margin first."""
    inputs = [tensors([case], device) for case in cases]
    found = [float(margins(model(bits, index), bits, index)) for bits, index in inputs]
    alone = [_case(case.bits, case.index, m) for case, m in zip(cases, found, strict=True)]
    return sorted(alone, key=order)
