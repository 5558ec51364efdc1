"""The state of one check: its layer, its clock, and what has been found so far."""

import contextlib
import resource
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ithbit.contract.calling import Caller
from ithbit.contract.clauses import clause_named
from ithbit.contract.comparison import unit_of
from ithbit.contract.findings import CheckSettings, ClauseResult, Finding
from ithbit.contract.inputs import drawn, seed_of
from ithbit.contract.watching import CannotCheckError
from ithbit.models.user_code import FAILURES, error_text

_NEAR = 1e3  # units: more than rounding where the same numbers are added in one order
# How much processor time counts when none is used, as by a layer that waits.
_IDLE = 0.1


# One row is tried of inputs for which it may take this share of the time left, or so many seconds.
_DEAR, _CHEAP = 0.05, 0.2
_SHORT = 32  # tokens up to which a call takes as long as for fewer


_MOST_ROWS, _MOST_PAIRS = 32, 1_500_000  # in one call: of inputs, and of their pairs of tokens
_MEMORY, _SMALL = 700 << 20, 8 << 20  # bytes for the rows of one call, and what needs no counting


def _peak_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class Clock:
    """Time spent: the processor's, so that a busy machine tries as much as an idle one."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.started, self.cpu = seconds, time.monotonic(), time.process_time()

    @property
    def spent(self) -> float:
        idle = _IDLE * (time.monotonic() - self.started)
        return max(time.process_time() - self.cpu, idle)

    @property
    def left(self) -> float:
        return self.seconds - self.spent

    def part(self, share: float) -> "Clock":
        """From now on, this share of the time that is left."""
        self.seconds -= (1 - share) * max(self.left, 0.0)
        return self


@dataclass
class CheckRun:
    """One check in progress."""

    settings: CheckSettings
    caller: Caller  # in evaluation mode, in the widest dtype that the layer takes
    clock: Clock
    unit: float = 2.0**-52  # of the arithmetic inside, by how outputs follow small steps
    coarse: float = 0.0  # of the coarsest type inside, if that is bfloat16 or float16
    exact: bool = True  # every comparison of one shape gave the same bits so far
    mixes: bool = False  # examples of a batch depend on each other
    is_random: bool = False
    is_seeded: bool = True  # if random, the same again at the same seed
    short: int = 17  # a length that the layer takes
    results: dict[str, ClauseResult] = field(default_factory=dict)
    lengths: set[int] = field(default_factory=set)
    cuts: int = 0
    futures: set[str] = field(default_factory=set)
    refused: dict[int, str] = field(default_factory=dict)
    # Seconds for one row of so many tokens, or for a few in a first call.
    taken: dict[int, float] = field(default_factory=dict)
    memory: dict[int, int] = field(default_factory=dict)  # bytes more for one row, if it was seen
    too_slow: set[int] = field(default_factory=set)
    remarks: list[str] = field(default_factory=list)
    two_processes: bool = False  # this process may be copied
    in_two: bool = False  # it was
    after_calls: bool = False  # a leak was seen that a new layer does not have
    total: float = 0.0  # seconds that were left before later tokens were changed
    seconds_elsewhere: float = 0.0  # of a second process
    is_over: bool = False  # time was over in a second process

    @property
    def width(self) -> int:
        return self.caller.subject.width

    @property
    def leaks(self) -> bool:
        """Whether later tokens were seen to matter already."""
        return self.is_broken("causal")

    def outcome_of(self, clause: str) -> str:
        found = self.results.get(clause)
        return "" if found is None else found.outcome

    def is_broken(self, clause: str) -> bool:
        found = self.results.get(clause)
        return found is not None and found.finding is not None

    def seed(self, *parts: object) -> int:
        """A seed for one place in the check."""
        return seed_of(self.settings.seed, *parts)

    def draw(self, place: str, *shape: int) -> Tensor:
        """Ordinary inputs of so many rows and tokens, in float64."""
        return drawn(self.seed(place, *shape), *shape, self.width)

    def report(self, finding: Finding) -> None:
        """Note a finding, unless its clause has one."""
        if self.is_broken(finding.clause):
            return
        allowed = finding.clause in self.settings.allow
        warning = clause_named(finding.clause).is_warning or allowed
        self.results[finding.clause] = ClauseResult(
            finding.clause,
            "warning" if warning else "broken",
            finding,
            "allowed" if allowed else "",
        )

    def keep(self, clause: str, note: str) -> None:
        """Note that nothing was found, and what was tried."""
        if clause not in self.results or self.results[clause].outcome == "not checked":
            self.results[clause] = ClauseResult(clause, "kept", None, note)

    def skip(self, clause: str, reason: str) -> None:
        """Note that a clause was not checked."""
        self.results.setdefault(clause, ClauseResult(clause, "not checked", None, reason))

    def takes(
        self,
        n_tokens: int,
        caller: Caller | None = None,
        trial: Callable[[], object] | None = None,
    ) -> bool:
        """Whether the layer takes so many tokens, by `trial` if the layer must be called."""
        if n_tokens in self.taken and caller is None:
            return True
        if n_tokens in self.refused or n_tokens in self.too_slow:
            return False
        shorter = [length for length in self.taken if length < n_tokens]
        if shorter and caller is None:
            last = max(shorter)
            times = (max(n_tokens, _SHORT) / max(last, _SHORT)) ** 2
            expected = self.taken[last] * times
            if expected > max(_DEAR * self.clock.left, _CHEAP):
                # Once more: a first call may prepare things.
                expected = self.seconds_of(last) * times
            if expected > max(_DEAR * self.clock.left, _CHEAP):
                self.too_slow.add(n_tokens)
                return False
        began, held = time.process_time(), _peak_memory()
        try:
            if trial is not None:
                trial()
            else:
                (caller or self.caller)(self.draw("length", 1, n_tokens))
        except CannotCheckError:
            raise
        except FAILURES as error:
            if caller is None:
                self.refused[n_tokens] = error_text(error)
            return False
        if caller is None:
            self.taken[n_tokens] = time.process_time() - began
            self.memory[n_tokens] = _peak_memory() - held
        return True

    def seconds_of(self, n_tokens: int) -> float:
        """How long one row of a length that the layer takes lasts: the least of three calls."""
        for _ in range(2):
            began = time.process_time()
            self.caller(self.draw("length", 1, n_tokens))
            self.taken[n_tokens] = min(self.taken[n_tokens], time.process_time() - began)
        return self.taken[n_tokens]

    def lengths_taken(self, lengths: Iterable[int], caller: Caller | None = None) -> list[int]:
        """Those of the lengths that the layer takes."""
        return [length for length in lengths if self.takes(length, caller)]

    def rows(self, length: int) -> int:
        """How many rows go into one call: fewer where a row takes long, or much memory. A power
        of two, so that calls of one length compare with the same first inputs."""
        if self.mixes:
            return 1
        most = max(8, min(_MOST_ROWS, _MOST_PAIRS // length**2))
        if seconds := self.taken.get(length):
            most = min(most, int(max(0.05 * self.clock.left, 0.2) / seconds))
        if self.memory.get(length, 0) > _SMALL:
            most = min(most, _MEMORY // self.memory[length])
        return 1 << max(1, most).bit_length() - 1

    def near(self, out: Tensor, unit: float | None = None) -> float:
        """More than rounding gives where one thing is computed in one shape."""
        finite = torch.where(out.isfinite(), out.abs(), 0.0)
        return _NEAR * (unit or self.unit) * max(float(finite.max()), 1e-300)

    @contextlib.contextmanager
    def attempt(self, clause: str) -> Iterator[None]:
        """Context in which an error of the layer leaves the clause unchecked."""
        try:
            yield
        except CannotCheckError:
            raise
        except FAILURES as error:
            self.skip(clause, error_text(error))


def inner_unit(caller: Caller, x: Tensor) -> float:
    """The unit of the arithmetic inside: a module in float64 may well compute in less. Found by
    steps that a narrower type cannot follow: twice the step must give twice the change."""
    own = unit_of(caller.dtype)
    base = caller(x)
    for step, unit in ((1e-7, 2.0**-52), (2.0**-12, 2.0**-23)):
        if unit < own:
            continue
        once, twice = (caller(x + k * step) - base for k in (1, 2))
        bent = torch.where(twice.isfinite() & once.isfinite(), twice - 2 * once, 0.0).abs().max()
        if bent <= 0.02 * twice.nan_to_num(0.0, 0.0, 0.0).abs().max():
            return unit
    return max(own, 2.0**-23 if own < 2.0**-23 else 2.0**-7)
