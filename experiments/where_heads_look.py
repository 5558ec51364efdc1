"""Does training find the construction? Where trained attention looks, by seed.

For every attention run of some stores that is solved and not refuted, and for the explicit weights
of the same entries, on random inputs in float64:

- how much of its attention the answering token gives to the requested bit in the last layer, and to
  the index in the first of two; the head that gives most counts;
- how much attention the requested bit gives to the index in the first of two layers;
- the share of right answers when the feed-forward part of one layer is left out.

The explicit weights look at the index in layer 1 and at the bit in layer 2. All of this is
observed; no explanation is claimed.

    python experiments/where_heads_look.py results/weights/uniform.zip results/weights/mixed.zip \\
        --csv heads.csv --figure heads.png
"""

import argparse
import csv
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

import ithbit
from ithbit.families import FAMILIES
from ithbit.store.packed import opened
from ithbit.store.reading import read_verification, run_folders
from ithbit.tasks.margins import margin_of
from ithbit.theory.constructions import TRAINED, construct_trained

STANDS = ("not refuted", "bounded (unchecked)", "right on all inputs", "proved on all inputs")
SHARES = {
    "end_to_bit": "answering token → asked bit,\nlast layer",
    "end_to_index": "answering token → index,\nlayer 1 of 2",
    "bit_to_index": "asked bit → index,\nlayer 1 of 2",
    "no_ff_first": "right answers without the\nfirst feed-forward part",
    "no_ff_last": "right answers without the\nlast feed-forward part",
}
COLOURS = {"explicit": "black", "uniform": "tab:orange", "mixed": "tab:blue"}


