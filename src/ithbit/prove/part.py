"""An unfinished search as a file: its leaves, from which another search continues.

Nothing in it is trusted: when a proof is complete, every leaf is bounded again.
"""

import json
from dataclasses import fields
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from ithbit.prove.search import Found, Nodes
from ithbit.theory.layers import FloatArray

FORMAT = "ithbit search 1"


def part_of(found: Found, functionals: FloatArray, weights_sha256: str) -> bytes:
    """The content of the file, for a search on the weights with that digest."""
    arrays = {name: np.ascontiguousarray(each) for name, each in vars(found.leaves).items()}
    numbers = {name: value for name, value in vars(found).items() if name != "leaves"}
    about = {"format": FORMAT, "weights_sha256": weights_sha256, "found": json.dumps(numbers)}
    return save(arrays | {"functionals": np.ascontiguousarray(functionals)}, about)


def read_part(path: Path, weights_sha256: str) -> tuple[Found, FloatArray] | None:
    """The search in a file and its functionals; None if it holds none for these weights."""
    try:
        with safe_open(path, "numpy") as file:
            about = file.metadata() or {}
            if (about.get("format"), about.get("weights_sha256")) != (FORMAT, weights_sha256):
                return None
            leaves = Nodes(*(file.get_tensor(field.name) for field in fields(Nodes)))
            return Found(leaves, **json.loads(about["found"])), file.get_tensor("functionals")
    except (OSError, SafetensorError, KeyError, TypeError, ValueError):
        return None
