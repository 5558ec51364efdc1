"""The capacity atlas: the largest n that each architecture learns, many cells side by side.

    python experiments/capacity.py --device cuda --seconds 500 --out results/capacity
    python experiments/capacity.py --layer fla:GLA layers.py:Mine --seconds 500 --measure
    python experiments/capacity.py --cells wide --seconds 500 --out results/capacity
    python experiments/capacity.py --no-train --measure --restore results/capacity/records.tar.xz
    python experiments/capacity.py --figure docs/images/capacity.png

Run the same command again to continue from the store. `--cells` names parts of the atlas (default:
all, in this order): `core` is GRU, Mamba2 and causal linear attention on RHI, one and two layers,
widths 4 to 32; `contrast` is softmax and full linear attention; `lhi` is one layer on LHI, where
theory says that it must break; `deep` is three layers; `wide` is width 64. After every round the
rows are written to `atlas.csv`, the records of all runs to `records.tar.xz`, and the weights at the
lower ends of the brackets to `weights.tar.gz`; `--restore FILE ...` unpacks them into a store
elsewhere. The rows follow from the records; the weights are for runs that are not verified yet.
`--measure` also measures the states, which takes minutes on a CPU; without it they are counted.
`--figure` draws the rows.

Needs torch, but not the dependencies of the command line or, except for the figure, of the report.
"""

import argparse
import sys
import tarfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Literal

from ithbit.capacity_search.result import Capacities, read_rows, row
from ithbit.capacity_search.search import SearchSettings, next_length
from ithbit.capacity_search.search_rounds import (
    PROTOCOL,
    Search,
    SearchState,
    round_minutes,
    rounds,
)
from ithbit.engine.device import Device, choose_device
from ithbit.engine.options import TrainingOptions
from ithbit.engine.steppers.choice import refusal
from ithbit.engine.training_context import Event
from ithbit.models.layer_source import family_of
from ithbit.spec import ModelSpec, RunSpec
from ithbit.store.folder import RunFolder
from ithbit.store.records import Failure
from ithbit.store.writing import in_memory, write_output, write_text
from ithbit.sweeps.runner import run_all

RECORDS = ("spec.json", "result.json", "failure.json", "verification.json")


def cells(
    task: str, families: Iterable[str], layers: Iterable[int], widths: Iterable[int]
) -> list[ModelSpec]:
    return [
        ModelSpec(task, family, 1, depth, width)  # type: ignore[arg-type]
        for width in widths
        for depth in layers
        for family in families
    ]


RECURRENT = ("gru", "mamba2", "linear-causal")
PARTS: dict[str, tuple[list[ModelSpec], int]] = {  # and the longest n to try
    "core": (cells("rhi", RECURRENT, (1, 2), (4, 8, 16, 32)), 512),
    "contrast": (
        cells("rhi", ("softmax-full",), (1,), (4, 8, 16, 32))
        + cells("rhi", ("linear-full",), (2,), (4, 8, 16, 32)),
        128,
    ),
    "lhi": (cells("lhi", ("softmax-full", "linear-full", "mamba2"), (1,), (4, 8, 16, 32)), 128),
    "deep": (cells("rhi", RECURRENT, (3,), (4, 8, 16, 32)), 512),
    "wide": (cells("rhi", RECURRENT, (1, 2), (64,)), 512),
}


def pack_records(store: Path, path: Path) -> None:
    """Pack the records of all runs that have ended."""
    names = [
        f"{folder.name}/{name}"
        for folder in (sorted(store.iterdir()) if store.is_dir() else ())
        if any((folder / end).is_file() for end in ("result.json", "failure.json"))
        for name in RECORDS
        if (folder / name).is_file()
    ]
    _pack(store, names, path, "w:xz")


def pack_weights(
    searches: Mapping[ModelSpec, Search], standings: Sequence[SearchState], path: Path
) -> None:
    """Pack the weights of successes at the lower end of each bracket; if it is not final, also at
    shorter solved lengths and at the one being tried, which may still become the lower end."""
    store, kept = next(iter(searches.values())).store, set()
    for standing in standings:
        solved = sorted(each.n for each in standing.tried if each.solved)
        lengths = solved[-1:] if standing.done else [*solved, standing.trying]
        for n in filter(None, lengths):
            for run in searches[standing.model].runs(standing.model, n).values():
                done = RunFolder(store, run).result()
                name = f"{run.folder}/weights.safetensors"
                if done and done.solved and not done.structured_wrong and (store / name).is_file():
                    kept.add(name)
    _pack(store, sorted(kept), path, "w:gz")


def _pack(store: Path, names: Sequence[str], path: Path, mode: Literal["w:xz", "w:gz"]) -> None:
    def fill(whole: BytesIO) -> None:
        with tarfile.open(fileobj=whole, mode=mode) as tar:
            for name in names:
                tar.add(store / name, name)

    write_output(path, in_memory(fill))


