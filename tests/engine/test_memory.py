"""The estimate of memory: a lower bound of what a run takes, which lets all pass that can fit."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from tests.support.one_stack import train

from ithbit.engine import memory
from ithbit.engine.device import choose_device
from ithbit.engine.evaluate import batch_that_fits
from ithbit.engine.memory import check_memory, training_bytes
from ithbit.engine.options import TrainingOptions
from ithbit.engine.training_context import TrainingContext
from ithbit.errors import TooLargeError
from ithbit.families import FAMILIES, POSITIONS
from ithbit.models.classifier import init, n_parameters
from ithbit.spec import ModelSpec, Protocol, RunSpec
from ithbit.sweeps.runner import run_all

TINY = Protocol(batch_size=32, epoch_examples=64, held_out_examples=32, max_epochs=1)
GPU = 80 * 10**9


def run_of(family, n_bits, n_layers=1, protocol=TINY, **more):
    return RunSpec(ModelSpec("rhi", family, n_bits, n_layers, **more), 0, protocol)


@pytest.mark.parametrize("family", FAMILIES)
def test_parameters_are_counted_as_they_are_drawn(family):
    for positions in POSITIONS:
        if not FAMILIES[family].takes(positions):
            continue
        for sizes in ({}, {"d_model": 8, "d_ff": 12, "d_state": 4}, {"d_model": 1024, "d_ff": 64}):
            spec = ModelSpec("lhi", family, 7, 3, positions=positions, **sizes)
            drawn = sum(value.numel() for value in init(spec, seed=0).values())
            assert n_parameters(spec) == drawn


def test_parameters_of_models_that_fit_nowhere_are_counted():
    spec = ModelSpec("rhi", "gru", 10**8, positions="learned")
    assert n_parameters(spec) - n_parameters(replace(spec, n_bits=1)) == 2 * 16 * (10**8 - 1)
    assert n_parameters(ModelSpec("rhi", "softmax-full", 8, 10**8, d_model=10**8)) > 10**24


@pytest.mark.parametrize("family", FAMILIES)
def test_the_estimate_grows_with_every_size(family):
    least = training_bytes(run_of(family, 64, 2))
    assert least < training_bytes(run_of(family, 640, 2))
    assert least < training_bytes(run_of(family, 64, 3))
    assert least < training_bytes(run_of(family, 64, 2, d_model=64))
    assert least < training_bytes(run_of(family, 64, 2, replace(TINY, batch_size=64)))
    assert least < training_bytes(run_of(family, 64, 2, replace(TINY, held_out_examples=10**6)))


@pytest.mark.parametrize("family", FAMILIES)
def test_long_strings_can_be_trained_on_a_gpu(family):
    """n = 4096 by the paper's protocol, also where attention makes matrices of tokens by tokens."""
    assert training_bytes(run_of(family, 4096, 1, Protocol())) < GPU / 10
    assert training_bytes(run_of(family, 4096, 2, Protocol())) < GPU
    assert batch_that_fits(run_of(family, 4096, 2).model, 8192, 2000) >= 1


def test_short_strings_are_evaluated_in_the_batches_that_were_asked_for():
    for family in FAMILIES:
        spec = run_of(family, 512, 2).model
        assert batch_that_fits(spec, 512, 1000) == 1000
    assert batch_that_fits(run_of("softmax-full", 8192, 2).model, 8192, 1000) == 7
    assert batch_that_fits(run_of("gru", 10**9).model, 10**9, 1000) == 1


