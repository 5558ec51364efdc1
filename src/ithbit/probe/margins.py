"""Margins of a model on inputs of the indexing task, and what is kept of very many of them.

The *margin* of an input is the logit of answer 1 if the answer is 1, and its negative if it is 0:
right answers have a positive margin. Zero and NaN are not right. All of it is *observed* in floats:
the sign of a margin within rounding of 0 may depend on the batch that the input is evaluated in, so
what is near 0 is evaluated again by itself.
"""

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

# bits (batch, n) of 0 and 1 as uint8, index (batch) from 1 -> the logit of answer 1 (batch)
Model = Callable[[Tensor, Tensor], Tensor]

NEAR = 1e-4  # far above float32 rounding of logits of order 1
_ALONE = 256  # inputs that may be evaluated again by themselves, those of least margin
_CPU_CHUNK = 2048  # what fits the caches of a core; larger is slower
_CUDA_CHUNK = 65536


@dataclass(frozen=True)
class Case:
    """One input with its margin; None stands for a margin that is not finite."""

    bits: str
    index: int
    margin: float | None

    @property
    def right(self) -> bool:
        return self.margin is not None and self.margin > 0

    def to_json(self) -> dict[str, Any]:
        return {"bits": self.bits, "index": self.index, "margin": self.margin}


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
    """The model as one that takes batches of any size, in chunks shared among threads on a CPU.

    A thread a core and one chunk a thread: these models are too small for the threads within an
    operation, which mostly wait for each other.
    """
    size = _CUDA_CHUNK if device.type == "cuda" else _CPU_CHUNK

    @torch.no_grad()
    def one(start: int, bits: Tensor, index: Tensor) -> Tensor:
        return model(bits[start : start + size], index[start : start + size])

    threads = torch.get_num_threads()
    with ThreadPoolExecutor(1 if device.type == "cuda" else workers) as pool:

        def whole(bits: Tensor, index: Tensor) -> Tensor:
            starts = range(0, len(index), size)
            return torch.cat(list(pool.map(lambda start: one(start, bits, index), starts)))

        torch.set_num_threads(1)
        try:
            yield whole
        finally:
            torch.set_num_threads(threads)


@dataclass
class Tally:
    """What is kept of the inputs evaluated so far: counts, and those of least margin."""

    n_evaluated: int = 0
    n_wrong: int = 0
    n_near: int = 0
    wrong_by_index: dict[int, int] = field(default_factory=dict)
    least: list[Case] = field(default_factory=list)

    def add(self, bits: Tensor, index: Tensor, margin: Tensor) -> None:
        """Take in a batch of inputs with their margins. Waits for the device."""
        wrong = ~(margin > 0)
        self.n_evaluated += len(margin)
        self.n_near += int((margin.abs() < NEAR).sum())
        if bool(wrong.any()):
            counts = torch.bincount(index[wrong]).tolist()
            for i, count in enumerate(counts):
                if count:
                    self.n_wrong += count
                    self.wrong_by_index[i] = self.wrong_by_index.get(i, 0) + count
        value, at = margin.topk(min(_ALONE, len(margin)), largest=False)
        strings, indices = bits[at].tolist(), index[at].tolist()
        found = {(case.bits, case.index): case for case in self.least}
        for string, i, m in zip(strings, indices, value.tolist(), strict=True):
            text = "".join(map(str, string))
            found.setdefault((text, i), Case(text, i, m if math.isfinite(m) else None))
        self.least = sorted(found.values(), key=_order)[:_ALONE]


def _order(case: Case) -> float:
    return -math.inf if case.margin is None else case.margin


@torch.no_grad()
def alone(model: Model, cases: list[Case], device: torch.device) -> list[Case]:
    """The same inputs, each evaluated by itself; least margin first."""
    out = []
    for case in cases:
        bits = torch.tensor([[int(bit) for bit in case.bits]], dtype=torch.uint8, device=device)
        index = torch.tensor([case.index], device=device)
        margin = float(margins(model(bits, index), bits, index))
        out.append(Case(case.bits, case.index, margin if math.isfinite(margin) else None))
    return sorted(out, key=_order)
