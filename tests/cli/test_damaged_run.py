"""`ithbit verify --all` with one damaged run: a sentence that names it, exit status 1."""

from pathlib import Path

import pytest
from safetensors.torch import save_file
from tests.support.synthetic_store import Plan, write_run

from ithbit.models import classifier
from ithbit.spec import ModelSpec, RunSpec

RUNS = [RunSpec(ModelSpec("lhi", "gru", 2, d_model=4), seed) for seed in range(3)]


@pytest.mark.parametrize("file", ["spec.json", "result.json", "weights.safetensors"])
@pytest.mark.parametrize("content", [b"", b"\xff" * 99, b"[1, 2]", b"{}", None])
def test_the_others_are_verified(ithbit, tmp_path: Path, file: str, content: bytes | None) -> None:
    for run in RUNS:
        folder = write_run(tmp_path / "runs", Plan(run, False, 0.75, 5))
        params = classifier.init(run.model, run.seed)
        save_file(params, folder / "weights.safetensors")
    damaged = tmp_path / "runs" / RUNS[1].folder / file
    damaged.unlink()
    if content is None:
        damaged.mkdir()
    else:
        damaged.write_bytes(content)
    status, out, err = ithbit("verify", "--all", "--device", "cpu")
    assert status == 1
    assert err.startswith("ithbit: set aside: ")
    assert RUNS[1].folder in err
    assert len(err.splitlines()) == 1
    for run in (RUNS[0], RUNS[2]):
        assert f"{run.folder}: refuted" in out
