"""The clauses of the contract of a sequence layer or model, in the order in which they are
reported."""

from dataclasses import dataclass

from ithbit.errors import SpecError, one_of


@dataclass(frozen=True)
class Clause:
    """One thing that a layer is expected to keep. What a warning finds breaks no contract: some
    layers are made so."""

    name: str
    is_warning: bool
    what: str


CLAUSES: tuple[Clause, ...] = (
    Clause("causal", False, "no output depends on later tokens"),
    Clause("length", False, "the first outputs do not depend on how many tokens follow"),
    Clause("batch", False, "an output depends on its own example alone"),
    Clause("deterministic", False, "the same input gives the same output in evaluation mode"),
    Clause("stateless", False, "an output does not depend on earlier calls"),
    Clause("train-eval", False, "causal in training mode too"),
    Clause("float32", False, "causal in float32 too"),
    Clause("bfloat16", False, "causal in bfloat16 too"),
    Clause("gradient", False, "no output has a gradient at later tokens"),
    Clause("step", False, "step by step gives what all tokens at once give"),
    Clause("carries", True, "no place that nothing of the past gets across"),
    Clause("state", False, "the state has as many numbers as declared"),
    Clause("input", False, "the input is left as it was"),
    Clause("overflow", True, "large later tokens make no earlier output infinite or NaN"),
    Clause("cache", False, "decoding with a cache gives what scoring gives"),
    Clause("chunks", False, "a prompt read in chunks gives what it gives at once"),
    Clause("padding", False, "tokens padded on the left change nothing"),
)
CLAUSE_NAMES: tuple[str, ...] = tuple(clause.name for clause in CLAUSES)


def clause_named(name: str) -> Clause:
    """The clause of that name.

    >>> clause_named("carries").is_warning
    True
    """
    return CLAUSES[CLAUSE_NAMES.index(one_of("unknown clause", name, CLAUSE_NAMES, SpecError))]
