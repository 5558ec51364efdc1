"""What the checks of a whole model share: inputs that code can draw again, and how far two ways of
computing the same logits may be apart.

Scoring, decoding, a prefix, a batch or padding compute the same logits in other shapes. Of 13 of
Hugging Face's models in float64, read token by token, correct ones differed by at most 1.6e-7 of
the largest logit where they normalise in float32 inside, and by 1e-15 elsewhere. `MARGIN` units of
float32, and as many times the response to one unit at the embedded tokens, are therefore let pass,
and a change must be seen at a second input: an expert that is chosen by a close call may change
with the last bit.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ithbit.contract.clauses import clause_named
from ithbit.contract.comparison import SMALL_STEP, apart, largest, unit_of
from ithbit.contract.findings import CheckSettings, ClauseResult, Finding
from ithbit.contract.language_model import LanguageModel, precision_inside, response
from ithbit.contract.model_snippets import Snippet

MARGIN = 100.0
_SEEDS = 1 << 31


@dataclass(frozen=True)
class Trial:
    """Token ids (row, token), the code that draws them, and what scoring gives."""

    ids: Tensor
    start: list[str]
    number: int
    seed: int

    @property
    def n_tokens(self) -> int:
        return self.ids.shape[1]


@dataclass(frozen=True)
class LogitsGap:
    """Two computations of the same logits that differ by more than rounding; from 0."""

    row: int
    output: int
    size: float  # as a part of the largest logit, over all rows and outputs
    noise: float


@dataclass(frozen=True)
class ModelTrials:
    """One model, at weights that the snippet states, and how long it may be tried."""

    model: LanguageModel
    snippet: Snippet
    settings: CheckSettings
    until: float  # by `time.process_time`
    precision: float  # the unit of the arithmetic inside

    def trial(self, rows: int, n_tokens: int, number: int) -> Trial:
        """The input of that number; each is drawn from its own seed."""
        seed = (self.settings.seed * 7919 + number) % _SEEDS
        ids = self.model.draw(rows, n_tokens, torch.Generator().manual_seed(seed))
        return Trial(ids, self.snippet.start(self.model, rows, n_tokens, seed), number, seed)

    @property
    def is_over(self) -> bool:
        """Whether time is up."""
        return time.process_time() > self.until

    @property
    def where(self) -> str:
        """What sentences add on the weights."""
        return ", with all matrices drawn again" if self.snippet.is_redrawn else ""

    def allowed(self, ids: Tensor, scale: float) -> Tensor:
        """By how much two ways of computing the logits of these tokens may differ (row, token)."""
        unit = max(self.precision, unit_of(torch.float32))
        moved = response(self.model, ids, self.settings.seed) * self.precision / SMALL_STEP
        return MARGIN * (moved + unit * scale)

    def difference(self, one: Tensor, whole: Tensor, ids: Tensor | None = None) -> LogitsGap | None:
        """Where two tensors of the logits of these tokens differ by more than rounding, if so;
        without tokens, they were computed in the same shape."""
        change = apart(one, whole).amax(-1)
        scale = float(largest(whole).max())
        allowed = torch.full_like(change, MARGIN * unit_of(torch.float32) * scale)
        if ids is not None and (change > allowed).any():  # NaN is no difference
            allowed = self.allowed(ids, scale)
        seen = change > allowed
        if not seen.any():
            return None
        output = int(seen.any(0).nonzero()[0, 0])
        row = int(seen[:, output].nonzero()[0, 0])
        size = float(change.nan_to_num(nan=0.0, posinf=torch.inf).max()) / scale
        return LogitsGap(row, output, size, float(allowed[row, output]) / scale / MARGIN)

    def repeated(self, look: Callable[[int], Finding | None], first: int) -> Finding | None:
        """What `look` finds at input `first`, if one of the two after it shows something too."""
        finding = look(first)
        if finding is None:
            return None
        confirmed = any(look(number) is not None for number in (first + 1, first + 2))
        return finding if confirmed else None


def result(clause: str, finding: Finding | None, note: str) -> ClauseResult:
    """The result of a clause that was tried."""
    if finding is None:
        return ClauseResult(clause, "kept", None, note)
    is_warning = clause_named(clause).is_warning
    return ClauseResult(clause, "warning" if is_warning else "broken", finding, note)


def not_checked(clause: str, note: str) -> ClauseResult:
    """The result of a clause that was not tried, with the reason."""
    return ClauseResult(clause, "not checked", None, note)


def start_trials(
    model: LanguageModel, snippet: Snippet, settings: CheckSettings, seconds: float
) -> ModelTrials:
    """Trials of a model that may take so many seconds of processor time."""
    ids = model.draw(2, 12, torch.Generator().manual_seed(settings.seed))
    precision = precision_inside(model, ids)
    return ModelTrials(model, snippet, settings, time.process_time() + seconds, precision)


def of_largest(size: float) -> str:
    """A size as sentences state it."""
    if size == torch.inf:
        return "NaN or infinity"
    if size < 1e-3:
        return f"{size:.1e} of the largest logit"
    return (
        f"{100 * size:.2g} % of the largest logit" if size < 1 else f"{size:.1f} times the largest"
    )


def blocks_text(blocks: Sequence[int]) -> str:
    """Block sizes, runs of equal ones counted.

    >>> blocks_text([8, 1, 1, 1])
    '8 + 3 x 1'
    """
    parts: list[str] = []
    start = 0
    for end in range(1, len(blocks) + 1):
        if end == len(blocks) or blocks[end] != blocks[start]:
            count = end - start
            parts.append(f"{count} x {blocks[start]}" if count > 1 else str(blocks[start]))
            start = end
    return " + ".join(parts)
