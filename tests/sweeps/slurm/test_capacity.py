"""A search for a capacity whose rounds run on a cluster."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slurm

PROGRAM = """
import json, sys, ithbit
tiny = ithbit.Protocol(batch_size=32, epoch_examples=64, held_out_examples=32, max_epochs=1)
found = ithbit.capacity("rhi", "gru", width=2, lr=0.01, start=2, most_n=2, protocol=tiny,
                        store=sys.argv[1], on="slurm", device="cpu")
print(json.dumps(found.to_json()["rows"]))
"""


def test_a_search_ends_on_a_cluster(cluster, tmp_path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "runs")]
    done = subprocess.run(
        command, env=cluster.environment, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)
    assert (row["final"], row["tried"]) == (True, "2- 1-")
    assert len(list((tmp_path / "runs").glob("rhi_n*"))) == 4