def ahead(
    searches: Mapping[ModelSpec, Search], standings: Sequence[SearchState], device: Device
) -> AbstractContextManager[object]:
    """Compile in the background what the next round may need, whichever way this one ends."""
    if not device.is_cuda:
        return nullcontext()
    models = []
    for standing in standings:
        known, ask = {each.n: each.solved for each in standing.tried}, searches[standing.model].ask
        for solved in (True, False) if standing.trying else ():
            n = next_length(known | {standing.trying: solved}, ask)
            models += [replace(standing.model, n_bits=n)] if n else []
    protocol = next(iter(searches.values())).protocol
    served = [model for model in models if refusal(model, protocol, device) is None]
    if not served:
        return nullcontext()
    from ithbit.kernels.compile_ahead import KernelPrecompiler

    return KernelPrecompiler(
        served, protocol.batch_size, device.torch, lambda text: None, protocol.examples
    )


def draw(rows: Path, path: Path) -> None:
    """The figure of docs/capacity.md, and the fitted exponents."""
    from ithbit.capacity_search.card import capacity_figure, fits
    from ithbit.reporting.figures import save

    found = read_rows(rows)
    print(save(capacity_figure(found), path))
    print(*(each.sentence() for each in fits(found)), sep="\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--store", type=Path, default=Path("runs/capacity"))
    parser.add_argument("--out", type=Path, default=Path("results/capacity"))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--cells", nargs="*", choices=PARTS, default=list(PARTS))
    parser.add_argument("--family", nargs="*", help="only these")
    parser.add_argument("--layer", nargs="*", default=[], help="users' layers at width 16 instead")
    parser.add_argument("--width", nargs="*", type=int, help="only these")
    parser.add_argument("--layers", nargs="*", type=int, help="only these")
    parser.add_argument("--most-n", type=int, help="instead of each part's own")
    parser.add_argument("--start", type=int, default=SearchSettings.start)
    parser.add_argument("--max-epochs", type=int, default=PROTOCOL.max_epochs)
    parser.add_argument("--epoch-examples", type=int, default=PROTOCOL.epoch_examples)
    parser.add_argument("--examples", default=PROTOCOL.examples)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--round-minutes", type=float)
    parser.add_argument("--measure", action="store_true", help="measure the states")
    parser.add_argument("--no-train", action="store_true")
    parser.add_argument("--restore", nargs="*", type=Path, default=[], help="earlier records")
    parser.add_argument("--figure", type=Path, help="only draw the rows in the folder")
    given = parser.parse_args()
    if given.figure:
        draw(given.out / "atlas.csv", given.figure)
        return
    began, device = time.monotonic(), choose_device(given.device)
    until = began + (0.0 if given.no_train else given.seconds)
    for records in given.restore:
        with tarfile.open(records) as tar:
            tar.extractall(given.store, filter="data")
    protocol = replace(
        PROTOCOL,
        max_epochs=given.max_epochs,
        epoch_examples=given.epoch_examples,
        examples=given.examples,
    )
    searches: dict[ModelSpec, Search] = {}
    own = [ModelSpec("rhi", family, 1, code=code) for family, code in map(family_of, given.layer)]
    parts = [(own, 512)] if own else [PARTS[name] for name in given.cells]
    for models, most_n in parts:
        ask = SearchSettings(start=given.start, most_n=given.most_n or most_n)
        search = Search(ask, given.store, protocol)
        for model in models:
            if (
                model.family in (given.family or [model.family])
                and model.d_model in (given.width or [model.d_model])
                and model.n_layers in (given.layers or [model.n_layers])
            ):
                searches.setdefault(model, search)

    def watch(event: Event) -> None:
        if isinstance(event.what, str | Failure):
            said = event.what.error if isinstance(event.what, Failure) else event.what
            print(f"  {event.run.name}: {said}", file=sys.stderr, flush=True)

    def train(runs: list[RunSpec]) -> None:
        minutes = round_minutes(device, until)
        if given.round_minutes and minutes is not None:
            minutes = min(minutes, given.round_minutes)
        with ahead(searches, standings, device):
            run_all(runs, given.store, TrainingOptions(given.device, minutes=minutes), watch)

    def keep(measured: bool) -> Capacities:
        """Write out the results after every round: the machine may be taken away."""
        rows = tuple(row(standing, measured) for standing in standings if standing.tried)
        found = Capacities(rows, "; ".join({each.sentence() for each in searches.values()}))
        write_text(given.out / "atlas.csv", found.csv())
        pack_records(given.store, given.out / "records.tar.xz")
        pack_weights(searches, standings, given.out / "weights.tar.gz")
        return found

    standings: list[SearchState] = []
    try:
        for number, standings in enumerate(rounds(searches, train, device, until)):
            left = [standing for standing in standings if not standing.done]
            seconds = time.monotonic() - began
            print(f"round {number}, {seconds:.0f} s: {len(left)} of {len(standings)} open")
            print(*(standing.sentence() for standing in left), sep="\n", flush=True)
            keep(measured=False)
    finally:
        print(keep(given.measure).csv())
        print(f"{time.monotonic() - began:.0f} s; {device.reason}")


if __name__ == "__main__":
    main()
