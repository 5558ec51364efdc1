"""Explicit weights for trained blocks as a model, and as a run folder that other commands read."""

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch

from ithbit.engine.device import choose_device, describe_environment
from ithbit.engine.evaluate import evaluate, held_out_examples, shifted_accuracy
from ithbit.models.stacked import Params
from ithbit.spec import Protocol, RunSpec
from ithbit.store.folder import RunFolder
from ithbit.store.records import CONSTRUCTION, Epoch, Result
from ithbit.tasks.tokens import token_table
from ithbit.theory.solution import TrainedSolution

# Nothing was trained. A protocol that is never used for training sets such a run apart.
NOT_TRAINED = Protocol(max_epochs=1, epoch_examples=1)


def params_of_solution(solution: TrainedSolution, dtype: torch.dtype) -> Params:
    """The weights as the parameters of one seed, without the seed axis."""
    return {
        name: torch.tensor(np.array(value), dtype=dtype) for name, value in solution.weights.items()
    }


def write_run(solution: TrainedSolution, store: Path) -> Path:
    """Write the weights as a finished run, rounded to float32 like those of trained runs.

    Its record has the accuracies of the rounded weights, one epoch in which nothing was trained,
    and "construction" where other records name what trained the run.
    """
    run = RunSpec(solution.spec, 0, NOT_TRAINED)
    params = params_of_solution(solution, torch.float32)
    stacked = {name: value[None] for name, value in params.items()}
    device = choose_device("cpu")
    started = datetime.now(UTC).isoformat(timespec="seconds")
    table = token_table(solution.task, solution.n_bits)
    examples = held_out_examples(solution.spec, run.protocol, [0], device.torch)
    loss, accuracy = (float(x[0]) for x in evaluate(stacked, solution.spec, table, examples, 250))
    half, double = shifted_accuracy(stacked, solution.spec, run.protocol, [0])
    folder = RunFolder(store, run)
    folder.create()
    folder.append_epoch(Epoch(1, loss, loss, accuracy, 0.0, 0.0))
    result = Result(
        spec=run,
        n_parameters=sum(value.numel() for value in params.values()),
        epochs=1,
        stopped_by="epochs",
        max_accuracy=accuracy,
        first_solved_epoch=1 if accuracy == 1 else None,
        final_accuracy=accuracy,
        final_loss=loss,
        half_length_accuracy=half[0] if half else None,
        double_length_accuracy=double[0] if double else None,
        seconds_per_epoch=0.0,
        evaluation_seconds=0.0,
        started_at=started,
        finished_at=datetime.now(UTC).isoformat(timespec="seconds"),
        environment=describe_environment(device, CONSTRUCTION),
    )
    folder.finish(result, params)
    return folder.path
