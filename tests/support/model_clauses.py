"""How one clause goes for a whole model, without the others and with all the time it takes."""

import contextlib
import io

from ithbit.contract.clauses import CLAUSE_NAMES
from ithbit.contract.findings import CheckSettings, ClauseResult
from ithbit.contract.model_snippets import Snippet
from ithbit.contract.model_sources import ModelSource
from ithbit.contract.model_trials import start_trials
from ithbit.contract.whole_models import check_clauses, model_in


def clause_of(
    source: ModelSource, clause: str, seed: int = 0, is_redrawn: bool = False, seconds: float = 1.0
) -> ClauseResult:
    settings = CheckSettings(seconds=seconds, seed=seed)
    model = model_in(source.build, settings, is_redrawn)
    trials = start_trials(model, Snippet(source.source, seed, is_redrawn), settings, seconds)
    found, _ = check_clauses(trials, source.build, set(CLAUSE_NAMES) - {clause})
    return next(each for each in found if each.clause == clause)


def shown(code: str) -> float:
    """The number that the code of a finding prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, {})
    return float(printed.getvalue())
