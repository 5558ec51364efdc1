"""For a model that was trained elsewhere: inputs to answer, and the score of its answers."""

from pathlib import Path
from typing import TYPE_CHECKING

from ithbit.api.arguments import Seeds, at_least_one, seeds_of

if TYPE_CHECKING:
    from ithbit.exchange.score import Score


def data(
    task: str,
    *,
    n: int = 8,
    out: str | Path = "data",
    seeds: Seeds = "0-4",
    exhaustive: bool = False,
) -> list[Path]:
    """Write held-out and adversarial inputs as Parquet and NPZ, with a README.

    A model trained elsewhere answers them, and `score` gives the same success table as for our own
    runs. The held-out sets are the ones that runs of these seeds are judged by.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     [path.name for path in data("rhi", n=4, out=folder, seeds=[0])][:2]
    ['held_out.parquet', 'held_out.npz']
    """
    at_least_one(n=n)
    from ithbit.exchange.sets import write_sets

    return write_sets(task, n, Path(out), seeds_of(seeds), exhaustive)


def score(predictions: str | Path, *, data: str | Path = "data", name: str = "yours") -> "Score":
    """Score a model's answers to the inputs of `data`.

    A held-out set is solved if every one of its samples is answered right: the paper's criterion,
    an observation on samples. There is one set per seed that our runs are judged by; one model that
    solves five of them is still one model. Answers to all inputs, where given, say more.

    >>> import tempfile, numpy, ithbit
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = ithbit.data("rhi", n=4, out=folder, seeds=[0])
    ...     inputs = numpy.load(f"{folder}/held_out.npz")
    ...     right = inputs["bits"][numpy.arange(2000), inputs["index"] - 1]
    ...     numpy.savez(f"{folder}/answers.npz", held_out=right)
    ...     score(f"{folder}/answers.npz", data=folder).solved
    1
    """
    from ithbit.exchange.score import score as score_file

    return score_file(Path(predictions), Path(data), name)
