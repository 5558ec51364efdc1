"""What is kept of a run: a line for every epoch, and a result or a failure at the end."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

from ithbit.engine.spec import RunSpec, run_from_json

SCHEMA = 1

StoppedBy = Literal["loss", "epochs", "solved"]


@dataclass(frozen=True)
class Epoch:
    """One epoch of one run. `seconds` is the run's share of its stack's training time."""

    epoch: int  # from 1
    train_loss: float
    held_out_loss: float
    held_out_accuracy: float
    learning_rate: float
    seconds: float


@dataclass(frozen=True)
class Result:
    """A finished run. `solved` is the paper's criterion: maximum held-out accuracy 1.0.

    The length-shifted accuracies are those of the final weights; at n = 1 there is no half length.
    """

    spec: RunSpec
    n_parameters: int
    epochs: int
    stopped_by: StoppedBy
    max_accuracy: float
    first_solved_epoch: int | None
    final_accuracy: float
    final_loss: float
    half_length_accuracy: float | None
    double_length_accuracy: float
    seconds_per_epoch: float
    evaluation_seconds: float
    started_at: str
    finished_at: str
    environment: dict[str, Any]

    @property
    def solved(self) -> bool:
        return self.max_accuracy == 1.0

    def to_json(self) -> dict[str, Any]:
        fields = asdict(self) | {"spec": self.spec.to_json(), "solved": self.solved}
        return {"schema": SCHEMA, "run_id": self.spec.run_id, "name": self.spec.name} | fields


@dataclass(frozen=True)
class Failure:
    """A run that could not go on, with the reason; its neighbours in the stack went on."""

    spec: RunSpec
    error: str
    traceback: str
    epoch: int

    def to_json(self) -> dict[str, Any]:
        fields = asdict(self) | {"spec": self.spec.to_json()}
        return {"schema": SCHEMA, "run_id": self.spec.run_id, "name": self.spec.name} | fields


def result_from_json(data: dict[str, Any]) -> Result:
    """The result that `Result.to_json` wrote; raises KeyError or TypeError on anything else."""
    fields = {name: data[name] for name in Result.__dataclass_fields__}
    return Result(**fields | {"spec": run_from_json(data["spec"])})


def failure_from_json(data: dict[str, Any]) -> Failure:
    """The failure that `Failure.to_json` wrote."""
    fields = {name: data[name] for name in Failure.__dataclass_fields__}
    return Failure(**fields | {"spec": run_from_json(data["spec"])})
