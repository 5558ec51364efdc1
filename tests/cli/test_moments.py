"""Bad moments: a disk that is full, a store that can only be read, runs that failed."""

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ithbit import Protocol, train

Ithbit = Callable[..., tuple[int, str, str]]
TINY = Protocol(batch_size=32, epoch_examples=64, held_out_examples=32, max_epochs=2)
SWEEP = """
task = "rhi"
family = "gru"
layers = 1
n = 2
seeds = "0-1"
[protocol]
batch_size = 32
epoch_examples = 64
held_out_examples = 32
max_epochs = 2
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system."""
    place = tmp_path / "disk"
    place.mkdir()
    try:
        mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(place)]
        done = subprocess.run(mount, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("there is no mount here")
    if done.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.parametrize(
    "command",
    [
        ("export", "-o", "disk/tables"),
        ("data", "rhi", "--n", 8, "-o", "disk/data"),
        ("plot", "accuracy", "-o", "disk/accuracy.pdf"),
        ("certify", "rhi", "softmax-full", "--n", 256, "-o", "disk/certificate.json"),
        ("merge", "runs", "--store", "disk/store"),
    ],
    ids=lambda command: command[0],
)
@pytest.mark.parametrize("free", [0, 4096], ids=lambda free: f"{free}-bytes-free")
def test_a_full_disk_is_one_sentence(command, free, ithbit: Ithbit, disk: Path) -> None:
    """And no half file is left."""
    train("rhi", "gru", n=2, seeds=[0], protocol=TINY, workers=1, device="cpu")
    filler = disk / "filler"
    filler.write_bytes(bytes(256 * 1024 - free))
    status, out, err = ithbit(*command)
    assert (status, out) == (2, "")
    merge = command[0] == "merge"  # has the names of files at the end of the reason
    assert err.startswith(f"ithbit: cannot write {'to ' * merge}{command[-1]}")
    assert f"No space left on device{':' if merge else '; name another file'}" in err
    assert err.count("No space left") == 1
    assert [path for path in disk.rglob("*") if path.is_file()] == [filler]


def test_a_store_that_can_only_be_read(ithbit: Ithbit, disk: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(SWEEP)
    sweep = ("sweep", "mine.toml", "--store", "disk/runs", "--device", "cpu")
    assert ithbit(*sweep, "--workers", 1)[0] == 0
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    status, out, _ = ithbit(*sweep)
    assert status == 0
    assert "Run folders: disk/runs/" in out
    status, _, err = ithbit(*sweep, "--seeds", "0-2")  # one of them is missing
    assert (status, "Read-only file system" in err) == (2, True)
    verify = ("verify", "--all", "--store", "disk/runs", "--device", "cpu")
    status, out, err = ithbit(*verify)
    assert status == 0
    assert out.count("_gru_L1d16h2_polynomial_s") == 2
    assert "all: 2 runs: 2 " in out
    assert "verdicts shown but not saved: 2: cannot write to disk/runs" in err
    assert len(json.loads(ithbit(*verify, "--json")[1])["runs"]) == 2


def test_status_says_why_runs_failed(ithbit: Ithbit, tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text(SWEEP + "learning_rate = 1e38\n")
    assert ithbit("sweep", "bad.toml", "--device", "cpu", "--workers", 1)[0] == 1
    for more in ((), ("bad.toml",)):
        status, out, _ = ithbit("status", *more)
        assert (status, out.splitlines()[0]) == (0, "2 failed (2 runs)")
        assert out.count(": the loss is not finite in epoch 1: nan\n") == 2
    found = json.loads(ithbit("status", "--json")[1])
    assert set(found["reasons"].values()) == {"the loss is not finite in epoch 1: nan"}
    assert found["reasons"].keys() == found["runs"].keys()
