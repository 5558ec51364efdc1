"""For models trained elsewhere: inputs to answer, as files, and a score for the answers.

data.json             what the folder holds
held_out.parquet      seed, number, bits, index: the fixed held-out set of each seed
adversarial.parquet   kind, number, bits, index: inputs that shortcuts get wrong
exhaustive.parquet    number, bits, index: all n 2^n inputs, if asked for
*.npz                 the same as arrays: bits (row, n) uint8, index (row), and seed or kind
README.md             how to answer them and score the answers

Answers are scored by the paper's criterion and beyond.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ithbit.display import Printable, pluralize, share_text
from ithbit.engine.memory import need_memory
from ithbit.errors import SpecError, as_int
from ithbit.families import Task, task_named
from ithbit.published import RUNS_PER_CELL, published
from ithbit.spec import Protocol
from ithbit.store.writing import in_memory, json_bytes, write_output, write_text
from ithbit.tasks.indexing import all_inputs
from ithbit.tasks.sampling import BYTES_A_BIT, HELD_OUT_SEED, draw_examples, stream_keys

SCHEMA = 1
MOST_EXHAUSTIVE = 16
_KINDS = 8  # hard inputs per index
_POINTER = 8  # bytes per bit in a list
_FORMATS = (".npz", ".csv", ".parquet")
_HEADS, _ANSWER = 1 << 16, 16  # bytes of predictions in an .npz, at most: its heads, each answer


@dataclass(frozen=True)
class InputSet:
    """Rows of inputs: `label` is the seed (held out), the kind (adversarial) or empty."""

    name: str
    bits: NDArray[np.uint8]  # row bit
    index: NDArray[np.int64]  # from 1
    label: list[Any]

    @property
    def answer(self) -> NDArray[np.uint8]:
        return self.bits[np.arange(len(self.index)), self.index - 1]


def held_out_set(n_bits: int, seeds: list[int]) -> InputSet:
    """The held-out sets on which runs with these seeds are judged, one after the other."""
    count = Protocol().held_out_examples
    keys = stream_keys([seed + HELD_OUT_SEED for seed in seeds])
    examples = draw_examples(keys, n_bits, 0, count)
    labels = [seed for seed in seeds for _ in range(count)]
    return InputSet(
        "held_out", examples.bits.flatten(0, 1).numpy(), examples.index.flatten().numpy(), labels
    )


def adversarial_set(n_bits: int) -> InputSet:
    """For every index, inputs that a shortcut gets wrong.

    Among them: the indexed bit against all others (majority), against its neighbours (a blurred
    position), alternating strings (a position off by one) and an edge at the index.

    >>> hard = adversarial_set(3)
    >>> len(hard.index), sorted(set(hard.label))
    (24, ['alternating', 'constant', 'edge', 'odd one out'])
    """
    kinds, bits, index = zip(*_hard(n_bits), strict=True)
    return InputSet("adversarial", np.array(bits, np.uint8), np.array(index, np.int64), list(kinds))


def _hard(n: int) -> Iterator[tuple[str, list[int], int]]:
    for i in range(1, n + 1):
        for value in (0, 1):
            other = 1 - value
            yield "constant", [value] * n, i
            yield "odd one out", [other] * (i - 1) + [value] + [other] * (n - i), i
            yield "alternating", [(value + k) % 2 for k in range(n)], i
            yield "edge", [value] * i + [other] * (n - i), i


def _made(n_bits: int, seeds: list[int], exhaustive: bool) -> list[InputSet]:
    """The sets of a length; raise before making them if they do not fit in memory."""
    held_out = len(seeds) * Protocol().held_out_examples * n_bits * BYTES_A_BIT
    adversarial = _KINDS * n_bits * n_bits * _POINTER
    advice = "take a smaller n or fewer seeds"
    need_memory(f"making the inputs of n = {n_bits:,}", max(held_out, adversarial), advice)
    sets = [held_out_set(n_bits, seeds), adversarial_set(n_bits)]
    if exhaustive and n_bits > MOST_EXHAUSTIVE:
        raise SpecError(
            f"all inputs are written for n up to {MOST_EXHAUSTIVE}, got n = {n_bits}; leave "
            "--exhaustive out"
        )
    if exhaustive:
        bits, index = map(np.concatenate, zip(*all_inputs(n_bits), strict=True))
        sets.append(InputSet("exhaustive", bits, index, []))
    return sets


def write_sets(
    task: str, n_bits: int, folder: Path, seeds: list[int], exhaustive: bool = False
) -> list[Path]:
    """Write the sets of a task and length; return the files."""
    known_task = task_named(task)
    sets = _made(n_bits, seeds, exhaustive)
    paths = []
    for each in sets:
        kind = {"held_out": "seed", "adversarial": "kind"}.get(each.name)
        label: dict[str, Any] = {kind: np.array(each.label)} if kind else {}
        texts = [row.tobytes().decode() for row in each.bits + ord("0")]
        number = np.arange(len(each.index))
        frame = pl.DataFrame({**label, "number": number, "bits": texts, "index": each.index})
        packed = partial(np.savez_compressed, bits=each.bits, index=each.index, **label)
        for ending, write in (("parquet", frame.write_parquet), ("npz", packed)):
            paths.append(write_output(folder / f"{each.name}.{ending}", in_memory(write)))
    record = {
        "schema": SCHEMA,
        "task": known_task,
        "n_bits": n_bits,
        "seeds": seeds,
        "sets": {each.name: len(each.index) for each in sets},
    }
    paths.append(write_output(folder / "data.json", json_bytes(record)))
    paths.append(write_text(folder / "README.md", _readme(known_task, n_bits, sets)))
    return paths


def read_sets(folder: Path) -> tuple[Task, int, dict[str, InputSet]]:
    """Task, length and sets of a folder that `write_sets` made; sets are made again, not read."""
    try:
        record = json.loads((folder / "data.json").read_bytes())
        if record["schema"] != SCHEMA:
            raise ValueError("it is of another version")
        task, n_bits = task_named(record["task"]), as_int("n", record["n_bits"])
        seeds = [as_int("a seed", seed) for seed in record["seeds"]]
        names = list(record["sets"])
        if n_bits < 1 or not seeds or min(seeds) < 0:
            raise ValueError(f"it has n = {n_bits} and the seeds {seeds!r:.80}")
    except OSError as error:
        raise SpecError(
            f"{folder} holds no inputs ({error.strerror or error}); write them with `ithbit data`"
        ) from error
    except (SpecError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise SpecError(f"{folder}/data.json cannot be used: {error}; write it again") from error
    sets = _made(n_bits, seeds, "exhaustive" in names)
    return task, n_bits, {each.name: each for each in sets}


def _readme(task: Task, n_bits: int, sets: list[InputSet]) -> str:
    order = (
        "the n bits and then the index" if task == "rhi" else "the index, the n bits, an end token"
    )
    listed = "\n".join(f"* `{each.name}`: {len(each.index):,} inputs" for each in sets)
    names = ", ".join(f"`{each.name}`" for each in sets)
    return f"""# Inputs of {task.upper()} at n = {n_bits}

