"""Whether the logits of a whole model depend on later tokens.

Later token ids are replaced, by the rule of `comparison.effects_of_future`: same shape, and the
same bits are expected. A packed input (`language_model`) also allows vectors that no id has, and
the small move that separates rounding from leaks. Where a model gives other bits, a change must
also exceed what one unit of rounding at all embedded tokens does to the logits: the matrix products
of a layer of experts take another shape with every routing.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ithbit.contract.comparison import (
    SMALL_STEP,
    SURE,
    Effect,
    FutureEffects,
    effects_of_future,
    unit_of,
)
from ithbit.contract.findings import ClauseResult, Coverage, Finding
from ithbit.contract.language_model import move_packed, response
from ithbit.contract.model_snippets import causal_code, vectors_code
from ithbit.contract.model_trials import ModelTrials, Trial, not_checked, of_largest, result

LENGTHS = (17, 65, 2, 3, 5, 9, 33, 64, 100, 128, 129, 200, 256, 257, 300, 512, 513, 1000, 1025)
_EVERY_CUT = (130, 128, 64, 32, 16)  # the first length that the model takes
_ALL_CUTS = 17  # up to this length, every cut at once
_AT_LEAST = 2  # steps that are taken however little time there is
_LONG = 300  # beyond, a step is left out that may take longer than there is time
_ROWS = 16
_ENTRIES = 600_000  # of token-by-token matrices in one call
_VECTOR_LENGTHS = (65, 64, 33, 16)

# Other vectors from a cut on, made from what the embedding gives; and the same in code.
_FUTURES: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "other tokens 30 times as large": (lambda out: 30 * out.flip(1), "30 * out.flip(1)"),
    "zeros": (lambda out: 0 * out, "0 * out"),
    "signs": (lambda out: out.flip(1).sign(), "out.flip(1).sign()"),
    "copies of token 1": (lambda out: out[:, :1].expand_as(out), "out[:, :1].expand_as(out)"),
    "tokens 1000 times smaller": (lambda out: 1e-3 * out.flip(1), "1e-3 * out.flip(1)"),
    "other tokens 1000 times as large": (lambda out: 1e3 * out.flip(1), "1e3 * out.flip(1)"),
}
_HUGE = "other tokens 1000 times as large"  # these may overflow: a warning at most


@dataclass
class Tried:
    """What was tried so far in search of a leak."""

    lengths: set[int] = field(default_factory=set)
    cuts: int = 0
    futures: set[str] = field(default_factory=set)
    exact: bool = True
    overflow: Finding | None = None

    def coverage(self) -> Coverage:
        return Coverage(tuple(sorted(self.lengths)), self.cuts, len(self.futures))


def causal(trials: ModelTrials, seconds: float) -> tuple[ClauseResult, Tried]:
    """Few cuts at every length first: where a call is slow, length matters more than cuts; then
    borders of chunks, every cut at one length, other vectors, and random lengths and cuts."""
    tried, until = Tried(), min(time.process_time() + seconds, trials.until)
    latest = 0.0  # seconds that the step before took
    for number, (n_tokens, cuts) in enumerate(_plan(trials)):
        began = time.process_time()
        if began > until and number >= _AT_LEAST:
            break
        if n_tokens > _LONG and began + 2 * latest > until:
            continue
        finding = _replaced(trials, trials.trial(1, n_tokens, 1000 + number), cuts, tried)
        if finding is not None:
            return result("causal", finding, ""), tried
        latest = time.process_time() - began
    if trials.model.embedding is not None:
        finding = _other_vectors(trials, tried)
        if finding is not None:
            return result("causal", finding, ""), tried
    return result("causal", None, tried.coverage().sentence()), tried


def overflow(tried: Tried) -> ClauseResult:
    """What large later tokens made infinite, as a warning."""
    return result("overflow", tried.overflow, "later tokens up to 1000 times as large")


def causal_otherwise(trials: ModelTrials, clause: str) -> ClauseResult:
    """A shorter search for a leak in training mode or in another dtype."""
    tried, model = Tried(), trials.model
    if clause == "train-eval":
        model.module.train()
        model.seed = 1
        ids = trials.trial(1, 33, 0).ids
        if not torch.equal(model.score(ids), model.score(ids)):
            return not_checked(clause, "random in training mode, at a fixed seed too")
    for number, n_tokens in enumerate((33, 65, 130)):
        if not trials.model.accepts(n_tokens):
            continue
        cuts = [cut for cut in (1, 16, 32, 63, 64, n_tokens // 2, n_tokens - 1) if cut < n_tokens]
        trial = trials.trial(1, n_tokens, 2000 + number)
        finding = _replaced(trials, trial, sorted(set(cuts)), tried, clause)
        if finding is not None:
            return result(clause, finding, "")
    if not tried.cuts:
        return not_checked(clause, "no length is taken")
    return result(clause, None, tried.coverage().sentence())


def _plan(trials: ModelTrials) -> Iterator[tuple[int, Sequence[int]]]:
    """Lengths and cuts, in the order in which they are tried."""
    refused: set[int] = set()
    for n in LENGTHS:
        if trials.model.accepts(n):
            yield n, range(1, n) if n <= _ALL_CUTS else few_cuts(n)
        else:
            refused.add(n)
    for n in (each for each in LENGTHS if _ALL_CUTS < each <= 300 and each not in refused):
        yield n, border_cuts(n)
    for n in (each for each in _EVERY_CUT if trials.model.accepts(each)):
        yield n, range(1, n)
        break
    generator = torch.Generator().manual_seed(trials.settings.seed)
    for _ in range(1000):
        n = int(torch.randint(2, 260, (), generator=generator))
        if trials.model.accepts(n):
            yield n, sorted(set(torch.randint(1, n, (8,), generator=generator).tolist()))


def few_cuts(n_tokens: int) -> list[int]:
    """Cuts near both ends and in the middle, fewer where a call is slow.

    >>> few_cuts(64)
    [1, 2, 16, 32, 33, 63]
    """
    early = {2, n_tokens // 4} if n_tokens <= 300 else set()
    return sorted({1, n_tokens // 2, n_tokens // 2 + 1, n_tokens - 1} | early)


def border_cuts(n_tokens: int) -> list[int]:
    """Cuts at the ends and at borders of powers of two, one off on either side.

    >>> border_cuts(17)
    [1, 2, 5, 8, 14, 15, 16]
    """
    borders = {step * k + off for step in (16, 32, 64, 128) for k in (1, 3) for off in (-1, 0, 1)}
    cuts = {1, 2, n_tokens // 3, n_tokens // 2, n_tokens - 3, n_tokens - 2, n_tokens - 1} | borders
    return sorted(cut for cut in cuts if 0 < cut < n_tokens)


def _replaced(
    trials: ModelTrials,
    trial: Trial,
    cuts: Sequence[int],
    tried: Tried,
    clause: str = "causal",
) -> Finding | None:
    """Token ids are replaced from each cut on."""
    model, n = trials.model, trial.n_tokens
    generator = torch.Generator().manual_seed(trial.seed)
    model.draw(1, n, generator)  # those of the trial
    other = model.draw(1, n, generator)
    is_packed = model.embedding is not None
    inputs, futures = (model.pack(each) if is_packed else each for each in (trial.ids, other))
    effects = _effects(trials, trial.ids, inputs, futures, list(cuts), tried)
    tried.lengths.add(n)
    tried.cuts += len(cuts)
    tried.futures.add("other tokens")
    for effect in effects:
        if not effect.is_finite:
            continue
        how = {"causal": "", "train-eval": " in training mode"}.get(clause, f" in {clause}")
        sentence = (
            f"output {effect.output + 1} of {n} changes{how} when tokens {effect.cut + 1} to {n} "
            f"do: {of_largest(effect.size)}{trials.where}"
        )
        code = causal_code(trial.start, model, effect.cut, n, clause)
        return Finding(
            clause, sentence, n, effect.output + 1, effect.cut + 1, effect.size, effect.noise, code
        )
    return None


def _other_vectors(trials: ModelTrials, tried: Tried) -> Finding | None:
    """Vectors that no id has, from a cut on."""
    model = trials.model
    n = next((each for each in _VECTOR_LENGTHS if trials.model.accepts(each)), None)
    if n is None:
        return None
    trial = trials.trial(1, n, 900)
    packed = model.pack(trial.ids)
    cuts = sorted({cut for cut in (1, 2, n // 4, n // 2, n - 2, n - 1) if 0 < cut < n})
    for name, (future, text) in _FUTURES.items():
        others = torch.cat([future(packed[..., :-1]), packed[..., -1:]], -1)
        for effect in _effects(trials, trial.ids, packed, others, cuts, tried):
            sentence = (
                f"output {effect.output + 1} of {n} changes when the embedded tokens from "
                f"{effect.cut + 1} on become {name}: {of_largest(effect.size)}{trials.where}"
            )
            code = vectors_code(trial.start, model, effect.cut, text)
            numbers = (n, effect.output + 1, effect.cut + 1, effect.size, effect.noise)
            if effect.is_finite and name != _HUGE:
                return Finding("causal", sentence, *numbers, code)
            tried.overflow = tried.overflow or Finding("overflow", sentence, *numbers, code)
        tried.cuts += len(cuts)
        tried.futures.add(name)
    return None


def _effects(
    trials: ModelTrials,
    ids: Tensor,
    inputs: Tensor,
    futures: Tensor,
    cuts: list[int],
    tried: Tried,
) -> list[Effect]:
    """Effects of one future from each cut on, beyond what rounding at all tokens does."""
    model, n = trials.model, ids.shape[1]
    found: list[Effect] = []
    is_packed = inputs.dim() == 3
    generator = torch.Generator().manual_seed(trials.settings.seed)
    rows = max(1, min(_ROWS, _ENTRIES // n**2))
    if model.seed is not None:
        rows = 1  # dropout differs from row to row

    score = model.score_packed if is_packed else model.score
    unchanged: dict[int, Tensor] = {}  # logits of the inputs as they are, by the number of rows

    def compare(part: list[int]) -> FutureEffects:
        shape = (len(part), *[-1] * (inputs.dim() - 1))
        if len(part) not in unchanged or model.seed is not None:
            unchanged[len(part)] = score(inputs.expand(shape))
        return effects_of_future(
            score,
            inputs.expand(shape),
            part,
            futures.expand(shape),
            jitter=(lambda x, size: move_packed(x, size, generator)) if is_packed else None,
            unit=trials.precision,
            base=unchanged[len(part)],
        )

    for start in range(0, len(cuts), rows):
        comparison = compare(cuts[start : start + rows])
        tried.exact = tried.exact and comparison.exact
        found += comparison.effects
    if not found:
        return []
    if model.seed is None:  # alone, as the code of a finding shows it: rows may mix
        alone = [compare([effect.cut]) for effect in found]
        found = [effect for comparison in alone for effect in comparison.effects]
    unit = max(trials.precision, unit_of(model.dtype))
    moved = float(response(model, ids, trials.settings.seed).max()) * unit / SMALL_STEP
    least = [SURE * (moved + unit * effect.scale) for effect in found]
    over = [effect for effect, limit in zip(found, least, strict=True) if effect.change > limit]
    return sorted(over, key=lambda effect: (effect.output, effect.cut))
