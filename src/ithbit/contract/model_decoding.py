"""Whether a whole model gives the same logits however its tokens are read: one by one with a cache,
in chunks, as a prefix, in a batch, behind padding.

In each, scoring all tokens of one sequence at once is the yardstick; `model_trials` says how far
from it rounding may lead. What a model refuses with an error is not checked, and the error is
shown: a refusal is no wrong answer.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ithbit.contract.findings import ClauseResult, Finding
from ithbit.contract.language_model import NoCacheError, positions_of
from ithbit.contract.model_snippets import (
    batch_code,
    decoding_code,
    padded_decoding_code,
    padding_code,
    prefix_code,
)
from ithbit.contract.model_trials import (
    ModelTrials,
    Trial,
    blocks_text,
    not_checked,
    of_largest,
    result,
)
from ithbit.models.user_code import FAILURES, error_text

# Prompts and what follows them: rows and blocks. Borders of chunks of 16 and 64 lie within.
SINGLE_TOKENS: tuple[tuple[int, tuple[int, ...]], ...] = (
    (1, (8, *[1] * 16)),
    (1, (1,) * 24),
    (2, (8, *[1] * 6)),
    (1, (65, *[1] * 8)),
)
CHUNKS: tuple[tuple[int, tuple[int, ...]], ...] = (
    (1, (8, 8, 8)),
    (1, (7, 5, 12)),
    (2, (5, 9, 4)),
    (1, (64, 33)),
)
_PREFIXES = (1, 2, 3, 7, 16, 17, 32, 33, 64, 65, 127, 128, 129, 192, 256)
_WHOLE = (257, 130, 64, 32, 16)  # the first that the model takes: prefixes of it are compared
_PADDED = (5, 1, 17)


def decoding(trials: ModelTrials, clause: str) -> ClauseResult:
    """`cache`: token by token; `chunks`: several tokens after a cache."""
    cases = SINGLE_TOKENS if clause == "cache" else CHUNKS
    tried, refused = [], ""
    for number, (rows, blocks) in enumerate(cases):
        try:
            finding = trials.repeated(
                lambda k, rows=rows, blocks=blocks: _decoding_finding(  # type: ignore[misc]
                    trials, clause, trials.trial(rows, sum(blocks), k), blocks
                ),
                100 + 10 * number + (50 if clause == "chunks" else 0),
            )
        except NoCacheError:
            return not_checked(clause, "the model returns no cache")
        except FAILURES as error:
            refused = refused or f"{blocks_text(blocks)} tokens are refused: {error_text(error)}"
            continue
        if finding is not None:
            return result(clause, finding, "")
        tried.append(f"{blocks_text(blocks)}{' in a batch of 2' if rows > 1 else ''}")
    if not tried:
        return not_checked(clause, refused)
    return result(clause, None, f"tokens read as {', '.join(tried)}; {refused}".rstrip("; "))


def _decoding_finding(
    trials: ModelTrials, clause: str, trial: Trial, blocks: Sequence[int]
) -> Finding | None:
    model = trials.model
    whole = model.score(trial.ids)
    decoded = model.decode(trial.ids, blocks)
    wrong = decoded.wrong_shape is not None
    code = decoding_code(trial.start, model, blocks, decoded.cache_name, wrong)
    read = blocks_text(blocks)
    batch = f" in a batch of {len(trial.ids)}" if len(trial.ids) > 1 else ""
    if decoded.wrong_shape is not None:
        block, shape = decoded.wrong_shape
        tokens = "1 token" if block == 1 else f"{block} tokens"
        sentence = (
            f"{tokens} of each of {len(trial.ids)} sequences after a cache give logits of shape "
            f"{shape}, not {(len(trial.ids), block, whole.shape[-1])}"
        )
        return Finding(clause, sentence, trial.n_tokens, code=code)
    found = trials.difference(decoded.logits, whole, trial.ids)
    if found is None:
        return None
    how = "with its cache" if clause == "cache" else "in chunks with its cache"
    sentence = (
        f"tokens read as {read} {how}{batch} give other logits than all {trial.n_tokens} at once: "
        f"{of_largest(found.size)}, from output {found.output + 1} on{trials.where}"
        f"{_with_positions(trials, trial, blocks, whole)}"
    )
    return Finding(
        clause, sentence, trial.n_tokens, found.output + 1, None, found.size, found.noise, code
    )


def _with_positions(trials: ModelTrials, trial: Trial, blocks: Sequence[int], whole: Tensor) -> str:
    """Whether passing positions and a mask, as generation does, makes up for a difference."""
    model = trials.model
    if not model.takes("position_ids"):
        return ""
    try:
        decoded = model.decode(trial.ids, blocks, places=True)
        if decoded.wrong_shape is None and not trials.difference(decoded.logits, whole, trial.ids):
            return "; not if position_ids are passed, as generate does"
    except FAILURES:
        pass
    return ""


def length(trials: ModelTrials) -> ClauseResult:
    """The first tokens alone against the same tokens with more behind them."""
    model = trials.model
    n_tokens = next((n for n in _WHOLE if model.accepts(n)), None)
    if n_tokens is None:
        return not_checked("length", f"it takes none of {_WHOLE} tokens")
    tried: list[int] = []

    def look(number: int) -> Finding | None:
        trial = trials.trial(1, n_tokens, number)
        whole = model.score(trial.ids)
        for n in _PREFIXES:
            if n >= n_tokens or not model.accepts(n):
                continue
            tried.append(n)
            short = model.score(trial.ids[:, :n])
            found = trials.difference(short, whole[:, :n], trial.ids[:, :n])
            if found is not None:
                sentence = (
                    f"output {found.output + 1} differs between {n} tokens alone and the first "
                    f"{n} of {n_tokens}: {of_largest(found.size)}{trials.where}"
                )
                code = prefix_code(trial.start, model, n)
                return Finding(
                    "length", sentence, n_tokens, found.output + 1, n + 1, found.size,
                    found.noise, code,
                )  # fmt: skip
        return None

    finding = trials.repeated(look, 200)
    return result("length", finding, f"prefixes of {n_tokens} tokens: {sorted(set(tried))}")


def batch(trials: ModelTrials) -> ClauseResult:
    """Examples alone against the same in a batch of two or three."""
    model, refused = trials.model, ""

    def look(number: int) -> Finding | None:
        for rows in (2, 3):
            trial = trials.trial(rows, 24, number + 5 * rows)
            together = model.score(trial.ids)
            for row in range(rows):
                ids = trial.ids[row : row + 1]
                found = trials.difference(together[row : row + 1], model.score(ids), ids)
                if found is not None:
                    sentence = (
                        f"example {row + 1} gives other logits in a batch of {rows} than alone: "
                        f"{of_largest(found.size)}, from output {found.output + 1} on"
                        f"{trials.where}"
                    )
                    code = batch_code(trial.start, model, row)
                    return Finding(
                        "batch", sentence, 24, found.output + 1, None, found.size, found.noise,
                        code,
                    )  # fmt: skip
        return None

    try:
        return result("batch", trials.repeated(look, 300), "batches of 2 and 3 against one each")
    except FAILURES as error:
        refused = error_text(error)
    return not_checked("batch", f"a batch is refused: {refused}")


def padding(trials: ModelTrials, decodes: bool) -> ClauseResult:
    """Tokens behind masked ones against the same tokens alone, scored and, if decoding without
    padding is right, decoded."""
    model = trials.model
    if not model.takes("attention_mask"):
        return not_checked("padding", "the model takes no attention_mask")
    n_tokens = 16

    def look(number: int) -> Finding | None:
        for k, n_padded in enumerate(_PADDED):
            trial = trials.trial(1, n_padded + n_tokens, number + 5 * k)
            found = _padding_finding(trials, trial, n_padded)
            if found is not None:
                return found
        return None

    try:
        finding = trials.repeated(look, 400)
    except FAILURES as error:
        return not_checked("padding", f"a mask is refused: {error_text(error)}")
    places = " and position_ids" if model.takes("position_ids") else ""
    note = f"{', '.join(map(str, _PADDED))} tokens masked by attention_mask{places}"
    if finding is not None or not decodes:
        return result("padding", finding, note)
    try:
        finding = trials.repeated(lambda k: _padded_decoding_finding(trials, k), 450)
    except (NoCacheError, *FAILURES) as error:
        return result("padding", None, f"{note}; not decoded: {error_text(error)}")
    return result("padding", finding, f"{note}; scored and decoded")


def _padding_finding(trials: ModelTrials, trial: Trial, n_padded: int) -> Finding | None:
    model, mask = trials.model, left_mask(trial.ids, n_padded)
    places = model.takes("position_ids")
    named = {"position_ids": positions_of(trial.ids, mask)} if places else {}
    alone = model.score(trial.ids[:, n_padded:])
    padded = model.score(trial.ids, attention_mask=mask, **named)[:, n_padded:]
    found = trials.difference(padded, alone, trial.ids[:, n_padded:])
    if found is None:
        return None
    other = trial.ids.clone()
    other[:, :n_padded] = trials.trial(1, n_padded, trial.number + 1).ids
    again = model.score(other, attention_mask=mask, **named)[:, n_padded:]
    leaks = trials.difference(again, padded, trial.ids[:, n_padded:]) is not None
    passed = "attention_mask and position_ids" if places else "attention_mask"
    why = "what stands there matters" if leaks else "what stands there does not matter"
    sentence = (
        f"{n_padded} tokens on the left, masked by {passed}, change the logits of the "
        f"{alone.shape[1]} after them: {of_largest(found.size)}, from output {found.output + 1} "
        f"on{trials.where}; {why}"
    )
    code = padding_code(trial.start, model, n_padded, places)
    return Finding(
        "padding", sentence, trial.n_tokens, n_padded + found.output + 1, 1, found.size,
        found.noise, code,
    )  # fmt: skip


def _padded_decoding_finding(trials: ModelTrials, number: int) -> Finding | None:
    model, n_padded, blocks = trials.model, 5, (13, *[1] * 6)
    trial = trials.trial(1, sum(blocks), number)
    mask, places = left_mask(trial.ids, n_padded), model.takes("position_ids")
    decoded = model.decode(trial.ids, blocks, mask, places)
    code = padded_decoding_code(trial.start, model, blocks, decoded.cache_name, n_padded, places)
    if decoded.wrong_shape is not None:
        return None  # `cache` reports that
    alone = model.score(trial.ids[:, n_padded:])
    found = trials.difference(decoded.logits[:, n_padded:], alone, trial.ids[:, n_padded:])
    if found is None:
        return None
    sentence = (
        f"{n_padded} masked tokens on the left and {blocks_text(blocks)} tokens read with the "
        f"cache give other logits than without padding: {of_largest(found.size)}, from output "
        f"{found.output + 1} on{trials.where}"
    )
    return Finding(
        "padding", sentence, trial.n_tokens, n_padded + found.output + 1, 1, found.size,
        found.noise, code,
    )  # fmt: skip


def left_mask(ids: Tensor, n_padded: int) -> Tensor:
    """A mask that hides the first tokens."""
    mask = torch.ones_like(ids)
    mask[:, :n_padded] = 0
    return mask