A model reads {order}, and answers the bit at the index. `bits` are in order, `index` counts from 1.

{listed}

`held_out` has the examples on which a run of each seed is judged: answer them with one model per
seed, each on its own rows, or with one model on all. `adversarial` has inputs that shortcuts get
wrong.

Answer every row with 0 or 1 and score the answers:

* an `.npz` with an array for each set, named {names}, in the order of the rows; or
* a `.csv` or `.parquet` with the columns `set`, `number` and `prediction`.

```
ithbit score predictions.npz --data .
```
"""


@dataclass(frozen=True, repr=False)
class Score(Printable):
    """Accuracies per set; `held_out` is per seed, and a seed is solved if its accuracy is 1."""

    task: Task
    n_bits: int
    held_out: dict[int, float]
    adversarial: dict[str, float]  # by kind
    exhaustive: float | None
    n_wrong: int | None  # of all inputs
    name: str = "yours"  # what the model is called

    @property
    def solved(self) -> int:
        return sum(accuracy == 1.0 for accuracy in self.held_out.values())

    def to_json(self) -> dict[str, Any]:
        return {"schema": 1, **asdict(self), "solved": self.solved, "seeds": len(self.held_out)}

    def successes(self) -> list[tuple[str, str, str]]:
        """Model, depth and successes: this model above the published ones of its task and n."""
        published_rows = [
            (row.label, str(row.n_layers), f"{row.successes[self.n_bits]}/{RUNS_PER_CELL}")
            for row in published().successes
            if row.task == self.task and self.n_bits in row.successes
        ]
        return [(self.name, "", f"{self.solved} of {_sets(self.held_out)}"), *published_rows]

    def render(self) -> Iterator[Any]:
        from rich.box import SIMPLE_HEAD
        from rich.table import Table

        n, rows = self.n_bits, self.successes()
        yield f"{self.task.upper()} at n = {n}"
        table = Table("Model", "L", f"n={n}", box=SIMPLE_HEAD, pad_edge=False)
        for number, row in enumerate(rows):
            table.add_row(*row, end_section=number == 0)
        yield table
        yield (
            f"First row: of the {_sets(self.held_out)}, one for each seed of the data, how many "
            "were answered without a mistake, whether by one model or by one model per set."
        )
        if len(rows) > 1:
            yield "Other rows: the paper's successful seeds out of five, one trained model each."
        else:
            yield f"The paper has no counts at n = {n} to compare with."
        yield "held out, by seed: " + _shares(self.held_out)
        if self.adversarial:
            yield "adversarial, by kind: " + _shares(self.adversarial)
        if self.n_wrong is not None:
            total = f"{n << n:,}"
            wrong = (
                f"{self.n_wrong:,} of {total} wrong" if self.n_wrong else f"right on all {total}"
            )
            yield f"all inputs: {wrong}"


def _sets(held_out: dict[int, float]) -> str:
    return pluralize(len(held_out), "held-out set")


def _shares(shares: dict[str, float] | dict[int, float]) -> str:
    return ", ".join(f"{label}: {share_text(share)}" for label, share in shares.items())


def score(predictions: Path, data: Path, name: str = "yours") -> Score:
    """Score a file of predictions against the sets of a folder."""
    task, n_bits, sets = read_sets(data)
    answers = _read(predictions, sum(len(each.index) for each in sets.values()))
    unknown = sorted(set(answers) - set(sets))
    if unknown:
        raise SpecError(
            f"{predictions} answers {', '.join(unknown)}; the sets of {data} are {', '.join(sets)}"
        )
    if "held_out" not in answers:
        raise SpecError(f"{predictions} does not answer the set held_out, which the score needs")
    right = {name: _right(answers[name], sets[name], predictions) for name in answers}
    exhaustive = right.get("exhaustive")
    return Score(
        task,
        n_bits,
        _by_label(right["held_out"], sets["held_out"]),
        _by_label(right["adversarial"], sets["adversarial"]) if "adversarial" in right else {},
        None if exhaustive is None else float(exhaustive.mean()),
        None if exhaustive is None else int((~exhaustive).sum()),
        name,
    )


def _read(path: Path, inputs: int) -> dict[str, NDArray[Any]]:
    """Predictions by set, in row order, for so many inputs at most."""
    if path.suffix not in _FORMATS:
        raise SpecError(f"predictions are {', '.join(_FORMATS)} files, got {path.name!r}")
    if not path.is_file():
        raise SpecError(f"there is no file {path}")
    try:
        if path.suffix == ".npz":
            # Opened here: numpy would leave a damaged file open.
            with path.open("rb") as handle, np.load(handle, allow_pickle=False) as file:
                size = sum(entry.file_size for entry in file.zip.infolist())
                if size <= _HEADS + _ANSWER * inputs:  # a small file may hold zeros without end
                    return {name: file[name] for name in file.files}
            raise SpecError(f"{path} holds far more than {inputs:,} answers: {size:,} bytes")
        frame = pl.read_csv(path) if path.suffix == ".csv" else pl.read_parquet(path)
    except SpecError:
        raise
    except (Exception, pl.exceptions.PanicException) as error:
        as_savez = (
            "it must be a file that numpy.savez writes, with an array of 0 and 1 for each set"
        )
        why = as_savez if path.suffix == ".npz" else error  # numpy would suggest unpickling it
        raise SpecError(f"{path} cannot be read as {path.suffix}: {why}") from error
    missing = [name for name in ("set", "number", "prediction") if name not in frame.columns]
    if missing:
        raise SpecError(f"{path} lacks the columns {', '.join(missing)}")
    predictions = {}
    for (name,), part in frame.group_by("set"):
        part = part.sort("number")
        if part["number"].to_list() != list(range(part.height)):
            raise SpecError(f"{path} must answer every number of the set {name} once, from 0 on")
        predictions[str(name)] = part["prediction"].to_numpy()
    return predictions


def _right(predictions: NDArray[Any], inputs: InputSet, path: Path) -> NDArray[np.bool_]:
    answers = np.asarray(predictions)
    if answers.shape != inputs.index.shape:
        raise SpecError(
            f"{path} has {answers.shape} answers to {inputs.name}, which has "
            f"{len(inputs.index)} inputs; give one answer each"
        )
    if answers.dtype.kind not in "biuf" or not np.isin(answers, (0, 1)).all():
        raise SpecError(f"answers are 0 or 1; {path} has others in {inputs.name}")
    return np.asarray(answers == inputs.answer)


def _by_label(right: NDArray[np.bool_], of: InputSet) -> dict[Any, float]:
    labels = np.array(of.label)
    return {label: float(right[labels == label].mean()) for label in dict.fromkeys(of.label)}
