"""`ithbit data` and `ithbit score` from end to end."""

import json
from pathlib import Path

import numpy as np


def test_there_and_back(ithbit, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    status, out, _ = ithbit("data", "rhi", "-n", 4, "-o", folder, "--seeds", "0-1", "--exhaustive")
    assert (status, len(out.splitlines())) == (0, 8)
    answers = {}
    for name in ("held_out", "adversarial", "exhaustive"):
        arrays = np.load(folder / f"{name}.npz")
        answers[name] = arrays["bits"][np.arange(len(arrays["index"])), arrays["index"] - 1]
    answers["exhaustive"][0] ^= 1
    np.savez(tmp_path / "answers.npz", **answers)
    status, out, err = ithbit("score", tmp_path / "answers.npz", "--data", folder)
    assert (status, err) == (0, "")
    assert "2 of 2 held-out sets" in out  # one model may have answered both
    assert "2/2" not in out
    assert "all inputs: 1 of 64 wrong" in out
    data = json.loads(ithbit("score", tmp_path / "answers.npz", "--data", folder, "--json")[1])
    assert (data["solved"], data["n_wrong"]) == (2, 1)


def test_a_bad_file_is_one_sentence(ithbit, tmp_path: Path) -> None:
    status, out, err = ithbit("score", tmp_path / "x.npz", "--data", tmp_path)
    assert (status, out) == (2, "")
    assert "holds no inputs" in err
    assert len(err.splitlines()) == 1