_MEASURE = """
import json, sys, tempfile
from pathlib import Path
from ithbit.engine.device import choose_device
from ithbit.engine.training_context import TrainingContext
from ithbit.engine.loop import train_cell
from ithbit.engine.memory import training_bytes
from ithbit.spec import run_from_json
run = run_from_json(json.loads(sys.argv[1]))
def peak():  # of this program, not of the one that started it
    return next(int(line.split()[1]) for line in open("/proc/self/status") if "VmHWM" in line)

before = peak()
with tempfile.TemporaryDirectory() as store:
    print(train_cell([run], TrainingContext(Path(store), choose_device("cpu"))), file=sys.stderr)
print(json.dumps([training_bytes(run), 1024 * (peak() - before)]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the memory as Linux counts it")
@pytest.mark.parametrize(
    ("family", "n_bits", "n_layers", "batch_size", "held_out"),
    [
        pytest.param("softmax-full", 128, 2, 128, 32, marks=pytest.mark.slow),
        ("gru", 64, 1, 256, 16000),
    ],
)
def test_the_estimate_is_below_what_a_run_takes(family, n_bits, n_layers, batch_size, held_out):
    protocol = replace(TINY, batch_size=batch_size, epoch_examples=batch_size)
    run = run_of(family, n_bits, n_layers, replace(protocol, held_out_examples=held_out))
    command = [sys.executable, "-c", _MEASURE, json.dumps(run.to_json())]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    estimate, taken = json.loads(done.stdout)
    assert 30e6 < estimate < taken


def test_what_cannot_fit_is_refused_before_the_store_is_made(tmp_path):
    large, small = run_of("gru", 10**8), run_of("gru", 4)
    store = tmp_path / "runs"
    sentence = (
        r"training rhi_n100000000_gru_L1d16h2_polynomial_s0 needs at least \d+ (GB|TB) of "
        r"memory, but this machine's free memory is \d.* [GT]B; take a smaller n, width or batch"
    )
    for call in (
        lambda: run_all([small, large], store, TrainingOptions("cpu")),
        lambda: train([large], store),
    ):
        with pytest.raises(TooLargeError, match=sentence):
            call()
    assert not store.exists()


def test_what_the_store_has_is_read_whatever_it_took(tmp_path, monkeypatch):
    run, other = run_of("gru", 4), replace(run_of("gru", 4), seed=1)
    (done,) = run_all([run], tmp_path, TrainingOptions("cpu", workers=1))
    monkeypatch.setattr(memory, "host_bytes", lambda: 1000)
    assert run_all([run], tmp_path, TrainingOptions("cpu", workers=1)) == [done]
    with pytest.raises(TooLargeError, match="s1 needs at least"):
        run_all([run, other], tmp_path, TrainingOptions("cpu", workers=1))


def test_a_failure_is_not_forgotten_for_a_run_that_cannot_fit(tmp_path, monkeypatch):
    run = run_of("gru", 4, protocol=replace(TINY, learning_rate=1e38))
    (failed,) = run_all([run], tmp_path, TrainingOptions("cpu", workers=1))
    assert "not finite" in failed.error
    monkeypatch.setattr(memory, "host_bytes", lambda: 1000)
    with pytest.raises(TooLargeError):
        run_all([run], tmp_path, TrainingOptions("cpu", workers=1, retry_failed=True))
    assert run_all([run], tmp_path, TrainingOptions("cpu", workers=1)) == [failed]


def test_the_most_that_a_run_needs_is_said(tmp_path):
    runs = [run_of("gru", 4), run_of("softmax-full", 64, 2)]
    most = check_memory(runs, TrainingContext(tmp_path, choose_device("cpu")))
    assert most == training_bytes(runs[1])


@pytest.mark.parametrize(
    ("limits", "free"),
    [
        ({}, 8 << 20),
        ({"": "max", "slurm": "max", "slurm/job_7/step_0": "max"}, 8 << 20),
        ({"": str(3 << 20)}, 3 << 20),  # a container sees its own group as the first
        ({"slurm/job_7": str(2 << 20), "slurm/job_7/step_0": "max"}, 2 << 20),
        ({"slurm": str(5 << 20), "slurm/job_7/step_0": str(4 << 20)}, 4 << 20),
        ({"slurm/job_8": str(1 << 20)}, 8 << 20),  # another job's
    ],
)
def test_the_limit_of_every_group_around_a_process_counts(limits, free, tmp_path):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9000 kB\nMemAvailable: 8192 kB\n")
    (tmp_path / "proc/self/cgroup").write_text("0::/slurm/job_7/step_0\n")
    (tmp_path / "sys/fs/cgroup/slurm/job_7/step_0").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/slurm/job_8").mkdir()
    for group, limit in limits.items():
        (tmp_path / "sys/fs/cgroup" / group / "memory.max").write_text(f"{limit}\n")
    assert memory.host_bytes(tmp_path) == free


def test_groups_of_version_1_have_limits_too(tmp_path):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("5:cpu:/\n4:memory:/slurm/job_7\n0::/\n")
    (tmp_path / "sys/fs/cgroup/memory/slurm/job_7").mkdir(parents=True)
    for group, limit in (("", 9223372036854771712), ("slurm", 1000), ("slurm/job_7", 2000)):
        (tmp_path / f"sys/fs/cgroup/memory/{group}/memory.limit_in_bytes").write_text(str(limit))
    assert memory.host_bytes(tmp_path) == 1000


@pytest.mark.gpu
@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize("family", FAMILIES)
def test_a_gpu_trains_long_strings_within_what_is_estimated(family, tmp_path):
    """A table of what was estimated and taken at n = 4096; run with -s to see it."""
    for n_layers in (1, 2):
        protocol = Protocol(batch_size=64, epoch_examples=64, held_out_examples=128, max_epochs=1)
        run = run_of(family, 4096, n_layers, protocol)
        torch.cuda.reset_peak_memory_stats()
        (result,) = train([run], tmp_path, choose_device("cuda"))
        taken = torch.cuda.max_memory_allocated()
        print(f"{family:15} L={n_layers} {training_bytes(run):>14,} {taken:>14,} bytes")
        assert result.epochs == 1
        assert training_bytes(run) <= taken
