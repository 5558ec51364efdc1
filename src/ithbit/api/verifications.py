"""What `verify` returns: for every run its record, what of it is new, and how it is printed."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ithbit.display import Printable, in_one_line, pluralize
from ithbit.store.records import BOUNDED, PROVED

if TYPE_CHECKING:
    from ithbit.store.records import Verification


@dataclass(frozen=True, repr=False)
class VerifiedRun(Printable):
    """The verification of one run: its record, and whether the run counts as solved.

    `final` says whether the last epoch was perfect too: the record is about the final weights.
    `found` is None if the record already existed and nothing was tried; `is_new` says whether what
    was tried or proved added anything to it, `tries_are_new` and `proof_is_new` what of it is not
    from the record. `path` is that of its folder.
    """

    record: dict[str, Any]
    solved: bool
    final: bool
    found: "Verification | None" = None
    is_new: bool = True
    path: Path | None = None
    tries_are_new: bool = True
    proof_is_new: bool = True

    @property
    def name(self) -> str:
        return str(self.record["name"])

    @property
    def folder(self) -> str:
        """The name of the run's folder: runs that differ in their protocol alone share a name."""
        return f"{self.name}-{self.record['run_id']}"

    @property
    def verdict(self) -> str:
        return str(self.record["verdict"])

    @property
    def refuted(self) -> bool:
        """Whether a run that counts as solved is refuted."""
        return self.solved and self.verdict == "refuted"

    @property
    def by_proof(self) -> bool:
        """Whether the verdict is that of a proof, or of an input that the search for one found."""
        if self.verdict in (PROVED, BOUNDED):
            return True
        return self.record.get("method") == "proof" and self.verdict in ("refuted", "unsettled")

    @property
    def on_record(self) -> bool:
        """Whether the verdict is that of the record, and not of what was tried or proved now."""
        is_new = self.proof_is_new if self.by_proof else self.tries_are_new
        return self.found is None or not is_new

    def to_json(self) -> dict[str, Any]:
        more = {"solved": self.solved, "final": self.final, "on_record": self.on_record}
        return self.record | more

    def render(self) -> Iterator[str]:
        if self.found is None:
            yield in_one_line(f"on record: {self.folder}: {self.verdict}")
            return
        is_old = self.on_record
        tries = "tries on record"
        if self.tries_are_new:
            tries = f"tried in {self.found.seconds:.1f} s"
        elif not self.is_new:
            tries = "nothing new found now"
        elif is_old:
            tries = "with something new"
        text = in_one_line(f"{self.folder}: {self.verdict}: {self.found.sentence()} ({tries})")
        yield f"on record: {text}" if is_old else text
        if self.found.exhaustive and self.found.wrong_by_index:  # for a search they mean little
            wrong = sorted(self.found.wrong_by_index.items())
            yield "  wrong by index: " + ", ".join(f"{i}: {count:,}" for i, count in wrong)
        proof = self.found.proof
        if proof is not None and not (self.by_proof and proof.verdict):
            old = "" if self.proof_is_new else " on record"
            word = "bounded (unchecked): " if proof.verdict == BOUNDED else ""
            yield f"  proof{old}: {word}{in_one_line(proof.sentence())}"

    def source(self) -> str:
        """Where the tries were made, and what can be checked again."""
        device = self.record["environment"].get("device_name", "an unknown device")
        text = f"observed in float32 on {in_one_line(str(device))}"
        if self.found is None or not self.tries_are_new:
            text = f"on record: {text}"
        certificate = (self.record.get("proof") or {}).get("certificate")
        again = (
            "can be checked again"
            if certificate
            else "could not be written, so nobody can check it"
        )
        proof = {PROVED: f"proof.json {again}", BOUNDED: "bounded, not proved"}
        return (
            f"{text}; {proof.get(self.verdict, 'not proved')}; the weights at the end of training"
        )


class Verifications(Printable, list[VerifiedRun]):
    """The verification of every run; `set_aside` has a message for each run that cannot be read or
    tried, `not_kept` for each whose folder cannot be written, and `notes` for each file that is
    damaged or does not hold."""

    def __init__(self, verified: Iterable[VerifiedRun] = ()) -> None:
        super().__init__(verified)
        self.set_aside: list[str] = []
        self.not_kept: list[str] = []
        self.notes: list[str] = []

    def summary(self) -> dict[str, dict[str, int]]:
        """Counts of verdicts: for all runs, for solved ones, and for those perfect at the end."""

        def count(keep: list[VerifiedRun]) -> dict[str, int]:
            return {"runs": len(keep), **Counter(each.verdict for each in keep)}

        solved = [each for each in self if each.solved]
        return {
            "all": count(self),
            "solved": count(solved),
            "solved, final accuracy 1": count([each for each in solved if each.final]),
        }

    def to_json(self) -> dict[str, Any]:
        runs, notes = [each.to_json() for each in self], self.notes
        return {"summary": self.summary(), "runs": runs, "set_aside": self.set_aside} | (
            {"notes": notes} if notes else {}
        )

    def render(self) -> Iterator[str]:
        for each in self:
            if each.found is not None or len(self) == 1:
                yield from each.render()
        if self.set_aside:
            runs = pluralize(len(self.set_aside), "run")
            yield f"set aside, since they cannot be read or tried: {runs}"
        if len(self) == 1:
            yield self[0].source()
            return
        for what, counts in self.summary().items():
            rest = ", ".join(f"{count} {each}" for each, count in counts.items() if each != "runs")
            yield f"{what}: {pluralize(counts['runs'], 'run')}" + (f": {rest}" if rest else "")
        if old := sum(each.found is None for each in self):
            yield f"on record, neither tried nor checked now: {pluralize(old, 'run')}"
        yield "observed in float32 with the weights at the end of training; proved only if stated"
