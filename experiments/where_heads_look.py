"""Does training find the construction? Where each head of trained attention models looks, by seed.

For every finished attention run of a store, on random inputs: how much of its attention the token
that answers, the bit asked for and the other bits give to the index token, to the bit asked for
and to themselves, per layer and head. The explicit weights (`--explicit N`) are measured beside
them: there the end looks at the index in layer 1 and at the bit in layer 2. Observed; no stories.

    python experiments/where_heads_look.py STORE [--inputs 512] [--explicit 16] [--json FILE]
    python experiments/where_heads_look.py STORE --figure heads.png
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch

import ithbit
from ithbit.families import FAMILIES
from ithbit.store.reading import run_folders
from ithbit.theory.constructions.trained import TRAINED, construct_trained

FROM, TO = ("answering token", "asked bit", "other bits"), ("index", "asked bit", "itself")


def look(model, task: str, n: int, inputs: int, seed: int = 0) -> np.ndarray:
    """Mean attention, `layer head from to`; NaN where there is no such pair of tokens."""
    rng = np.random.default_rng(seed)
    bits = torch.tensor(rng.integers(0, 2, (inputs, n)))
    asked = rng.integers(1, n + 1, inputs)
    maps = model.attention(bits, torch.tensor(asked)).double().numpy()  # batch layer head query key
    tokens = maps.shape[-1]
    first, index = (0, tokens - 1) if task == "rhi" else (1, 0)
    rows = np.arange(inputs)
    at = first + asked - 1
    out = np.full((*maps.shape[1:3], 3, 3), np.nan)
    others = [
        [t for t in range(first, first + n) if t != where] for where in at
    ]  # the bits not asked for

    def mass(query: np.ndarray, key: np.ndarray) -> np.ndarray:
        return maps[rows, :, :, query, key].mean(0)

    last = np.full(inputs, tokens - 1)
    for place, query in enumerate((last, at)):
        out[:, :, place, 0] = mass(query, np.full(inputs, index))
        out[:, :, place, 1] = mass(query, at)
        out[:, :, place, 2] = mass(query, query)
    if n > 1:
        for target, key in ((0, np.full(inputs, index)), (1, at)):
            seen = [maps[b][:, :, others[b], key[b]].mean(-1) for b in rows]
            out[:, :, 2, target] = np.mean(seen, 0)
        own = [maps[b][:, :, others[b], others[b]].mean(-1) for b in rows]
        out[:, :, 2, 2] = np.mean(own, 0)
    return out


def measured(store: Path, inputs: int) -> list[dict]:
    """Every attention run of the store."""
    found = []
    for _, folder in run_folders(store):
        model = ithbit.load(store / folder, dtype="float64")
        spec = model.run.model
        if FAMILIES[spec.family].attention:
            seen = look(model, spec.task, spec.n_bits, inputs)
            found.append({"name": model.run.name, "seed": model.run.seed, "look": seen.tolist()})
    return found


def explicit(n: int, inputs: int) -> list[dict]:
    """The explicit weights at this n."""
    found = []
    for entry in TRAINED:
        if FAMILIES[entry.family].attention:
            model = ithbit.load(construct_trained(entry.task, entry.family, n), dtype="float64")
            seen = look(model, entry.task, n, inputs)
            name = f"explicit {entry.task}_n{n}_{entry.family}_L{entry.depth}"
            found.append({"name": name, "seed": 0, "look": seen.tolist()})
    return found


def draw(found: list[dict], path: Path) -> None:
    """One row a run, one panel a layer and head: from (down) by to (across)."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    panels = max(len(each["look"]) * len(each["look"][0]) for each in found)
    size = (2.0 * panels + 2.6, 1.7 * len(found))
    figure, axes = plt.subplots(
        len(found), panels, figsize=size, squeeze=False, layout="constrained"
    )
    for row, each in zip(axes, found, strict=True):
        flat = [
            (a, b, head) for a, layer in enumerate(each["look"], 1) for b, head in enumerate(layer)
        ]
        for axis, (layer, head, seen) in zip(row, flat, strict=False):
            axis.imshow(np.array(seen), vmin=0, vmax=1, cmap="Blues")
            axis.set_title(f"layer {layer}, head {head + 1}", fontsize=7)
            axis.set_xticks(range(3), TO, fontsize=6)
            axis.set_yticks(range(3), FROM, fontsize=6)
        for axis in row[len(flat) :]:
            axis.set_axis_off()
        row[0].set_ylabel(each["name"], fontsize=6)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("store", type=Path, nargs="?")
    parser.add_argument("--inputs", type=int, default=512)
    parser.add_argument(
        "--explicit", type=int, metavar="N", help="the explicit weights at this n too"
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--figure", type=Path)
    options = parser.parse_args()
    runs = explicit(options.explicit, options.inputs) if options.explicit else []
    runs += measured(options.store, options.inputs) if options.store else []
    for each in runs:
        print(each["name"])
        for layer, heads in enumerate(each["look"], 1):
            for head, seen in enumerate(heads, 1):
                rows = ", ".join(
                    f"{name}: " + " ".join(f"{to} {x:.3f}" for to, x in zip(TO, row, strict=True))
                    for name, row in zip(FROM, seen, strict=True)
                )
                print(f"  layer {layer}, head {head}: {rows}")
    if options.json:
        options.json.write_text(json.dumps(runs))
    if options.figure and runs:
        draw(runs, options.figure)
