"""`ithbit train`, `params` and `sample` as a person or a script meets them."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.support.one_stack import train
from typer.testing import CliRunner

from ithbit.cli import app, main
from ithbit.errors import SpecError
from ithbit.spec import ModelSpec, Protocol, RunSpec
from ithbit.store.folder import RunFolder
from ithbit.store.records import Epoch, Failure, Result, from_json
from ithbit.sweeps.select import parse_seeds, sweep_runs

# Whole epochs of 50,000 examples: three bits, one layer and few steps make them short.
QUICK = ("train", "rhi", "gru", "--n", "3", "--batch-size", "1000", "--device", "cpu")


def quick_runs(seeds, max_epochs: int) -> list[RunSpec]:
    protocol = Protocol(batch_size=1000, max_epochs=max_epochs)
    return [RunSpec(ModelSpec("rhi", "gru", n_bits=3), seed, protocol) for seed in seeds]


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def refused(capsys, monkeypatch):
    """What the command line says on standard error, having exited with status 2."""

    def call(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["ithbit", *arguments])
        with pytest.raises(SystemExit) as stop:
            main()
        assert stop.value.code == 2
        said = capsys.readouterr()
        assert said.out == ""
        return said.err

    return call


def command(*arguments: str, **options) -> subprocess.Popen[str]:
    """The command line as a process, in a group of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "ithbit", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **options,
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["rhi", "lstm"], "unknown family 'lstm'; choose one of softmax-full, softmax-causal"),
        (["mhi", "gru"], "unknown task 'mhi'; choose one of rhi, lhi"),
        (
            ["rhi", "gru", "--positions", "rotary"],
            "rotary positions need a softmax family, got family 'gru'; use positions 'polynomial'",
        ),
        (["rhi", "gru", "--positions", "alibi"], "unknown positions 'alibi'; choose one of none"),
        (["rhi", "mamba2", "--heads", "3"], "heads must divide the width, got 3 heads at width 16"),
        (["rhi", "gru", "--heads", "0"], "heads must be at least 1, got 0"),
        (["rhi", "gru", "--width", "0"], "width must be at least 1, got 0"),
        (["rhi", "gru", "--n", "0"], "n must be at least 1, got 0"),
        (["rhi", "gru", "--n", "-4"], "n must be at least 1, got -4"),
        (["rhi", "gru", "--layers", "0"], "layers must be at least 1, got 0"),
        (["rhi", "gru", "--seeds", "-1"], "seeds are numbers from 0 and ranges such as 0-4"),
        (["rhi", "gru", "--seeds", "1,1"], "give every seed only once; repeated: 1"),
        (["rhi", "gru", "--seeds", "0-3,2"], "give every seed only once; repeated: 2"),
        (["rhi", "gru", "--seeds", ""], "seeds are numbers from 0 and ranges such as 0-4"),
        (["rhi", "gru", "--seeds", "a"], "seeds are numbers from 0 and ranges such as 0-4"),
        (["rhi", "gru", "--seeds", "²"], "seeds are numbers from 0 and ranges such as 0-4"),
        (["rhi", "gru", "--seeds", "0,5-3"], "a range of seeds goes from low to high"),
        (["rhi", "gru", "--seeds", "0-99999999999"], "holds at most 10000, got '0-99999999999'"),
        (["rhi", "gru", "--seeds", str(1 << 63)], "seeds must be 0 or more and below 2^63"),
        (["rhi", "gru", "--max-epochs", "0"], "max_epochs must be at least 1, got 0"),
        (["rhi", "gru", "--workers", "0"], "workers must be at least 1, got 0"),
        (["rhi", "gru", "--device", "tpu"], "unknown device 'tpu'; choose one of auto, cpu, cuda"),
    ],
)
def test_bad_input_gets_one_sentence(refused, tmp_path, arguments, sentence) -> None:
    said = refused("train", "--store", str(tmp_path / "store"), *arguments)
    last = said.splitlines()[-1]  # before it there may be the line that names the device
    assert last.startswith("ithbit: ")
    assert sentence in last
    assert "Traceback" not in said
    assert not (tmp_path / "store").exists()


def test_every_problem_is_named_at_once(refused) -> None:
    said = refused("train", "rhi", "linear-full", "--n", "0", "--layers", "0", "--heads", "5")
    assert "n must be" in said
    assert "layers must be" in said
    assert "heads must divide" in said


