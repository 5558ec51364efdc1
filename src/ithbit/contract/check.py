"""Check a layer against its contract: all clauses, cheapest first, within the time given.

Everything is *observed*. A finding is a fact with an input that shows it; a clause that is kept was
kept by what was tried, which the report lists.
"""

import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from ithbit.contract.building import Subject, subject_of
from ithbit.contract.calling import Caller
from ithbit.contract.carrying import check_carries
from ithbit.contract.causality import (
    check_any_cut,
    check_causal,
    check_training,
    try_borders,
)
from ithbit.contract.checking import CheckRun, Clock, inner_unit
from ithbit.contract.clauses import CLAUSE_NAMES, CLAUSES
from ithbit.contract.comparison import unit_of
from ithbit.contract.findings import CheckSettings, ContractReport, Coverage
from ithbit.contract.gradients import check_gradient
from ithbit.contract.inner_types import coarse_type
from ithbit.contract.inputs import drawn
from ithbit.contract.narrow_types import check_dtypes
from ithbit.contract.prefixes import check_length
from ithbit.contract.repeats import check_at_last, check_repeats
from ithbit.contract.second_process import SecondProcess
from ithbit.contract.shapes import check_step
from ithbit.contract.signatures import find_call
from ithbit.contract.watching import CannotCheckError
from ithbit.errors import LayerError
from ithbit.models.user_code import FAILURES, error_text

_LENGTHS = (17, 16, 64, 65, 32, 128, 256, 8, 4, 12, 10, 20, 50, 100)


def check_contract(
    build: Subject | Callable[..., Any] | nn.Module | str,
    settings: CheckSettings | None = None,
    name: str = "",
    beat: Callable[[str], None] = lambda text: None,
    two_processes: bool = False,
) -> ContractReport:
    """Check a layer: a subject, a factory, a module or a name. `beat` hears what is done next;
    `two_processes` allows a copy of this process, for a process that does nothing else."""
    chosen = settings or CheckSettings()
    clock = Clock(chosen.seconds)
    threads, kept = torch.get_num_threads(), (random.getstate(), np.random.get_state())
    torch.set_num_threads(1)
    called = name
    try:
        with warnings.catch_warnings(), torch.random.fork_rng():
            warnings.simplefilter("ignore")
            subject = subject_of(build, chosen.width, name)
            called = name or subject.name
            run = _checked(subject, chosen, clock, beat, two_processes)
    except LayerError as error:
        return ContractReport(called, settings=chosen, seconds=clock.spent, cannot=str(error))
    finally:
        torch.set_num_threads(threads)
        random.setstate(kept[0])
        np.random.set_state(kept[1])
    return ContractReport(
        called,
        tuple(run.results.values()),
        Coverage(tuple(sorted(run.lengths)), run.cuts, len(run.futures)),
        chosen,
        clock.spent + run.seconds_elsewhere,
        remarks=tuple(_remarks(run)),
    )


def _checked(
    subject: Subject,
    settings: CheckSettings,
    clock: Clock,
    beat: Callable[[str], None],
    two_processes: bool,
) -> CheckRun:
    run = _prepared(subject, settings, clock, beat)
    run.two_processes = two_processes
    check_repeats(run)
    if run.caller.fresh:  # a state that stays from call to call has spoilt the first measurement
        run.unit = inner_unit(run.caller, run.draw("unit", 2, run.short))
    if not run.is_seeded:
        for clause in CLAUSES[: CLAUSE_NAMES.index("cache")]:
            run.skip(clause.name, "random at a fixed seed too: nothing can be compared")
        return run
    run.total = run.clock.left
    others = SecondProcess(run, (try_borders, *_OTHERS)).start()
    try:
        check_causal(run, others)
        check_dtypes(run)
        check_any_cut(run)
        others.finish()
    finally:
        others.end()
    check_at_last(run)
    return run


# These need nothing of the others but whether later tokens matter.
_OTHERS = (check_carries, check_step, check_training, check_gradient, check_length)


def _prepared(
    subject: Subject, settings: CheckSettings, clock: Clock, beat: Callable[[str], None]
) -> CheckRun:
    """The layer in the widest dtype and at the first length that it takes, and how it is called."""
    wanted = getattr(torch, settings.dtype)
    dtypes = [wanted, *([torch.float32] if wanted == torch.float64 else [])]
    errors: list[str] = []
    for dtype in dtypes:
        caller = Caller(subject, settings.seed, dtype, settings.device, beat=beat)
        for length in _LENGTHS:
            try:
                call, remark = find_call(caller, length)
            except LayerError:
                raise
            except FAILURES as error:
                errors.append(error_text(error))
                continue
            caller = caller.like(call=call)
            x = drawn(0, 2, length, subject.width)
            out = caller(x)
            if not out.isfinite().all():
                what = "NaN" if out.isnan().any() else "infinite numbers"
                raise CannotCheckError(f"it gives {what} on an input of ordinary size")
            run = CheckRun(settings, caller, clock, short=length)
            run.remarks += [remark] if remark else []
            run.unit = inner_unit(caller, x)
            coarsest = coarse_type(caller, x)
            run.coarse = 0.0 if coarsest is None else unit_of(coarsest)
            if dtype != wanted:
                run.remarks.append(f"checked in float32: in float64 it raises {errors[0]}")
            if coarsest not in (None, dtype):
                name = str(coarsest).removeprefix("torch.")
                run.remarks.append(
                    f"some of it is computed in {name}: where shapes differ, a few per cent count "
                    "as rounding"
                )
            return run
    if any("indices" in error and "embedding" in error.lower() for error in errors):
        raise CannotCheckError(
            "it takes token ids; a layer maps (batch, token, width) to the same shape"
        )
    raise CannotCheckError(f"it raises on every input tried: {errors[0]}")


def _remarks(run: CheckRun) -> list[str]:
    found = list(run.remarks)
    is_said = run.coarse or run.caller.dtype != getattr(torch, run.settings.dtype)
    if run.unit > unit_of(run.caller.dtype) and not is_said:
        found.append("some of it is computed in less precision than its dtype")
    if run.refused:
        lengths = ", ".join(map(str, sorted(run.refused)))
        found.append(f"refuses lengths {lengths}: {run.refused[min(run.refused)]}")
    if untried := sorted(run.too_slow - run.lengths):
        lengths = ", ".join(map(str, untried))
        found.append(f"too slow for lengths {lengths}: these were not tried")
    if run.is_over or run.clock.left < 0:
        found.append(f"the {run.settings.seconds:g} seconds were over: less was tried than usual")
    return found
