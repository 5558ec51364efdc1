"""What a user can get wrong on a cluster: a sentence, status 2, nothing left in the queue."""

import shutil
import subprocess

import pytest

pytestmark = pytest.mark.slurm


def refused(cluster, sweep, *options: str) -> str:
    process = sweep.ithbit("sweep", "--on", "slurm", *options)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert not cluster.queue()
    return errors.splitlines()[-1]


def test_wrong_partition(cluster, sweep):
    said = refused(cluster, sweep, "--slurm", "partition=none-such")
    assert "Slurm refused" in said
    assert "invalid partition" in said.lower()


@pytest.mark.parametrize(
    ("option", "message"),
    [("no-such-option=1", "unrecognized option"), ("time=soon", "Invalid --time specification")],
)
def test_refused_option(cluster, sweep, option, message):
    assert message in refused(cluster, sweep, "--slurm", option)


def test_no_gpu_on_the_node(cluster, sweep):
    """Slurm grants the share a GPU, and the share finds none that torch knows."""
    said = refused(cluster, sweep, "--device", "cuda")
    assert "device 'cuda' was asked for, but torch sees no CUDA GPU" in said
    assert "nothing was resubmitted" in said


def test_store_that_the_nodes_cannot_see(cluster, sweep):
    if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        pytest.skip("needs mount namespaces, for a node with a file system of its own")
    cluster.start_blind_node()
    sweep.store = cluster.blind_folder / "runs"
    said = refused(cluster, sweep, "--slurm", "partition=blind")
    assert "ended without a trace" in said
    assert "give a --store that every node sees" in said
    assert len(sweep.submitted()) == 1
    shutil.rmtree(sweep.store)


def test_no_controller(cluster, sweep, tmp_path):
    conf = tmp_path / "slurm.conf"
    text = (cluster.folder / "slurm.conf").read_text()
    port = next(line for line in text.splitlines() if line.startswith("SlurmctldPort="))
    conf.write_text(text.replace(port, "SlurmctldPort=1") + "MessageTimeout=2\n")
    shutil.copy(cluster.folder / "gres.conf", tmp_path)
    here = cluster.environment
    cluster.environment = here | {"SLURM_CONF": str(conf)}
    try:
        process = sweep.ithbit("sweep", "--on", "slurm")
        _, errors = process.communicate(timeout=100)
    finally:
        cluster.environment = here
    assert process.returncode == 2
    assert "Slurm refused: " in errors
    assert "Unable to contact slurm controller" in errors
    assert not sweep.submitted()
