"""The contract of a whole causal language model: causality on token ids and on embedded tokens,
decoding with a cache, chunks, prefixes, batches, padding.

A model is tried as it was built, then with all matrices drawn again: initial weights of 0.02 make
attention nearly uniform, and hide much. A finding says which weights it is about.
"""

import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from ithbit.contract.findings import (
    CheckSettings,
    ClauseResult,
    ContractReport,
    Coverage,
    Finding,
)
from ithbit.contract.language_model import LanguageModel
from ithbit.contract.model_causality import Tried, causal, causal_otherwise, overflow
from ithbit.contract.model_decoding import batch, decoding, length, padding
from ithbit.contract.model_snippets import Snippet, call_text, logits_text, redraw
from ithbit.contract.model_sources import ModelSource, model_source
from ithbit.contract.model_trials import (
    ModelTrials,
    not_checked,
    of_largest,
    result,
    start_trials,
)
from ithbit.engine.device import one_thread
from ithbit.errors import LayerError
from ithbit.models.layer_source import BUILDING
from ithbit.models.user_code import FAILURES, error_text

Build = Callable[[], nn.Module]
_CAUSAL_SHARE = 0.6  # of the time that is left for one set of weights after the quick clauses
_SLOW = ("float32", "bfloat16", "train-eval")
_STEADY = ("deterministic", "stateless")  # where these are broken, nothing else can be compared
_PLAIN = 1e-3  # of the largest logit
_OUTCOMES = ("broken", "warning", "kept", "not checked")  # of two passes, the first is reported


def check_model(
    given: Any,
    settings: CheckSettings | None = None,
    name: str = "",
    beat: Callable[[str], None] = lambda text: None,
) -> ContractReport:
    """Check a whole model, in any form that `model_sources` takes; `beat` hears what is next.

    What cannot be built or called is a report that says so.
    """
    settings, started = settings or CheckSettings(), time.process_time()
    report = ContractReport(
        name or (given if isinstance(given, str) else type(given).__name__), settings=settings
    )
    with ExitStack() as stack:
        stack.enter_context(one_thread())
        stack.enter_context(torch.random.fork_rng())
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        try:
            source = model_source(given, name)
            report = _checked(source, settings, replace(report, name=source.name), beat)
        except LayerError as error:
            report = replace(report, cannot=str(error))
        except FAILURES as error:
            report = replace(report, cannot=f"it cannot be called: {error_text(error)}")
    return replace(report, seconds=time.process_time() - started)


def _checked(
    source: ModelSource,
    settings: CheckSettings,
    report: ContractReport,
    beat: Callable[[str], None],
) -> ContractReport:
    build = source.build
    beat("it is built")
    model_in(build, settings, False)  # a first time: what it imports is not counted
    until = time.process_time() + settings.seconds
    results = {name: not_checked(name, why) for name, why in source.by_design.items()}
    coverage, remarks = Coverage(), []
    for is_redrawn in (False, True):
        snippet = Snippet(source.source, settings.seed, is_redrawn)
        seconds = (until - time.process_time()) * (1.0 if is_redrawn else 0.5)
        model = model_in(build, settings, is_redrawn)
        model.beat = beat
        if is_redrawn and not _is_usable(model):
            remarks.append("weights were not drawn again: logits are not finite with them")
            break
        if model.dtype != getattr(torch, settings.dtype) and not is_redrawn:
            remarks.append(f"checked in float32: it takes no {settings.dtype}")
        trials = start_trials(model, snippet, settings, seconds)
        skip = {name for name, each in results.items() if _is_plain(each)} | set(source.by_design)
        found, tried = check_clauses(trials, build, skip)
        for each in found:
            earlier = results.get(each.clause)
            if earlier is None or _rank(each) < _rank(earlier):
                results[each.clause] = each
        coverage = _joined(coverage, tried.coverage())
        if any(each.outcome == "broken" for each in found if each.clause in _STEADY):
            break
    allowed = [_allowed(each, settings) for each in results.values()]
    return replace(report, results=tuple(allowed), coverage=coverage, remarks=tuple(remarks))