@pytest.mark.parametrize("arguments", [["--n", "x"], ["--seed", "1"], ["--layers"]])
def test_what_cannot_be_parsed(refused, arguments) -> None:
    assert "Error" in refused("train", "rhi", "gru", *arguments)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_not_there(refused, tmp_path) -> None:
    said = refused("train", "rhi", "gru", "--device", "cuda", "--store", str(tmp_path / "store"))
    assert "device 'cuda' was asked for, but torch sees no CUDA GPU; use cpu or auto" in said
    assert not (tmp_path / "store").exists()


def test_a_store_that_cannot_be_one(refused, tmp_path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    said = refused(*QUICK, "--store", str(file))
    assert f"the store {file} is a file; give a folder with --store" in said
    assert file.read_text() == "mine"
    if sys.platform == "linux":  # where even root may not write
        said = refused(*QUICK, "--store", "/proc/ithbit")
        assert "cannot write to /proc/ithbit: No such file or directory; what is finished" in said


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is closed to root")
def test_a_store_that_is_not_writable(refused, tmp_path) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)
    for store in (tmp_path / "closed", tmp_path / "closed" / "inside"):
        assert "Permission denied" in refused(*QUICK, "--store", str(store))


def test_a_run_folder_of_another_spec(refused, tmp_path) -> None:
    here, other = quick_runs([0, 1], max_epochs=1)
    RunFolder(tmp_path, other).create()
    RunFolder(tmp_path, other).path.rename(RunFolder(tmp_path, here).path)
    said = refused(*QUICK, "--seeds", "0", "--max-epochs", "1", "--store", str(tmp_path))
    assert "does not hold the run it is named after; move it away or choose another" in said


def test_a_damaged_result_is_not_trained_over(refused, tmp_path) -> None:
    (spec,) = quick_runs([0], max_epochs=1)
    folder = RunFolder(tmp_path, spec)
    folder.create()
    (folder.path / "result.json").write_text("{")
    said = refused(*QUICK, "--seeds", "0", "--max-epochs", "1", "--store", str(tmp_path))
    assert "holds no readable run (result.json is not valid JSON); it is left as it is" in said
    assert (folder.path / "result.json").read_text() == "{"


@pytest.mark.parametrize(("n_damaged", "more"), [(2, ""), (5, ""), (7, " and 2 more")])
def test_all_damaged_results_are_named(refused, tmp_path, n_damaged, more) -> None:
    folders = [RunFolder(tmp_path, run) for run in quick_runs(range(n_damaged), max_epochs=1)]
    for folder in folders:
        folder.create()
        (folder.path / "result.json").write_text("{")
    said = refused(*QUICK, "--seeds", "0-8", "--max-epochs", "1", "--store", str(tmp_path))
    assert f"{n_damaged} folders hold no readable run (`ithbit status` says why)" in said
    assert said.endswith(", ".join(str(folder.path) for folder in folders[:5]) + more + "\n")


def test_nothing_of_the_table_is_cut_at_eighty_columns(tmp_path) -> None:
    widest = {"n_parameters": 1777, "epochs": 1000, "stopped_by": "solved", "max_accuracy": 1.0}
    widest |= {"first_solved_epoch": 1000, "final_accuracy": 1.0, "final_loss": 0.0}
    widest |= {"half_length_accuracy": 0.5, "double_length_accuracy": 0.5, "environment": {}}
    widest |= {"seconds_per_epoch": 100.0, "evaluation_seconds": 0.0}
    runs = quick_runs([0, 1000], max_epochs=1000)
    for spec in runs:
        folder = RunFolder(tmp_path, spec)
        folder.create()
        result = Result(spec, **widest, started_at="", finished_at="")
        (folder.path / "result.json").write_text(json.dumps(result.to_json()))
    arguments = [*QUICK, "--seeds", "0,1000", "--max-epochs", "1000", "--store", str(tmp_path)]
    shown = CliRunner().invoke(app, arguments, env={"COLUMNS": "80"}).stdout
    table = [line for line in shown.splitlines() if line and line[0] in "┏┃┡│└"]
    assert [line[0] for line in table] == ["┏", "┃", "┡", *("│" for _ in runs), "└"]
    assert "best acc." in table[1]
    assert "epoch 1000" in table[-2]
    assert "…" not in shown


