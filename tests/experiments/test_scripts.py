"""What is run on bare GPU machines needs torch and nothing of the command line or the report."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.paths import ROOT

SCRIPTS = ROOT / "experiments"
BARE = """
import runpy, sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("typer", "rich", "polars", "matplotlib", "jinja2", "flint"):
            raise ImportError(f"no {name} here")
sys.meta_path.insert(0, Missing())
"""


def run_bare(code: str, *arguments: object) -> str:
    command = [sys.executable, "-c", BARE + code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_bench_needs_no_command_line() -> None:
    """Beside the libraries, which are timed in this process elsewhere."""
    code = """
import json
from ithbit.bench.run import bench, worker
from ithbit.bench.result import result_text
print(result_text(bench((2,), (1,), "cpu", 1, 1, True, ())))
model = {"task": "lhi", "family": "gru", "n_bits": 2}
order = {"model": model, "seeds": 1, "steps": 1, "repeats": 1}
sys.argv[1:] = [json.dumps(order | {"stepper": "stacked"})]
worker()
"""
    *text, seconds = run_bare(code).splitlines()
    assert "no kernels: the kernels need a CUDA GPU" in " ".join(text)
    assert float(seconds) > 0


def test_kernels_and_models_are_compared_without_the_report(tmp_path: Path) -> None:
    code = """
from pathlib import Path
from ithbit.store.folder import RunFolder
from ithbit.spec import RunSpec
script = runpy.run_path(sys.argv[1])
run = RunSpec(script["MODELS"][0], 0)
RunFolder(Path(sys.argv[2]), run).create()
print(script["recorded"]([Path(sys.argv[2])], [run]))
"""
    assert run_bare(code, SCRIPTS / "same_science.py", tmp_path) == "{}\n"


def test_a_layer_of_fla_that_cannot_run_is_a_row_and_no_crash(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("fla's layers may well run here")
    code = 'sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name="__main__")'
    where = tmp_path / "verify.json"
    options = ("--device", "cpu", "--no-families", "--fla", "GLA", "--json", where)
    out = run_bare(code, SCRIPTS / "verify.py", *options)
    assert "needs a CUDA GPU" in out.splitlines()[-1]
    assert "needs a CUDA GPU" in json.loads(where.read_text())["fla"]["GLA"]["error"]


def test_users_layers_are_timed_on_a_machine_without_a_gpu() -> None:
    code = 'sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name="__main__")'
    options = ("--device", "cpu", "--n", 2, "--seeds", 2, "--epochs", 2, "--epoch-examples", 512)
    out = run_bare(code, SCRIPTS / "own_layers_speed.py", *options)
    named = [line.split()[0] for line in out.splitlines()[3:] if not line.startswith(" ")]
    assert named == ["LoopRecurrence", "Lstm", "Encoder", "CausalConv"]
    assert "seeds of own_layers_speed.py:Lstm train one by one: Batching rule" in out


def test_the_atlas_says_where_it_stands_on_a_bare_machine(tmp_path: Path) -> None:
    code = 'sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name="__main__")'
    where = ("--store", tmp_path / "store", "--out", tmp_path / "out", "--device", "cpu")
    out = run_bare(code, SCRIPTS / "capacity.py", *where, "--no-train", "--cells", "core")
    assert "24 of 24 open" in out
    assert "rhi gru L1 d4: n = 8 at 0.003, 2 runs" in out
    assert (tmp_path / "out" / "atlas.csv").read_text().startswith("task,family,layers,width,")
    assert (tmp_path / "out" / "records.tar.xz").is_file()
    assert (tmp_path / "out" / "weights.tar.gz").is_file()


def test_the_sweep_by_the_clock_adds_its_commands_up(tmp_path: Path) -> None:
    code = """
from dataclasses import replace
from ithbit.sweeps import presets
first = presets.smoke()[0]
short = replace(first.protocol, max_epochs=1, epoch_examples=512)
presets.preset = lambda name: [replace(first, protocol=short)]
runpy.run_path(sys.argv.pop(1), run_name="__main__")
"""
    file = tmp_path / "seconds.json"
    options = ("--store", tmp_path / "runs", "--out", file, "--device", "cpu")
    for commands in (1, 2):
        said = run_bare(code, SCRIPTS / "paper_sweep.py", *options)
        assert said.startswith("1 of 1 runs")
        found = json.loads(file.read_text())
        assert len(found["seconds"]) == commands
    total = float(said.removesuffix(" s in all\n").split()[-1])
    assert total == pytest.approx(sum(found["seconds"]), abs=0.11)  # both are rounded
    assert [run["epochs"] for run in found["runs"].values()] == [1]