def model_in(build: Build, settings: CheckSettings, is_redrawn: bool) -> LanguageModel:
    """A new model in the widest of the dtypes that it takes."""
    errors: list[str] = []
    for dtype in dict.fromkeys((getattr(torch, settings.dtype), torch.float32)):
        model = LanguageModel(_built(build, settings.seed, is_redrawn), dtype, settings.device)
        try:
            ids = model.draw(2, 9, torch.Generator().manual_seed(0))
            model.score(ids)
        except FAILURES as error:
            errors.append(error_text(error))
            continue
        try:
            model.pack(ids)
        except FAILURES:  # it embeds other tokens than the given ones
            model.embedding = None
        return model
    raise LayerError(f"it cannot score 9 tokens: {errors[-1]}")


def _built(build: Build, seed: int, is_redrawn: bool) -> nn.Module:
    with BUILDING:
        torch.manual_seed(seed)
        try:
            module = build()
        except FAILURES as error:
            raise LayerError(f"it cannot be built: {error_text(error)}") from error
    if not isinstance(module, nn.Module):
        raise LayerError(f"give a torch.nn.Module, got {type(module).__name__}")
    if is_redrawn:
        redraw(module, seed)
    return module


def _is_usable(model: LanguageModel) -> bool:
    ids = model.draw(2, 33 if model.accepts(33) else 9, torch.Generator().manual_seed(1))
    return bool(model.score(ids).isfinite().all())


def check_clauses(
    trials: ModelTrials, build: Build, skip: set[str]
) -> tuple[list[ClauseResult], Tried]:
    """All clauses at one set of weights, but those to skip."""
    tried = Tried()

    def look_for_leaks() -> ClauseResult:
        nonlocal tried
        found, tried = causal(trials, _CAUSAL_SHARE * _left(trials))
        return found

    def in_float32() -> ModelTrials:
        # Masks are made of the least number of a dtype: where float64 meets float32, it overflows.
        if trials.model.dtype != torch.float64:
            return trials
        module = _built(build, trials.settings.seed, trials.snippet.is_redrawn)
        model = LanguageModel(module, torch.float32, trials.settings.device)
        return start_trials(model, trials.snippet, trials.settings, _left(trials))

    broken = set(skip)
    checks: dict[str, Callable[[], ClauseResult]] = {
        "input": partial(_input, trials),
        "deterministic": partial(_deterministic, trials),
        "stateless": partial(_stateless, trials),
        "cache": partial(decoding, trials, "cache"),
        "chunks": partial(decoding, trials, "chunks"),
        "batch": partial(batch, trials),
        "padding": lambda: padding(in_float32(), "cache" not in broken),
        "length": partial(length, trials),
        "causal": look_for_leaks,
        "float32": partial(_in_dtype, trials, build, torch.float32),
        "bfloat16": partial(_in_dtype, trials, build, torch.bfloat16),
        "train-eval": partial(_in_training, trials, build),
    }
    found: list[ClauseResult] = []
    unsteady = False
    for name, check in checks.items():
        if name in skip or (name in _SLOW and "causal" in broken):
            continue
        if unsteady and name not in _STEADY:
            found.append(not_checked(name, "two calls with the same tokens differ"))
            continue
        if trials.is_over and name in _SLOW:  # the others take a fraction of a second
            found.append(not_checked(name, "time was up"))
            continue
        try:
            each = check()
        except FAILURES as error:
            each = not_checked(name, f"it raises {error_text(error)}")
        found.append(each)
        if each.outcome == "broken":
            broken.add(name)
            unsteady = unsteady or name in _STEADY
    if tried.futures and "overflow" not in skip:
        found.append(overflow(tried))
    return found, tried


def _left(trials: ModelTrials) -> float:
    return trials.until - time.process_time()


def _rank(each: ClauseResult) -> tuple[int, float]:
    """Of two results for a clause, the least is reported: what is broken, and broken most."""
    size = each.finding.size if each.finding else None
    return _OUTCOMES.index(each.outcome), -(size or 0.0)


