"""The texts of the page, for readers who have not seen the paper; verdicts keep their own words."""

from dataclasses import dataclass
from typing import Literal

from ithbit.display import lower_text, pluralize
from ithbit.families import Family, family_named
from ithbit.spec import ModelSpec
from ithbit.store.records import CONSTRUCTION, Result, Verification
from ithbit.theory.certificate import DIGITS, Certificate

Tone = Literal["good", "bad", "open"]

_HOW = {
    "softmax": "Attention. Every token compares itself with {others}, gives each a weight, and "
    "takes the weighted average of what they hold. Softmax can put nearly all weight on one.",
    "linear": "Linear attention. Every token gives a weight to {others} and takes the weighted "
    "average. Without a softmax the weights stay spread out, so it is hard to pick one token.",
    "gru": "A recurrent network. It reads the tokens from left to right and has nothing but "
    "{d} numbers to remember them by; gates decide which numbers to keep and which to overwrite.",
    "mamba2": "A state-space model. It reads the tokens from left to right into a state of {state} "
    "numbers per layer, which fades and is written to as each token demands.",
}
KINDS = tuple(_HOW)  # of families: those that `model.js` runs


@dataclass(frozen=True)
class ModelVerdict:
    """What is known about a model's answers: a verdict, what it means, and what it rests on."""

    verdict: str
    meaning: str
    record: str
    tone: Tone = "open"


def mechanism(spec: ModelSpec) -> str:
    """How such a model works, for a newcomer."""
    family = family_named(spec.family)
    others = "all tokens up to itself" if family.causal else "all tokens"
    return _HOW[family.kind].format(
        others=others, d=spec.d_model, state=spec.d_model * spec.d_state
    )


def title(family: Family, layers: int) -> str:
    """The common name of a model.

    >>> title(family_named("gru"), 2)
    'GRU, 2 layers'
    """
    attention = " attention" if family.attention else ""
    return f"{family.label}{attention}, {pluralize(layers, 'layer')}"


BY_HAND = ("Written by hand", "Explicit weights; nothing was trained.")


def origin(result: Result) -> tuple[str, str]:
    """Where the weights come from: as a label, and in a sentence."""
    if result.stepper == CONSTRUCTION:
        return BY_HAND
    label, examples = "Trained on fair bits", "In its training examples every bit is a fair coin."
    if result.spec.protocol.examples != "uniform":
        label = "Trained on mixed bits"
        examples = (
            "In half of its training examples ones are rare in one part, frequent in another."
        )
    return label, f"{examples} Seed {result.spec.seed}."


def samples(result: Result) -> str:
    """How the final weights did on random samples and on plain strings, as observed."""
    count = result.spec.protocol.held_out_examples
    right = round(result.final_accuracy * count)
    sentence = f"Observed on samples: it gets {right:,} of {count:,} random inputs right."
    if result.structured_tried is None:
        return sentence
    wrong = f"{result.structured_wrong:,} wrong" if result.structured_wrong else "all right"
    kinds = "such as constant strings, a single 1, or zeros and then ones"
    return f"{sentence} Of {result.structured_tried:,} plain inputs, {kinds}, it gets {wrong}."


def standing(verification: Verification | None) -> ModelVerdict:
    """What the run's verification record says.

    >>> standing(None).verdict
    'not verified'
    """
    if verification is None:
        nothing = "These weights have not been searched for a wrong answer."
        return ModelVerdict("not verified", nothing, "The run has no record of `ithbit verify`.")
    meanings: dict[str, tuple[str, Tone]] = {
        "right on all inputs": (
            "By its record every possible input was tried, and every answer was right.",
            "good",
        ),
        "refuted": ("There is an input that it gets wrong, whatever random tests say.", "bad"),
        "not refuted": ("A search found no wrong answer. That is no proof: one may exist.", "open"),
        "unsettled": ("Some answers are so close that rounding decides them.", "open"),
        "bounded (unchecked)": (
            "By its record bounds say that all answers are right, unchecked by a second program.",
            "open",
        ),
        "proved on all inputs": (
            "By its record a proof covers every possible input: all answers are right, in exact "
            "arithmetic. A second program has checked it; this page has not.",
            "good",
        ),
    }
    meaning, tone = meanings.get(verification.verdict, ("", "open"))
    return ModelVerdict(
        verification.verdict, meaning, f"On record: {verification.sentence()}.", tone
    )


def certified(certificate: Certificate) -> ModelVerdict:
    """What is proved about a construction."""
    margin = lower_text(certificate.margin, DIGITS)
    record = (
        f"Margin at least {margin} on every input, in real arithmetic on these weights: "
        f"{certificate.derivation}. Arithmetic of the proof: {certificate.arithmetic}."
    )
    if not certificate.certified:
        return ModelVerdict("not certified", "No proof was found for these weights.", record)
    meaning = "A proof covers every possible input: all answers are right."
    return ModelVerdict("certified for all inputs", meaning, record, "good")
