"""One Slurm for all tests of this folder, and for each a sweep with a store of its own."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.slurm_cluster import PROGRAMS, Cluster, until
from tests.support.slurm_sweep import Expected, Sweep


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        pytest.skip(f"needs Slurm (slurm-wlm and munge): no {', '.join(missing)}")
    if os.getuid():
        pytest.skip("needs root, to start Slurm's daemons")
    folder = Path(tempfile.mkdtemp(prefix="ithbit-slurm-"))
    folder.chmod(0o755)  # munged refuses a socket in a folder that others cannot enter
    cluster = Cluster(folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Expected:
    """Runs of a few seconds: long enough to be hit by a fault after their first checkpoint."""
    return Expected(tmp_path_factory.mktemp("expected"), examples=1024, epochs=300)


@pytest.fixture
def sweep(cluster: Cluster, expected: Expected, tmp_path: Path) -> Iterator[Sweep]:
    """A sweep with a store of its own; leaves an idle cluster behind."""
    sweep = Sweep(cluster, expected.sheet, tmp_path / "runs")
    yield sweep
    sweep.stop()
    cluster.call("scancel", "-u", "root", check=False)
    cluster.revive()
    until(lambda: not cluster.queue(), 30)
    until(cluster.ready, 30)
