"""What is recorded: a line for every epoch of a run, a result or a failure at its end, what `ithbit
verify` found, and where a user's layer came from.

The annotations are the schema: see `schema.py`.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from ithbit.display import lower_percent, lower_text
from ithbit.spec import RunSpec, plain, run_from_json, since_0_2
from ithbit.store.schema import MAX_FLOAT, MAX_INT, built

SCHEMA = 1
_NOT_FINITE = "the loss is not finite"  # how the error of a run that diverged begins

StoppedBy = Literal["loss", "epochs", "solved", "consistency"]
FailureKind = Literal["diverged", "error"]
PROVED, BOUNDED = "proved on all inputs", "bounded (unchecked)"  # verdicts that rest on a proof
SECOND = "second implementation"  # how a proof was checked; only then it is one
Verdict = Literal[
    "proved on all inputs",
    "bounded (unchecked)",
    "right on all inputs",
    "refuted",
    "not refuted",
    "unsettled",
]
VERDICTS_0_1 = {  # verdicts of 0.1, and those that they are read as
    "verified on all inputs": "right on all inputs",
    "counterexample": "refuted",
    "no counterexample found": "not refuted",
}

Share = Annotated[float, (0, 1)]  # the range
Amount = Annotated[float, (0, MAX_FLOAT)]  # a loss, a rate, seconds
Count = Annotated[int, (0, MAX_INT)]
FromOne = Annotated[int, (1, MAX_INT)]

R = TypeVar("R", "Result", "Failure")


@dataclass(frozen=True)
class Epoch:
    """One epoch of one run. `seconds` is the run's share of its stack's training time.

    >>> Epoch(1, 0.7, 0.69, 0.5, 1e-3, 0.1).held_out_accuracy
    0.5
    """

    epoch: FromOne
    train_loss: Amount
    held_out_loss: Amount
    held_out_accuracy: Share
    learning_rate: Amount
    seconds: Amount


@dataclass(frozen=True)
class Result:
    """A finished run. `solved` is the paper's criterion: maximum held-out accuracy 1.0.

    The length-shifted accuracies are those of the final weights; at n = 1 there is no half length,
    and a user's layer may refuse either. The answers to structured inputs (`tasks/structured.py`)
    are also those of the final weights; 0.1 did not record them.

    >>> import tempfile, ithbit
    >>> tiny = ithbit.Protocol(batch_size=32, epoch_examples=64, held_out_examples=32, max_epochs=1)
    >>> with tempfile.TemporaryDirectory() as store:
    ...     (result,) = ithbit.train("lhi", "gru", n=2, seeds=[0], protocol=tiny, store=store)
    >>> result.epochs, result.stopped_by, result.n_parameters
    (1, 'epochs', 1777)
    """

    spec: RunSpec
    n_parameters: Count
    epochs: FromOne
    stopped_by: StoppedBy
    max_accuracy: Share
    first_solved_epoch: FromOne | None
    final_accuracy: Share
    final_loss: Amount
    half_length_accuracy: Share | None
    double_length_accuracy: Share | None
    seconds_per_epoch: Amount
    evaluation_seconds: Amount
    started_at: str
    finished_at: str
    environment: dict[str, Any]
    structured_tried: Count | None = since_0_2(None)
    structured_wrong: Count | None = since_0_2(None)
    structured_example: str | None = since_0_2(None)  # the first wrong one
    store: ClassVar[Path | None] = None  # where it was read, once `train` returns it; not recorded

    @property
    def solved(self) -> bool:
        return self.max_accuracy == 1.0

    @property
    def stepper(self) -> str:
        """What took the steps: stacked (if nothing is recorded, too), kernels, compiled or module;
        or `CONSTRUCTION`."""
        return str(self.environment.get("path", "stacked"))

    def structured_sentence(self) -> str | None:
        """How the final weights do on structured inputs, in words; None if they were not tried."""
        if self.structured_tried is None:
            return None
        if not self.structured_wrong:
            return f"right on {self.structured_tried:,} structured inputs"
        return (
            f"wrong on {self.structured_wrong:,} of {self.structured_tried:,} structured inputs, "
            f"for example {self.structured_example}"
        )

    def to_json(self) -> dict[str, Any]:
        return _to_json(self) | {"solved": self.solved}


CONSTRUCTION = "construction"  # in place of a stepper, for explicit weights


@dataclass(frozen=True)
class Failure:
    """A run that could not continue, with the reason; the others in its stack continued.

    `kind` is *diverged* if the training itself failed (the loss was not finite), *error* if the
    code or the machine that ran it did.

    >>> from ithbit import ModelSpec, RunSpec
    >>> run = RunSpec(ModelSpec("rhi", "gru", n_bits=8), seed=0)
    >>> error = "the loss is not finite in epoch 3: nan"
    >>> Failure(run, error, traceback="", epoch=3, kind="diverged").diverged
    True
    """

    spec: RunSpec
    error: str
    traceback: str
    epoch: Count
    kind: FailureKind | None = since_0_2(None)  # None in older records, see `failure_kind`
    store: ClassVar[Path | None] = None  # as in a result

    @property
    def diverged(self) -> bool:
        """Whether the training itself failed, not the code or machine that ran it."""
        return failure_kind(self.kind, self.error) == "diverged"

    def to_json(self) -> dict[str, Any]:
        return _to_json(self)


def failure_kind(recorded: FailureKind | None, error: str) -> FailureKind:
    """The kind of a failure: the recorded one or, in a record written before failures had a kind,
    the one that its error message implies.

    >>> failure_kind(None, "the loss is not finite in epoch 3: nan")
    'diverged'
    """
    return recorded or ("diverged" if error.startswith(_NOT_FINITE) else "error")


def head(run: RunSpec) -> dict[str, Any]:
    """What every record of a run begins with: which run it belongs to."""
    return {
        "schema": SCHEMA,
        "run_id": run.run_id,
        "name": run.name,
        "spec": run.to_json(),
    }


def _to_json(record: Result | Failure) -> dict[str, Any]:
    return head(record.spec) | {k: v for k, v in plain(record).items() if k != "spec"}


def from_json(record: Callable[..., R], data: Mapping[str, Any]) -> R:
    """The result or failure that `to_json` wrote; raises KeyError, TypeError or ValueError on
    anything else."""
    return built(record, {**data, "spec": run_from_json(data["spec"])})


@dataclass(frozen=True)
class Case:
    """One input with its margin; None if the margin is not finite."""

    bits: str
    index: FromOne
    margin: float | None

    @property
    def right(self) -> bool:
        return self.margin is not None and self.margin > 0


@dataclass(frozen=True)
class Proof:
    """The outcome of `ithbit verify --prove`: bounds of the margin in real arithmetic on the stored
    weights, whatever was observed in floats.

    *proved*: the margin is at least `least_margin` on all inputs; a second implementation has
    confirmed the certificate that was written (`checked`). *bounded*: the search's own bounds say
    so, and no second implementation has confirmed it. *refuted*: the input found is wrong in real
    arithmetic. *open*: the time ran out, or the certificate was `refused`. *no bounds*: there is no
    file of bounds for such blocks, or the weights cannot be bounded.
    """

    outcome: Literal["proved", "bounded", "refuted", "open", "no bounds"]
    least_margin: float | None = None  # on all inputs; None if nothing is bounded
    least_found: float | None = None  # the least margin found, rounded up
    least_float32: float | None = None  # bound of a float32 run on all inputs, never checked
    found_at: str = ""  # bits and index of that input
    share_closed: Share = 0.0  # of all inputs: where bounds are above 0
    nodes: Count = 0  # sets of inputs that were bounded
    leaves: Count = 0  # of the certificate
    seconds: Amount = 0.0
    arithmetic: str = ""
    certificate: str = ""  # the file, next to this record; "" if it could not be written
    checked: str = since_0_2("")  # `SECOND` if a second implementation confirmed this
    certificate_sha256: str = since_0_2("")  # of the bytes that were confirmed
    refused: str = since_0_2("")  # why the certificate that the search made does not hold

    @property
    def verdict(self) -> Verdict | None:
        """The verdict of a run that no input refutes; None if the bounds decide nothing."""
        if self.outcome == "proved" and self.checked == SECOND:
            return "proved on all inputs"
        return "bounded (unchecked)" if self.outcome in ("proved", "bounded") else None

    def sentence(self) -> str:
        """What is proved or bounded, in words."""
        effort = f"{self.nodes:,} nodes, {self.seconds:.1f} s"
        if not self.nodes:  # from a certificate, and of its search nothing is known
            effort = f"{self.leaves:,} leaves"
        match self.outcome:
            case "proved" | "bounded":
                float32 = self.least_float32
                bound = "" if float32 is None else lower_text(float32)
                run = f", as run in float32 {bound} (unchecked)" if bound else ""
                by = "" if self.verdict == PROVED else " by the bounds of the search alone"
                least = f"margin at least {lower_text(self.least_margin)} in real arithmetic"
                return f"{least}{by}{run} ({effort})"
            case "refuted":
                sure = "" if self.checked else " by the bounds of the search alone"
                return f"wrong in real arithmetic at {self.found_at}{sure} ({effort})"
            case "open" if self.refused:
                reason = "the search closed all inputs, but its certificate does not hold"
                return f"{reason}: {self.refused}"
            case "open":
                closed = f"bounds above 0 on {lower_percent(self.share_closed)} of all inputs"
                return f"{closed}, the rest open ({effort})"
        return "no bounds for such a model, or for weights as large as these"


@dataclass(frozen=True)
class Verification:
    """The outcome of trying inputs on one model. `n_wrong` counts over all that were evaluated.

    *proved on all inputs*: by bounds in real arithmetic (`proof`) that a second implementation has
    confirmed, and no input tried was wrong in float32. *bounded (unchecked)*: by bounds that none
    has confirmed, where not all inputs were tried. *right on all inputs*: every input was tried.
    *refuted*: the counterexample is answered wrong, in its batch and alone. *not refuted*: the
    search found nothing, which proves nothing. *unsettled*: inputs were answered wrong in a batch
    and right alone, or wrong before (on another device, or by compiled code) and right now, so
    their margins are within rounding of 0.
    """

    verdict: Verdict
    exhaustive: bool
    n_bits: FromOne
    n_inputs: int  # n 2^n: all there are
    n_evaluated: Count
    n_wrong: Count
    n_near: Count  # margins within 1e-4 of 0
    wrong_by_index: dict[int, int]
    worst: Case  # least margin, evaluated alone
    counterexample: Case | None
    seconds: Amount
    method: str = since_0_2("")  # the stage that settled it
    stages: list[Any] | None = since_0_2(None)  # name, tried, wrong, seconds of each, in order
    proof: Proof | None = since_0_2(None)

    @property
    def effort(self) -> str:
        """How much was tried, stage by stage."""
        return ", ".join(f"{stage['tried']:,} {stage['name']}" for stage in self.stages or [])

    @property
    def accuracy(self) -> float | None:
        """Share of right answers over all inputs; None if not all were tried."""
        return 1 - self.n_wrong / self.n_inputs if self.exhaustive else None

    def with_proof(self, proof: Proof) -> "Verification":
        """With a proof added, and the verdict that both give; a wrong answer outweighs it. All
        inputs tried one by one are better evidence than bounds that nobody checked."""
        verdict, was = proof.verdict, self.verdict
        if was in ("proved on all inputs", "bounded (unchecked)"):
            was = "right on all inputs" if self.exhaustive else "not refuted"
        if verdict is None or was in ("refuted", "unsettled"):
            return replace(self, proof=proof, verdict=was)
        if verdict == BOUNDED and was == "right on all inputs":
            return replace(self, proof=proof, verdict=was)
        return replace(self, proof=proof, verdict=verdict, method="proof")

    def sentence(self) -> str:
        """The verdict in words."""
        margin = "not finite" if self.worst.margin is None else f"{self.worst.margin:.4g}"
        least = f"least margin {margin}"
        match self.verdict:
            case "proved on all inputs" | "bounded (unchecked)":
                assert self.proof is not None
                return f"all {self.n_inputs:,}, {self.proof.sentence()}; in float32 {least}"
            case "right on all inputs":
                return f"observed right on all {self.n_inputs:,} inputs, {least}"
            case "refuted":
                assert self.counterexample is not None
                at = f"bits {self.counterexample.bits}, index {self.counterexample.index}"
                share = (
                    f"{self.n_wrong:,} of all {self.n_inputs:,} inputs"
                    if self.exhaustive
                    else f"{self.n_wrong:,} of {self.n_evaluated:,} tries ({self.effort})"
                )
                return f"wrong on {share}, worst at {at}, {least}"
            case "not refuted":
                return f"nothing found in {self.n_evaluated:,} tries ({self.effort}), {least}"
        if self.proof is not None and self.proof.outcome == "refuted":
            return f"{self.proof.sentence()}, right in float32, {least}"
        if not self.n_wrong:
            by = "before or by compiled code"
            return f"an input that was answered wrong {by} is answered right now, {least}"
        return f"{self.n_wrong:,} inputs wrong in a batch and right alone, {least}"


@dataclass(frozen=True)
class VerificationRecord:
    """A verification with its subject: the run, its weights, and where they were evaluated."""

    run_id: str
    name: str
    weights_sha256: str
    dtype: str
    budget: Count
    seed: int
    found: Verification
    environment: dict[str, Any]
    count: bool = since_0_2(False)  # whether it continued after the first wrong answer

    def to_json(self) -> dict[str, Any]:
        data = {"schema": SCHEMA} | plain(self)
        verification, environment = data.pop("found"), data.pop("environment")
        more = {"accuracy": self.found.accuracy, "effort": self.found.effort}
        return data | verification | more | {"environment": environment}


@dataclass(frozen=True)
class LayerOrigin:
    """Where the code of a user's layer was loaded from when its run was trained."""

    family: str
    code: str  # the digest that is part of the run's spec
    source: str | None  # None for a layer defined only in a Python session

    def to_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA} | asdict(self)
