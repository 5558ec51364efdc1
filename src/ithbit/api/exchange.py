"""For models trained elsewhere: inputs to answer, and a score for the answers."""

from pathlib import Path
from typing import TYPE_CHECKING

from ithbit.api.arguments import Seeds, at_least_one, checked, seeds_of
from ithbit.errors import whole
from ithbit.families import task_named
from ithbit.spec import ModelSpec, Protocol, cell

if TYPE_CHECKING:
    from ithbit.exchange import Score


@checked
def data(
    task: str,
    *,
    n: int = 8,
    out: str | Path = "data",
    seeds: Seeds = "0-4",
    exhaustive: bool = False,
) -> list[Path]:
    """Write held-out and adversarial inputs as Parquet and NPZ, with a README.

    Have a model trained elsewhere answer them; `score` then gives the same success table as for our
    own runs. The held-out sets are those on which runs with these seeds are judged.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     [path.name for path in data("rhi", n=4, out=folder, seeds=[0])][:2]
    ['held_out.parquet', 'held_out.npz']
    """
    n = whole("n", n)
    at_least_one(n=n)
    # Made as runs are, so that seeds no run could have are refused.
    runs = cell(ModelSpec(task_named(task), "gru", n), Protocol(), seeds_of(seeds))
    from ithbit.exchange import write_sets

    return write_sets(task, n, Path(out), [run.seed for run in runs], exhaustive)


@checked
def score(predictions: str | Path, *, data: str | Path = "data", name: str = "yours") -> "Score":
    """Score a model's answers to the inputs of `data`.

    A held-out set is solved if all of its samples are answered correctly: the paper's criterion, an
    observation on samples. There is one set per seed, as for our own runs; one model that solves
    five sets is still one model. Answers to all inputs, if given, are stronger evidence.

    >>> import tempfile, numpy, ithbit
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = ithbit.data("rhi", n=4, out=folder, seeds=[0])
    ...     inputs = numpy.load(f"{folder}/held_out.npz")
    ...     right = inputs["bits"][numpy.arange(2000), inputs["index"] - 1]
    ...     numpy.savez(f"{folder}/answers.npz", held_out=right)
    ...     score(f"{folder}/answers.npz", data=folder).solved
    1
    """
    from ithbit.exchange import score as score_file

    return score_file(Path(predictions), Path(data), name)
