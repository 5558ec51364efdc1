"""What a check of a contract found: plain data, JSON and text. Everything here is *observed*: a
broken clause comes with an input that shows it, and a clause that is kept was kept by the inputs
that were tried. Nothing here needs torch."""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from ithbit import __version__
from ithbit.contract.clauses import CLAUSE_NAMES, clause_named
from ithbit.display import Printable, in_one_line, pluralize, printable, wrapped
from ithbit.errors import SpecError, as_int, normalize, number, one_of

SCHEMA_VERSION = 1  # of the JSON; docs/check.md describes it
Outcome = Literal["kept", "broken", "warning", "not checked"]
OUTCOMES: tuple[Outcome, ...] = ("kept", "broken", "warning", "not checked")
DTYPES = ("float64", "float32", "bfloat16", "float16")
_LEAKS = ("causal", "train-eval", "float32", "bfloat16")
EXIT_CODES = {"keeps": 0, "broken": 1, "cannot be checked": 2}


@dataclass(frozen=True)
class CheckSettings:
    """How to check, complete and checked on construction.

    `seconds` is the processor time after which nothing new is tried; `seed` fixes every input, and
    `allow` names clauses that may be broken. `dtype` is the widest precision that is used.
    """

    seconds: float = 8.0
    seed: int = 0
    allow: tuple[str, ...] = ()
    dtype: str = "float64"
    device: str = "cpu"
    width: int = 16

    def __post_init__(self) -> None:
        normalize(
            self,
            seconds=float(number("seconds", self.seconds)),
            seed=as_int("seed", self.seed),
            width=as_int("width", self.width),
            allow=tuple(clause_named(name).name for name in self.allow),
        )
        one_of("unknown dtype", self.dtype, DTYPES)
        if not 0 < self.seconds < math.inf:
            raise SpecError(f"seconds must be more than 0, got {self.seconds:g}")
        if not 0 <= self.seed < 1 << 31:
            raise SpecError(f"seed must be from 0 to {(1 << 31) - 1}, got {self.seed}")
        if self.width < 1:
            raise SpecError(f"width must be at least 1, got {self.width}")


@dataclass(frozen=True)
class Finding:
    """One input that shows a broken clause. Tokens and outputs count from 1; what a finding has no
    use for is None. `size` and `noise` (what rounding gives there) are parts of the largest output.
    `code` is Python that shows it alone.
    """

    clause: str
    sentence: str
    length: int | None = None
    output: int | None = None  # the first output that is wrong
    later: int | None = None  # the first token that was changed
    size: float | None = None
    noise: float | None = None
    code: str = ""

    def __post_init__(self) -> None:
        clause_named(self.clause)


@dataclass(frozen=True)
class ClauseResult:
    """How one clause went; `note` says what was tried, or why nothing was."""

    clause: str
    outcome: Outcome
    finding: Finding | None = None
    note: str = ""

    def __post_init__(self) -> None:
        clause_named(self.clause)
        one_of("unknown outcome", self.outcome, OUTCOMES)
        assert (self.finding is not None) == (self.outcome in ("broken", "warning")), self


@dataclass(frozen=True)
class Coverage:
    """What was tried in search of a leak: lengths, pairs of an input and a cut (the place from
    which on its tokens are replaced), and kinds of tokens put there."""

    lengths: tuple[int, ...] = ()
    cuts: int = 0
    futures: int = 0

    def sentence(self, leaks: bool = False) -> str:
        """
        >>> Coverage((2, 17, 1025), 1200, 9).sentence()
        'no leak seen at lengths 2 to 1025, 1,200 cuts, 9 kinds of future'
        >>> Coverage((17,), 1, 1).sentence(leaks=True)
        'a leak was seen; tried: length 17, 1 cut, 1 kind of future'
        """
        if not self.lengths or not self.cuts:
            return "no later tokens were changed"
        least, most = min(self.lengths), max(self.lengths)
        where = f"length {most}" if least == most else f"lengths {least} to {most}"
        kinds = "1 kind" if self.futures == 1 else f"{self.futures:,} kinds"
        what = "a leak was seen; tried:" if leaks else "no leak seen at"
        return f"{what} {where}, {pluralize(self.cuts, 'cut')}, {kinds} of future"


