"""Which runs are proved: the script's rows."""

import runpy
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tests.support.paths import ROOT

import ithbit

SCRIPT = ROOT / "experiments" / "proofs.py"


def test_weights_that_cannot_be_bounded_are_a_row(tmp_path: Path) -> None:
    """Else they were missing from "proved of so many"; blocks without bounds are no rows."""
    row_of = runpy.run_path(str(SCRIPT))["row_of"]
    found = []
    for layers in (1, 3):
        store = tmp_path / str(layers)
        ithbit.construct("rhi", "softmax-full", n=4, model="trained", layers=layers, out=store)
        (folder,) = store.iterdir()
        path = folder / "weights.safetensors"
        weights = load_file(path)
        save_file(weights | {"embed": torch.full_like(weights["embed"], torch.inf)}, path)
        found.append(row_of((folder, 1.0, tmp_path)))
    assert (found[0]["proof"], found[1]) == ("no bounds", None)
