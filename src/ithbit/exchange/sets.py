"""Inputs for a model trained elsewhere, as files: held-out sets, hard inputs, and all inputs.

data.json             what the folder holds
held_out.parquet      seed, number, bits, index: the fixed held-out set of each seed
adversarial.parquet   kind, number, bits, index: inputs that shortcuts get wrong
exhaustive.parquet    number, bits, index: all n 2^n inputs, if asked for
*.npz                 the same as arrays: bits (row, n) uint8, index (row), and seed or kind
README.md             how to answer them and score the answers
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ithbit.engine.memory import need_memory
from ithbit.errors import SpecError
from ithbit.families import Task, task_named
from ithbit.spec import Protocol
from ithbit.store.writing import in_memory, json_bytes, write_text, write_whole
from ithbit.tasks.indexing import all_inputs
from ithbit.tasks.sampling import BYTES_A_BIT, HELD_OUT_SEED, draw_examples, stream_keys

SCHEMA = 1
MOST_EXHAUSTIVE = 16
_KINDS = 8  # hard inputs per index
_POINTER = 8  # bytes per bit in a list


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


def exhaustive_set(n_bits: int) -> InputSet:
    """All n 2^n inputs, for n up to 16."""
    if n_bits > MOST_EXHAUSTIVE:
        raise SpecError(
            f"all inputs are written for n up to {MOST_EXHAUSTIVE}, got n = {n_bits}; leave "
            "--exhaustive out"
        )
    bits, index = map(np.concatenate, zip(*all_inputs(n_bits), strict=True))
    return InputSet("exhaustive", bits, index, [])


def _sets(n_bits: int, seeds: list[int], exhaustive: bool) -> list[InputSet]:
    """The sets of a length; raise before making them if they do not fit in memory."""
    held_out = len(seeds) * Protocol().held_out_examples * n_bits * BYTES_A_BIT
    adversarial = _KINDS * n_bits * n_bits * _POINTER
    advice = "take a smaller n or fewer seeds"
    need_memory(f"making the inputs of n = {n_bits:,}", max(held_out, adversarial), advice)
    sets = [held_out_set(n_bits, seeds), adversarial_set(n_bits)]
    return [*sets, exhaustive_set(n_bits)] if exhaustive else sets


def write_sets(
    task: str, n_bits: int, folder: Path, seeds: list[int], exhaustive: bool = False
) -> list[Path]:
    """Write the sets of a task and length; return the files."""
    chosen = task_named(task)
    sets = _sets(n_bits, seeds, exhaustive)
    paths = []
    for each in sets:
        kind = {"held_out": "seed", "adversarial": "kind"}.get(each.name)
        label: dict[str, Any] = {kind: np.array(each.label)} if kind else {}
        texts = [row.tobytes().decode() for row in each.bits + ord("0")]
        number = np.arange(len(each.index))
        frame = pl.DataFrame({**label, "number": number, "bits": texts, "index": each.index})
        packed = partial(np.savez_compressed, bits=each.bits, index=each.index, **label)
        for ending, write in (("parquet", frame.write_parquet), ("npz", packed)):
            paths.append(write_whole(folder / f"{each.name}.{ending}", in_memory(write)))
    record = {
        "schema": SCHEMA,
        "task": chosen,
        "n_bits": n_bits,
        "seeds": seeds,
        "sets": {each.name: len(each.index) for each in sets},
    }
    paths.append(write_whole(folder / "data.json", json_bytes(record)))
    paths.append(write_text(folder / "README.md", _readme(chosen, n_bits, sets)))
    return paths


def read_sets(folder: Path) -> tuple[Task, int, dict[str, InputSet]]:
    """Task, length and sets of a folder that `write_sets` made; sets are made again, not read."""
    try:
        record = json.loads((folder / "data.json").read_bytes())
        if record["schema"] != SCHEMA:
            raise ValueError("it is of another version")
        task, n_bits = task_named(record["task"]), int(record["n_bits"])
        seeds, names = [int(seed) for seed in record["seeds"]], list(record["sets"])
    except OSError as error:
        raise SpecError(
            f"{folder} holds no inputs ({error.strerror or error}); write them with `ithbit data`"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise SpecError(f"{folder}/data.json cannot be used: {error}; write it again") from error
    sets = _sets(n_bits, seeds, "exhaustive" in names)
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