def test_training_and_reading_it_again(tmp_path) -> None:
    arguments = (*QUICK, "--seeds", "0,2", "--max-epochs", "1", "--store", str(tmp_path))
    found = json.loads(run(*arguments, "--workers", "1", "--json"))
    assert [entry["spec"]["seed"] for entry in found] == [0, 2]
    assert [entry["epochs"] for entry in found] == [1, 1]
    specs = quick_runs([0, 2], max_epochs=1)
    assert [from_json(Result, entry) for entry in found] == [
        RunFolder(tmp_path, spec).result() for spec in specs
    ]
    assert json.loads(run(*arguments, "--json")) == found  # now read, not trained
    text = run(*arguments)
    assert "RHI gru L=1 n=3, polynomial positions (stress test)" in text
    assert "0 of 2 seeds reached held-out accuracy 1.0 (observed on samples, not" in text


@pytest.fixture
def unbroken(tmp_path) -> Callable[[list[RunSpec]], Path]:
    """A store in which the runs were trained in one go."""

    def store_of(specs: list[RunSpec]) -> Path:
        train(specs, tmp_path / "unbroken")
        return tmp_path / "unbroken"

    return store_of


def test_ctrl_c_leaves_a_store_that_goes_on(tmp_path, kept, unbroken) -> None:
    """SIGINT to the whole group, as a terminal sends it; workers have it in `test_pause.py`."""
    specs = quick_runs([0, 1], max_epochs=3)
    store = tmp_path / "stopped"
    arguments = (*QUICK, "--seeds", "0-1", "--max-epochs", "3")
    later = os.environ | {"ITHBIT_SAVE_SECONDS": "10000"}  # no checkpoint is due
    process = command(*arguments, "--workers", "1", "--store", str(store), env=later)
    try:
        deadline = time.monotonic() + 90
        while not all(RunFolder(store, spec).history() for spec in specs):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130
    assert out == ""
    epochs = [len(RunFolder(store, spec).history()) for spec in specs]
    named = ", ".join(f"gru s{seed} after epoch {epoch}" for seed, epoch in enumerate(epochs))
    said = f"ithbit: stopped; 2 runs saved ({named}); the same command continues from there"
    assert err.splitlines()[-1] == said
    assert "Traceback" not in err
    assert not any(isinstance(RunFolder(store, spec).outcome(), Failure) for spec in specs)
    run(*arguments, "--workers", "1", "--store", str(store))
    whole = unbroken(specs)
    for spec in specs:
        assert kept(store, spec) == kept(whole, spec)


