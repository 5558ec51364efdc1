"""What the page tells a reader who has not seen the paper; verdicts in their own words alone."""

from dataclasses import dataclass
from typing import Literal

from ithbit.families import Family, family_named
from ithbit.spec import RunSpec
from ithbit.store.records import Verification
from ithbit.theory.certificate import Certificate
from ithbit.theory.certificate_text import floor

Tone = Literal["good", "bad", "open"]

_HOW = {
    "softmax": "Attention. Every token compares itself with {others}, gives each a weight, and "
    "takes up the weighted average of what they hold. Softmax can put nearly all weight on one.",
    "linear": "Linear attention. Every token gives a weight to {others} and takes up the weighted "
    "average. Without a softmax the weights stay spread out, so it is hard to pick one token.",
    "gru": "A recurrent network. It reads the tokens from left to right and has nothing but "
    "{d} numbers to remember them by; gates decide which numbers to keep and which to overwrite.",
    "mamba2": "A state-space model. It reads the tokens from left to right into a state of {state} "
    "numbers a layer, which fades and is written to as each token demands.",
}


@dataclass(frozen=True)
class Standing:
    """What is known of a model's answers: a verdict, what it means, and on what it rests."""

    verdict: str
    meaning: str
    record: str
    tone: Tone = "open"


def how(run: RunSpec) -> str:
    """How such a model works, for a newcomer."""
    family, spec = family_named(run.model.family), run.model
    others = "all tokens up to itself" if family.causal else "all tokens"
    return _HOW[family.kind].format(
        others=others, d=spec.d_model, state=spec.d_model * spec.d_state
    )


def title(family: Family, layers: int) -> str:
    """A model as people call it.

    >>> title(family_named("gru"), 2)
    'GRU, 2 layers'
    """
    attention = " attention" if family.attention else ""
    return f"{family.label}{attention}, {layers} layer{'s' if layers > 1 else ''}"


def trained_on(run: RunSpec) -> tuple[str, str]:
    """What the weights were trained on: as a label, and in a sentence."""
    if run.protocol.examples == "mixed":
        label, examples = "Trained on mixed bits", "In half of its training examples ones are rare "
        examples += "or frequent, with a cut between two such parts."
    else:
        label, examples = (
            "Trained on fair bits",
            "In its training examples every bit is a fair coin.",
        )
    return label, f"{examples} Seed {run.seed}."


def samples(accuracy: float, count: int) -> str:
    """What the usual test said: the final weights on held-out samples."""
    right = round(accuracy * count)
    return f"Observed on samples: it answers {right:,} of {count:,} random inputs right."


def standing(found: Verification | None) -> Standing:
    """What the run's verification record says.

    >>> standing(None).verdict
    'not verified'
    """
    if found is None:
        nothing = "Nobody has looked for a wrong answer beyond random samples."
        return Standing("not verified", nothing, "The run has no verification record.")
    meanings: dict[str, tuple[str, Tone]] = {
        "right on all inputs": (
            "Every possible input was tried, and every answer is right.",
            "good",
        ),
        "refuted": ("There is an input that it answers wrong, whatever random tests say.", "bad"),
        "not refuted": ("A search found no wrong answer. That is no proof: one may exist.", "open"),
        "unsettled": ("Some answers are so close that rounding decides them.", "open"),
        "proved": ("A proof covers every possible input: all answers are right.", "good"),
    }
    meaning, tone = meanings.get(found.verdict, ("", "open"))
    return Standing(found.verdict, meaning, f"On record, in float32: {found.sentence()}.", tone)


def certified(certificate: Certificate) -> Standing:
    """What is proved of a construction."""
    record = (
        f"Margin at least {floor(certificate.margin)} on every input, in real arithmetic on these "
        f"weights: {certificate.derivation}. Arithmetic of the proof: {certificate.arithmetic}."
    )
    if not certificate.certified:
        return Standing("not certified", "No proof was found for these weights.", record)
    meaning = "A proof covers every possible input: all answers are right."
    return Standing("certified for all inputs", meaning, record, "good")