@dataclass(frozen=True, repr=False)
class ContractReport(Printable):
    """All clauses of one layer or model. `cannot` says why it cannot be checked, if so."""

    name: str
    results: tuple[ClauseResult, ...] = ()
    coverage: Coverage = field(default_factory=Coverage)
    settings: CheckSettings = field(default_factory=CheckSettings)
    seconds: float = 0.0
    cannot: str = ""
    remarks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        names = [result.clause for result in self.results]
        assert len(set(names)) == len(names), names
        order = tuple(sorted(self.results, key=lambda each: CLAUSE_NAMES.index(each.clause)))
        normalize(self, results=order)

    @property
    def verdict(self) -> str:
        """`keeps`, `broken` or `cannot be checked`."""
        if self.cannot:
            return "cannot be checked"
        return "broken" if self.findings("broken") else "keeps"

    @property
    def exit_code(self) -> int:
        """0 if nothing is broken, 1 if something is, 2 if it cannot be checked."""
        return EXIT_CODES[self.verdict]

    def findings(self, *outcomes: Outcome) -> list[Finding]:
        """The findings with these outcomes, all by default."""
        wanted = outcomes or OUTCOMES
        return [each.finding for each in self.results if each.finding and each.outcome in wanted]

    def outcome(self, clause: str) -> Outcome:
        """How one clause went; *not checked* if nothing is said of it."""
        clause_named(clause)
        return next((each.outcome for each in self.results if each.clause == clause), "not checked")

    def to_json(self) -> dict[str, Any]:
        """Plain data; a number that is not finite is null."""
        data = {
            "schema": SCHEMA_VERSION,
            "ithbit": __version__,
            "name": self.name,
            "verdict": self.verdict,
            "exit_code": self.exit_code,
            "cannot": self.cannot,
            "clauses": [asdict(result) for result in self.results],
            "coverage": asdict(self.coverage) | {"sentence": self._tried()},
            "settings": asdict(self.settings),
            "remarks": list(self.remarks),
            "seconds": round(self.seconds, 3),
        }
        return {key: _finite(value) for key, value in data.items()}

    def text(self) -> str:
        """The report as text."""
        return str(self)

    def render(self) -> Iterator[Any]:
        name = in_one_line(self.name)
        if self.cannot:
            yield f"{name} cannot be checked: {in_one_line(self.cannot)}"
            return
        broken, warnings = self.findings("broken"), self.findings("warning")
        if broken:
            many = "1 clause" if len(broken) == 1 else f"{len(broken)} clauses"
            yield f"{name} breaks {many} of its contract: {', '.join(f.clause for f in broken)}"
        else:
            yield f"{name} keeps its contract as far as it was tried: {self._tried()}"
        for kind, findings in (("broken", broken), ("warning", warnings)):
            for finding in findings:
                yield ""
                yield from wrapped(in_one_line(f"{kind}: {finding.clause}: {finding.sentence}"))
                if finding.code:
                    yield "".join(f"    {line}\n" for line in finding.code.splitlines())[:-1]
        kept = [each.clause for each in self.results if each.outcome == "kept"]
        yield ""
        if kept:
            yield from wrapped(f"kept: {', '.join(kept)}", "", "  ")
        reasons: dict[str, list[str]] = {}
        for result in self.results:
            if result.outcome == "not checked":
                reasons.setdefault(result.note, []).append(result.clause)
        for note, clauses in reasons.items():
            line = f"not checked: {', '.join(clauses)} ({note})"
            yield from wrapped(in_one_line(line), "", "  ")
        for remark in self.remarks:
            yield from wrapped(f"note: {printable(in_one_line(remark))}", "", "  ")
        yield f"{self.seconds:.1f} s, seed {self.settings.seed}"

    def _tried(self) -> str:
        return self.coverage.sentence(any(f.clause in _LEAKS for f in self.findings()))


def report_from_json(data: dict[str, Any]) -> ContractReport:
    """The report that `to_json` gave.

    >>> report = ContractReport("Mine", (ClauseResult("causal", "kept"),))
    >>> report_from_json(report.to_json()).outcome("causal")
    'kept'
    """
    if data.get("schema") != SCHEMA_VERSION:
        raise SpecError(f"a report of schema {data.get('schema')!r}; known: {SCHEMA_VERSION}")
    results = tuple(
        ClauseResult(
            each["clause"],
            each["outcome"],
            Finding(**each["finding"]) if each["finding"] else None,
            each["note"],
        )
        for each in data["clauses"]
    )
    covered = data["coverage"]
    settings = CheckSettings(**data["settings"] | {"allow": tuple(data["settings"]["allow"])})
    return ContractReport(
        data["name"],
        results,
        Coverage(tuple(covered["lengths"]), covered["cuts"], covered["futures"]),
        settings,
        data["seconds"],
        data["cannot"],
        tuple(data["remarks"]),
    )


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