def _is_plain(each: ClauseResult) -> bool:
    """Whether nothing more need be tried for a clause: it is broken by more than a hair."""
    size = each.finding.size if each.finding else None
    return each.outcome == "broken" and (size is None or size > _PLAIN)


def _joined(one: Coverage, other: Coverage) -> Coverage:
    lengths = tuple(sorted({*one.lengths, *other.lengths}))
    return Coverage(lengths, one.cuts + other.cuts, max(one.futures, other.futures))


def _allowed(each: ClauseResult, settings: CheckSettings) -> ClauseResult:
    """A broken clause that may be broken is a warning."""
    if each.outcome != "broken" or each.clause not in settings.allow:
        return each
    return replace(each, outcome="warning", note="allowed")


def _input(trials: ModelTrials) -> ClauseResult:
    trial = trials.trial(2, 17, 10)
    given = trial.ids.clone()
    trials.model.score(given)
    if torch.equal(given, trial.ids):
        return result("input", None, "token ids")
    score = call_text(trials.model, "ids")
    code = "\n".join(
        [*trial.start, "before = ids.clone()", score, "print(float((ids != before).sum()))"]
    )
    return result("input", Finding("input", "it changes its token ids", 17, code=code), "")


def _deterministic(trials: ModelTrials) -> ClauseResult:
    trial, outputs = trials.trial(2, 17, 11), []
    for seed in (7, 8):
        torch.manual_seed(seed)
        outputs.append(trials.model.score(trial.ids))
    found = trials.difference(outputs[1], outputs[0])
    if found is None:
        return result("deterministic", None, "two seeds")
    score = logits_text(trials.model, call_text(trials.model, "ids"))
    lines = ["with torch.no_grad():", f"    one, two = {score}, {score}"]
    lines.append("print(float((one - two).abs().max() / one.abs().max()))")
    sentence = f"the same tokens give other logits: {of_largest(found.size)}{trials.where}"
    code = "\n".join([*trial.start, *lines])
    finding = Finding("deterministic", sentence, 17, found.output + 1, None, found.size, code=code)
    return result("deterministic", finding, "")


def _stateless(trials: ModelTrials) -> ClauseResult:
    model, trial = trials.model, trials.trial(2, 17, 12)
    first = model.score(trial.ids)
    others = [n for n in (40, 9) if model.accepts(n)]
    for n in others:
        model.score(trials.trial(1, n, 13).ids)
    found = trials.difference(model.score(trial.ids), first)
    if found is None:
        return result("stateless", None, f"calls with {others} tokens between")
    score = logits_text(model, call_text(model, "ids"))
    lines = ["with torch.no_grad():", f"    one = {score}"]
    lines += [f"    {call_text(model, f'ids[:1].repeat(1, 3)[:, :{n}]')}" for n in others]
    lines += [f"    two = {score}", "print(float((one - two).abs().max() / one.abs().max()))"]
    sentence = (
        f"logits depend on the calls before: {of_largest(found.size)} after calls with {others} "
        f"tokens{trials.where}"
    )
    code = "\n".join([*trial.start, *lines])
    finding = Finding("stateless", sentence, 17, found.output + 1, None, found.size, code=code)
    return result("stateless", finding, "")


def _in_dtype(trials: ModelTrials, build: Build, dtype: torch.dtype) -> ClauseResult:
    clause = str(dtype).removeprefix("torch.")
    if dtype == trials.model.dtype:
        return not_checked(clause, "the other clauses were tried in it")
    module = _built(build, trials.settings.seed, trials.snippet.is_redrawn)
    model = LanguageModel(module, dtype, trials.settings.device)
    if trials.model.embedding is None:
        model.embedding = None
    again = start_trials(model, trials.snippet, trials.settings, _left(trials))
    return causal_otherwise(again, clause)


def _in_training(trials: ModelTrials, build: Build) -> ClauseResult:
    module = _built(build, trials.settings.seed, trials.snippet.is_redrawn)
    model = LanguageModel(module, trials.model.dtype, trials.settings.device)
    return causal_otherwise(replace(trials, model=model), "train-eval")
