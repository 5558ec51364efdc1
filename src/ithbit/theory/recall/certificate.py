"""Certificates of weights for recall tasks: a lower bound on the margin over all inputs.

The argument of a task checks that every weight is the one its proof is about (the scales of an
induction head may be any) and evaluates the margin of the proof, in real arithmetic on the stored
weights. Tests run every input of small sizes in balls.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ithbit.display import Printable, lower_text, pluralize
from ithbit.errors import SpecError
from ithbit.theory.certifiers.exact import UnsuitableError, need, rounded_down
from ithbit.theory.recall.copying import copying, copying_margin
from ithbit.theory.recall.induction_head import given_scales, induction_head, margin, sizes
from ithbit.theory.recall.tasks import Recall
from ithbit.theory.recall.weights import RecallSolution, same_weights


@dataclass(frozen=True, repr=False)
class RecallCertificate(Printable):
    """A proved lower bound on the margin over all inputs; `certified` if it is positive."""

    solution: RecallSolution
    margin: float

    @property
    def certified(self) -> bool:
        return self.margin > 0

    def to_json(self) -> dict[str, Any]:
        """The claim, without the weights."""
        solution, task = self.solution, self.solution.task
        sizes = {"n": solution.n, "depth": len(solution.layers), "width": solution.width}
        named = {"task": task.name, "values": task.values or solution.n, "family": solution.family}
        return named | sizes | {"certified": self.certified, "margin": self.margin}

    def render(self) -> Iterator[str]:
        solution = self.solution
        layers = f"{pluralize(len(solution.layers), 'layer')} of width {solution.width}"
        n = f"n = {solution.n:,} {solution.task.counts}"
        yield f"{solution.task.text} · {solution.family} · {n} · {layers}"
        claim = "certified" if self.certified else "not certified"
        yield f"{claim}: margin >= {lower_text(self.margin)} on all inputs"
        yield "  every weight is that of the construction; real arithmetic on the stored weights"


def build_recall(task: Recall, family: str, n: int) -> RecallSolution:
    """The explicit weights for a task and a family; `SpecError` where there are none."""
    return (copying if task.name == "copy" else induction_head)(task, family, n)


def certify_recall(solution: RecallSolution) -> RecallCertificate:
    """The certificate of these weights; `SpecError` if they are not what the proof is about.

    >>> from ithbit.theory.recall.tasks import recall
    >>> certify_recall(build_recall(recall("mqar", 4), "softmax-causal", 64)).margin > 3 / 8
    True
    """
    task, family, n = solution.task, solution.family, solution.n
    try:
        if task.name == "copy":
            same = same_weights(solution, copying(task, family, n))
            need(same, "a weight is not that of the construction")
            return RecallCertificate(solution, rounded_down(copying_margin(task, family, n)))
        scales = given_scales(solution)
        same = same_weights(solution, induction_head(task, family, n, scales))
        need(same, "a weight is not that of an induction head")
        return RecallCertificate(solution, rounded_down(margin(*sizes(task, n), scales)))
    except UnsuitableError as reason:
        raise SpecError(f"these weights of {task.name} are refused: {reason}") from None