def limit_file_size() -> None:
    """The specification fits, and four lines of history; the fifth does not."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (800, 800))


SHORT = """
task = "rhi"
family = "gru"
n = 3
layers = 1
seeds = "0-1"
[protocol]
batch_size = 1000
epoch_examples = 2000
max_epochs = 5
"""


@pytest.mark.parametrize("workers", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_a_file_that_may_not_grow(workers, tmp_path, kept, leftovers, unbroken) -> None:
    (tmp_path / "short.toml").write_text(SHORT)
    specs = sweep_runs(str(tmp_path / "short.toml"))
    arguments = ("sweep", str(tmp_path / "short.toml"), "--device", "cpu", "--workers", workers)
    store = tmp_path / "limited"
    process = command(*arguments, "--store", str(store), preexec_fn=limit_file_size)
    out, err = process.communicate(timeout=100)
    assert process.returncode == 2, err
    assert out == ""
    last = err.splitlines()[-1]
    assert last.startswith(f"ithbit: cannot write to {store}")
    assert ": File too large; what is finished is kept: fix that and run the same" in last
    assert "Traceback" not in err
    assert leftovers(store) == []
    assert not list(store.rglob("result.json")) + list(store.rglob("failure.json"))
    run(*arguments, "--store", str(store))
    whole = unbroken(specs)
    for spec in specs:
        assert kept(store, spec) == kept(whole, spec)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 128 KiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(place)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("there is no mount here")
    if done.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.parametrize("free", [0, 8192, 20480], ids=lambda free: f"{free}-bytes-free")
def test_a_full_disk(free, small_disk, kept, leftovers, refused, unbroken) -> None:
    """Full from the start, in the first epochs, and at the end when the weights are written."""
    specs = quick_runs([0, 1], max_epochs=1)
    arguments = (*QUICK, "--seeds", "0-1", "--max-epochs", "1", "--workers", "1")
    store = small_disk / "store"
    filler = small_disk / "filler"
    filler.write_bytes(bytes(128 * 1024 - free))
    said = refused(*arguments, "--store", str(store))
    assert "No space left on device; what is finished is kept" in said
    assert leftovers(small_disk) == ["filler"]
    assert not list(store.rglob("failure.json"))
    filler.unlink()
    run(*arguments, "--store", str(store))
    whole = unbroken(specs)
    for spec in specs:
        assert kept(store, spec) == kept(whole, spec)


@pytest.mark.parametrize(
    ("arguments", "count"),
    [
        (["rhi", "softmax-full", "--layers", "1", "--n", "64"], 3473),
        (["lhi", "softmax-causal", "-L", "2", "-n", "8"], 6753),
        (["rhi", "linear-full", "--layers", "2"], 6577),
        (["lhi", "gru"], 1777),
        (["lhi", "mamba2", "--layers", "2"], 3261),
    ],
)
def test_params_prints_the_count_alone(arguments, count) -> None:
    assert run("params", *arguments) == f"{count}\n"


def test_params_refuses_with_a_reason(refused) -> None:
    assert "unknown family 'lstm'" in refused("params", "rhi", "lstm")
    assert "heads must divide the width" in refused("params", "rhi", "mamba2", "--heads", "3")


def test_heads_are_no_matter_to_what_has_none() -> None:
    assert run("params", "rhi", "gru", "--heads", "3") == run("params", "rhi", "gru")
    assert int(run("params", "rhi", "gru", "--width", "15")) > 0


def test_sample_shows_instances() -> None:
    text = run("sample", "rhi", "--n", "4", "--seed", "0", "--count", "2")
    shown = text.split("\n\n")
    assert len([piece for piece in shown if piece.strip()]) == 2
    assert shown[0].splitlines()[1] == "index 3 asks for bit number 3: 1"
    assert text == run("sample", "rhi", "--n", "4", "--count", "2")
    assert text != run("sample", "lhi", "--n", "4", "--count", "2")


def test_examples_are_uniform_or_mixed(tmp_path, refused) -> None:
    words = ("sample", "rhi", "--n", "16", "--count", "2", "--examples")
    uniform, mixed = (run(*words, kind) for kind in ("uniform", "mixed"))
    assert uniform.splitlines()[0] == mixed.splitlines()[0]  # number 0 is even
    assert uniform != mixed
    for command in ("train rhi gru", "sample rhi", "sweep smoke"):
        where = () if command.startswith("sample") else ("--store", str(tmp_path))
        said = refused(*command.split(), "--examples", "even", *where)
        assert "unknown examples 'even'; choose one of uniform, mixed" in said


@pytest.mark.parametrize("wrong", [["--n", "0"], ["--seed", "-1"], ["--count", "0"]])
def test_sample_refuses_with_a_reason(refused, wrong) -> None:
    assert "n and count must be at least 1 and the seed at least 0" in refused(
        "sample", "rhi", *wrong
    )
    assert "unknown task 'mhi'" in refused("sample", "mhi")


@pytest.mark.parametrize(
    "arguments", [["--help"], ["train", "--help"], ["verdict", "rhi", "rnn", "--n", "5"]]
)
def test_what_needs_no_tensors_does_not_wait_for_them(arguments) -> None:
    program = (
        "import sys\n"
        f"sys.argv = ['ithbit', *{arguments!r}]\n"
        "from ithbit.cli import app\n"
        "app(standalone_mode=False)\n"
        "print([name for name in ('torch', 'safetensors') if name in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "rhi", "gru", "--workers", "0"],
        ["train", "rhi", "gru", "--seeds", "x"],
        ["train", "rhi", "lstm"],
        ["params", "rhi", "gru", "--n", "0"],
    ],
)
def test_mistakes_are_told_before_torch_is_imported(arguments) -> None:
    program = (
        "import sys\n"
        f"sys.argv = ['ithbit', *{arguments!r}]\n"
        "from ithbit.cli import main\n"
        "try:\n"
        "    main()\n"
        "except SystemExit as stop:\n"
        "    print(stop.code, 'torch' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "2 False\n"


def test_python_says_the_same(tmp_path) -> None:
    import ithbit

    protocol = Protocol(batch_size=32, epoch_examples=64, held_out_examples=32, max_epochs=1)
    events = []
    results = ithbit.train(
        "rhi",
        "gru",
        n=3,
        seeds=(0, 4),
        protocol=protocol,
        store=tmp_path,
        workers=1,
        watch=events.append,
    )
    assert [result.spec.seed for result in results] == [0, 4]
    assert {event.what for event in events if isinstance(event.what, ithbit.Epoch)}
    with pytest.raises(SpecError, match="give at least one seed"):
        ithbit.train("rhi", "gru", n=3, seeds=[], store=tmp_path)
    with pytest.raises(SpecError, match="give every seed only once; repeated: 1, 2"):
        ithbit.train("rhi", "gru", n=3, seeds=[2, 1, 2, 1], store=tmp_path)


def test_python_takes_numpy_s_integers(tmp_path) -> None:
    import numpy

    import ithbit

    protocol = Protocol(batch_size=32, epoch_examples=64, held_out_examples=32, max_epochs=1)
    settings = {"n": 3, "protocol": protocol, "store": Path(tmp_path), "workers": 1}
    first = ithbit.train("rhi", "gru", seeds=numpy.arange(2), **settings)
    assert ithbit.train("rhi", "gru", seeds=range(2), **settings) == first


def test_seeds_in_words() -> None:
    assert parse_seeds(" 3 , 5-6,0-0") == [3, 5, 6, 0]


def test_what_failed_is_told_below_the_table_once(tmp_path) -> None:
    """A message of the GPU is several lines long, and the same for every run of a stack."""
    for spec in quick_runs([0, 1, 2], max_epochs=1):
        reason = "out of [memory]" if spec.seed else "lost"
        folder = RunFolder(tmp_path, spec)
        folder.create()
        folder.fail(Failure(spec, reason, "", 0))
    result = CliRunner().invoke(
        app, [*QUICK, "--max-epochs", "1", "--seeds", "0-2", "--store", str(tmp_path)]
    )
    assert result.exit_code == 1
    below = result.stdout.split("└")[1].splitlines()[1:]
    assert below[:2] == ["seed 0 failed: lost", "seeds 1, 2 failed: out of [memory]"]
    assert below[2].startswith("No seed could be run, which says nothing about learning. Run ")


def test_a_loss_that_is_not_finite_is_an_outcome_of_training(tmp_path) -> None:
    from ithbit.api.training import Results

    runs = quick_runs([0, 1, 2], max_epochs=5)
    reasons = ["the loss is not finite in epoch 2: nan"] * 2 + ["its worker process died 3 times"]
    found = [Failure(run, why, "", 2) for run, why in zip(runs, reasons, strict=True)]
    for failure, best in zip(found, (1.0, 0.5, 1.0), strict=True):
        folder = RunFolder(tmp_path, failure.spec)
        folder.create()
        folder.append_epoch(Epoch(1, 0.5, 0.5, best, 1e-3, 0.1))
    text = str(Results(found, tmp_path))
    assert text.count("diverged") == 2
    said = "1 of 2 seeds reached held-out accuracy 1.0 (observed on samples, not proved); 1 could "
    assert said + "not be run and are not counted." in " ".join(text.split())
    other = Failure(RunSpec(runs[0].model, 7), "lost", "", 0)
    text = str(Results([*found, *[other] * 3], tmp_path))
    assert text.startswith("6 runs: 1 solved, 2 diverged, 4 failed. Run folders: ")
    assert text.endswith("failed: … and 1 more")


def test_feed_forward_width(tmp_path: Path, refused) -> None:
    model = ("rhi", "softmax-full", "--n", "2", "--ff", "8")
    where = ("--seeds", "0", "--max-epochs", "1", "--workers", "1", "--store", str(tmp_path))
    run("train", *model, "--batch-size", "1000", "--device", "cpu", *where)
    (folder,) = tmp_path.glob("rhi_*")
    result = json.loads((folder / "result.json").read_text())
    assert result["spec"]["model"]["d_ff"] == 8
    assert result["n_parameters"] == int(run("params", *model)) < int(run("params", *model[:-2]))
    said = refused("train", *model[:-1], "0", *where)
    assert "feed-forward width must be at least 1, got 0" in said


def test_learning_rate_and_batch_size(tmp_path: Path, refused) -> None:
    where = ("--seeds", "0", "--max-epochs", "1", "--workers", "1", "--store", str(tmp_path))
    run(*QUICK, "--lr", "0.002", "--batch-size", "512", *where)
    (folder,) = tmp_path.glob("rhi_*")
    protocol = json.loads((folder / "spec.json").read_text())["spec"]["protocol"]
    assert (protocol["learning_rate"], protocol["batch_size"]) == (0.002, 512)
    said = refused(*QUICK, "--lr", "0", "--batch-size", "0", *where)
    assert "batch_size must be at least 1, got 0" in said
    assert "learning_rate must be positive and finite, got 0" in said
