"""What is run on bare GPU machines needs torch and nothing of the command line or the report."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"
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
    code = """
from ithbit.bench.run import Settings, bench
from ithbit.bench.text import result_text
settings = Settings((2,), (1,), "cpu", 1, 1, True, (("lhi", "gru", 1),))
print(result_text(bench(settings)))
"""
    assert "lhi   gru" in run_bare(code)


def test_kernels_and_models_are_compared_without_the_report(tmp_path: Path) -> None:
    code = """
from pathlib import Path
from ithbit.engine.folder import RunFolder
from ithbit.engine.spec import RunSpec
script = runpy.run_path(sys.argv[1])
run = RunSpec(script["MODELS"][0], 0)
RunFolder(Path(sys.argv[2]), run).create()
print(script["recorded"]([Path(sys.argv[2])], [run]))
"""
    assert run_bare(code, BENCH / "same_science.py", tmp_path) == "{}\n"


def test_a_layer_of_fla_that_cannot_run_is_a_row_and_no_crash(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("fla's layers may well run here")
    code = 'sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name="__main__")'
    where = tmp_path / "verify.json"
    options = ("--device", "cpu", "--no-families", "--fla", "GLA", "--json", where)
    out = run_bare(code, BENCH / "verify.py", *options)
    assert "needs a CUDA GPU" in out.splitlines()[-1]
    assert "needs a CUDA GPU" in json.loads(where.read_text())["fla"]["GLA"]["error"]