def feed_forwards(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The last map of each layer's feed-forward part, by layer."""
    ends = (".output.dense", ".down")
    return [
        part
        for name, part in model.named_modules()
        if name.endswith(ends) and ".attention." not in name
    ]


@contextmanager
def left_out(part: torch.nn.Module) -> Iterator[None]:
    handle = part.register_forward_hook(lambda *args: torch.zeros_like(args[2]))
    try:
        yield
    finally:
        handle.remove()


def measure(model: torch.nn.Module, task: str, n: int, inputs: int, seed: int = 0) -> dict:
    """The five numbers of one model; None for those that one-layer models do not have."""
    rng = np.random.default_rng(seed)
    drawn = rng.integers(0, 2, (inputs, n)), rng.integers(1, n + 1, inputs)
    bits, asked = (torch.tensor(each) for each in drawn)
    maps = model.attention(bits, asked)  # batch layer head query key
    tokens, layers, rows = maps.shape[-1], maps.shape[1], torch.arange(inputs)
    first, index = (0, tokens - 1) if task == "rhi" else (1, 0)
    bit = first + asked - 1

    def largest(layer: int, query, key) -> float:
        return maps[rows, layer, :, query, key].mean(0).max().item()

    def right() -> float:
        return (margin_of(model(bits, asked), bits[rows, asked - 1]) > 0).double().mean().item()

    assert right() > 0.99
    without = []
    parts = feed_forwards(model)
    assert len(parts) == layers
    for part in parts:
        with left_out(part):
            without.append(right())
    return {
        "end_to_bit": largest(-1, tokens - 1, bit),
        "end_to_index": largest(0, tokens - 1, index) if layers > 1 else None,
        "bit_to_index": largest(0, bit, index) if layers > 1 else None,
        "no_ff_first": without[0] if layers > 1 else None,
        "no_ff_last": without[-1],
    }


def trained(store: Path, inputs: int) -> Iterator[dict]:
    """Every solved attention run of the store that stands."""
    store = opened(store)
    for _, folder in run_folders(store):
        record = read_verification(str(store / folder))
        if record is None:
            print(f"left out, without a verdict: {folder}", file=sys.stderr)
        if record is None or record.found.verdict not in STANDS:
            continue
        model = ithbit.load(store / folder, dtype="float64")
        spec = model.run.model
        if FAMILIES[spec.family].attention:
            head = {"weights": model.run.protocol.examples, "task": spec.task}
            head |= {"family": spec.family, "n": spec.n_bits, "seed": model.run.seed}
            yield head | measure(model, spec.task, spec.n_bits, inputs)


def explicit(found: list[dict], inputs: int) -> Iterator[dict]:
    """The explicit weights for the configurations found in the stores."""
    asked = {(row["task"], row["family"], row["n"]) for row in found}
    for entry in TRAINED:
        for n in sorted({n for *_, n in asked}):
            if (entry.task, entry.family, n) in asked:
                model = ithbit.load(construct_trained(entry.task, entry.family, n), dtype="float64")
                head = {"weights": "explicit", "task": entry.task, "family": entry.family}
                yield head | {"n": n, "seed": 0} | measure(model, entry.task, n, inputs)


def read(path: Path) -> list[dict]:
    """The rows of a table that `--csv` wrote."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    shares = [
        {share: float(row[share]) if row[share] else None for share in SHARES} for row in rows
    ]
    return [row | {"n": int(row["n"])} | found for row, found in zip(rows, shares, strict=True)]


def draw(rows: list[dict], path: Path) -> None:
    """One row of panels per entry: a dot is a run, a line the explicit weights."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    entries = list(dict.fromkeys((row["task"], row["family"]) for row in rows))
    lengths = sorted({row["n"] for row in rows})
    figure, axes = plt.subplots(
        len(entries),
        len(SHARES),
        figsize=(2.3 * len(SHARES) + 1, 1.6 * len(entries) + 0.8),
        squeeze=False,
        sharey=True,
        layout="constrained",
    )
    for line, (task, family) in zip(axes, entries, strict=True):
        line[0].set_ylabel(f"{task.upper()}\n{FAMILIES[family].label}", fontsize=9)
        for axis, share in zip(line, SHARES, strict=True):
            seen = [row for row in rows if (row["task"], row["family"]) == (task, family)]
            if seen[0][share] is None:
                axis.set_axis_off()
                continue
            for kind, shift in (("uniform", -0.15), ("mixed", 0.15)):
                of = [row for row in seen if row["weights"] == kind]
                at = [lengths.index(row["n"]) + shift for row in of]
                values = [row[share] for row in of]
                label = f"a run trained on {kind} examples"
                axis.scatter(at, values, s=12, alpha=0.7, color=COLOURS[kind], label=label)
            of = [row for row in seen if row["weights"] == "explicit"]
            for row in of:
                place = lengths.index(row["n"])
                label = "explicit weights" if row is of[0] else None
                axis.hlines(row[share], place - 0.35, place + 0.35, color="black", label=label)
            axis.set_xticks(range(len(lengths)), [f"n = {n}" for n in lengths], fontsize=7)
            axis.set_ylim(-0.05, 1.05)
            axis.set_xlim(-0.5, len(lengths) - 0.5)
            axis.tick_params(labelsize=7)
    for axis, title in zip(axes[0], SHARES.values(), strict=True):
        axis.set_title(title, fontsize=9)
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("stores", type=Path, nargs="*")
    parser.add_argument("--read", type=Path, help="draw the rows of an earlier --csv instead")
    parser.add_argument("--inputs", type=int, default=256)
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--figure", type=Path)
    options = parser.parse_args()
    torch.set_grad_enabled(False)
    if options.read:
        found = read(options.read)
    else:
        found = [row for store in options.stores for row in trained(store, options.inputs)]
        found = [*explicit(found, options.inputs), *found]
    for row in found:
        shown = [f"{row[share]:.3f}" if row[share] is not None else "–" for share in SHARES]
        print(*(row[key] for key in ("weights", "task", "family", "n", "seed")), *shown)
    if options.csv:
        with options.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(found[0]))
            writer.writeheader()
            writer.writerows(found)
    if options.figure:
        draw(found, options.figure)
