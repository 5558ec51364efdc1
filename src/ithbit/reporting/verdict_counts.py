"""Verdicts on solved runs: six words, each with one meaning, and how many runs each applies to.

*Solved* is the paper's criterion, on samples. According to the record of `ithbit verify`, the final
weights of a solved run are *refuted*, *not refuted*, *bounded (unchecked)*, *right on all inputs*
or *proved*, which needs a second implementation that has confirmed the certificate. A run without
a record is refuted if it was wrong on plain inputs tried at the end of its training.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import polars as pl

from ithbit.display import pluralize

SOLVED = "in some epoch right on every held-out sample, the paper's criterion of success"
WORDS = {  # letter in tables, and meaning
    "refuted": ("r", "a wrong answer was found"),
    "not refuted": ("n", "a search found no wrong answer; that is no proof"),
    "bounded (unchecked)": ("b", "bounds say right on all inputs, unchecked by a second program"),
    "right on all inputs": ("a", "every input was tried, in float32"),
    "proved": ("p", "right on all inputs by a proof, by the record checked by a second program"),
}
# An unsettled run was wrong within rounding alone: no wrong answer was found.
_READ_AS = {"unsettled": "not refuted", "proved on all inputs": "proved"}
_WRONG_AT_THE_END = pl.col("verification").is_null() & (pl.col("structured_wrong") > 0)
# The word for each run, solved or not; null where it was not tried.
VERDICT_OF_RUN = (
    pl.when(_WRONG_AT_THE_END)
    .then(pl.lit("refuted"))
    .otherwise(pl.col("verification").replace(_READ_AS))
    .alias("standing")
)


@dataclass(frozen=True)
class VerdictCounts:
    """Numbers of finished runs, of solved ones, and of solved ones that each word applies to."""

    runs: int
    solved: int
    counts: dict[str, int]  # by word, all of `WORDS` in their order

    def to_json(self) -> dict[str, int]:
        return {"runs": self.runs, "solved": self.solved, **self.counts}

    @property
    def tried(self) -> int:
        return sum(self.counts.values())

    @property
    def headline(self) -> str:
        """What the runs show, in a sentence for a reader who knows no letters yet.

        >>> VerdictCounts(20, 18, {"refuted": 13, "not refuted": 3, "proved": 2}).headline
        '18 of 20 runs pass their held-out samples; of these, 13 answer some input wrong, 3 are not refuted, 2 are proved right on all inputs, by the record.'
        >>> VerdictCounts(5, 0, {}).headline
        'None of 5 runs passes its held-out samples.'
        """  # noqa: E501
        if not self.solved:
            return f"None of {pluralize(self.runs, 'run')} passes its held-out samples."
        verbs = {
            "refuted": ("answers some input wrong", "answer some input wrong"),
            "not refuted": ("is not refuted", "are not refuted"),
            "bounded (unchecked)": ("is bounded, unchecked", "are bounded, unchecked"),
            "right on all inputs": ("was right on all inputs", "were right on all inputs"),
            "proved": (
                "is proved right on all inputs, by the record",
                "are proved right on all inputs, by the record",
            ),
        }
        parts = [
            f"{count:,} {verbs[word][count > 1]}" for word, count in self.counts.items() if count
        ]
        if untried := self.solved - self.tried:
            parts.append(f"{untried:,} {('was', 'were')[untried > 1]} not tried on other inputs")
        head = f"{self.solved:,} of {pluralize(self.runs, 'run')} pass their held-out samples"
        rest = f"; of these, {', '.join(parts)}" if parts else ""
        if not self.tried:
            rest = "; none was tried on other inputs (`ithbit verify --all` does that)"
        return f"{head}{rest}."

    def marks(self) -> str:
        """The counts of the words that apply to any, with their letters.

        >>> VerdictCounts(20, 20, {"refuted": 13, "not refuted": 5, "proved": 2}).marks()
        '13r 5n 2p'
        """
        return " ".join(f"{n}{WORDS[word][0]}" for word, n in self.counts.items() if n)

    def sentence(self) -> str:
        """The counts in a sentence.

        >>> VerdictCounts(20, 20, {"refuted": 13, "not refuted": 5}).sentence()
        '20 of 20 runs solved; of these 13 refuted, 5 not refuted, 2 not tried'
        """
        parts = [f"{n} {word}" for word, n in self.counts.items() if n]
        if untried := self.solved - self.tried:
            parts.append(f"{untried} not tried")
        head = f"{self.solved} of {pluralize(self.runs, 'run')} solved"
        return f"{head}; of these {', '.join(parts)}" if parts else head


def legend(shown: Iterable[VerdictCounts]) -> list[str]:
    """What the letters behind numbers mean, for those that occur; empty if none does."""
    counts = list(shown)
    meanings = [
        f"{letter} {word} ({meaning})"
        for word, (letter, meaning) in WORDS.items()
        if any(each.counts[word] for each in counts)
    ]
    if not meanings:
        return []
    return [
        f"letters, of the solved runs: {', '.join(meanings)}; by `ithbit verify`, of the final "
        "weights; solved runs without a letter were not tried"
    ]


def count_verdicts(runs: pl.DataFrame) -> VerdictCounts:
    """The verdicts on these finished runs; the column `standing` is `VERDICT_OF_RUN`."""
    verdicts = zip(runs["standing"], runs["solved"], strict=True)
    counts = Counter(word for word, solved in verdicts if solved)
    return VerdictCounts(runs.height, counts.total(), {word: counts[word] for word in WORDS})
