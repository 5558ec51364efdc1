"""`ithbit check`: exit statuses, JSON as the page describes it, and no torch in the parent."""

import json
import re
import subprocess
import sys

import pytest
from tests.support.paths import ROOT, SUPPORT
from torch import nn

import ithbit as package
from ithbit.contract.findings import Coverage, Finding, report_from_json

WILD = SUPPORT / "wild_layers.py"
PAGE = (ROOT / "docs" / "check.md").read_text(encoding="utf-8")


def test_a_layer_that_keeps_its_contract_exits_0_with_json(ithbit) -> None:
    status, out, _ = ithbit("check", f"{WILD}:Keeps", "--seconds", 0.5, "--seed", 7, "--json")
    data = json.loads(out)
    assert (status, data["exit_code"], data["verdict"]) == (0, 0, "keeps")
    assert data["coverage"]["sentence"].startswith("no leak seen at lengths 2 to ")
    assert data["settings"]["seed"] == 7
    assert report_from_json(data).to_json() == data


def test_a_broken_layer_exits_1_with_code_that_runs_as_pasted(ithbit, tmp_path) -> None:
    layers = tmp_path / "layers.py"
    layers.write_text(
        "import torch\n\n\nclass Mine(torch.nn.Module):\n    def forward(self, x):\n"
        "        return x + x.mean(1, keepdim=True)\n"
    )
    status, out, _ = ithbit("check", "layers.py:Mine", "--seconds", 1)
    assert status == 1
    assert "breaks 1 clause of its contract: causal" in out
    assert "no leak seen" not in out
    lines = [line[4:] for line in out.splitlines() if line.startswith("    ")]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True
    )
    assert float(done.stdout.split()[-1]) > 0.01


@pytest.mark.parametrize(
    ("layer", "sentence"),
    [
        (f"{WILD}:Prints", "it prints ('read a batch')"),
        ("nowhere.py:Mine", "there is no file"),
        (f"{ROOT / 'README.md'}:Mine", "README.md is not Python; give PATH.py:Factory"),
    ],
)
def test_what_cannot_be_checked_exits_2_with_a_sentence(ithbit, layer: str, sentence: str) -> None:
    status, out, _ = ithbit("check", layer)
    assert status == 2
    assert sentence in out
    assert len(out.strip().splitlines()) == 1


@pytest.mark.parametrize(
    "given", [("--allow", "causality"), ("--dtype", "int8"), ("--seconds", 0), ("--device", "tpu")]
)
def test_a_wrong_option_is_one_sentence(ithbit, given: tuple[object, object]) -> None:
    status, out, err = ithbit("check", "gru", *given)
    assert (status, out) == (2, "")
    assert len(err.strip().splitlines()) == 1


def test_the_parent_imports_no_torch() -> None:
    program = (
        "import sys, ithbit.cli.commands, ithbit.api.checking, ithbit.contract.child\n"
        "ithbit.api.checking.settings_of('gru', 16, 1, 0, None, 'float64', 'auto')\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"


def test_the_page_describes_the_json() -> None:
    finding = Finding("causal", "sentence", 1, 1, 1, 1.0, 1.0, "code")
    result = package.check(lambda width: nn.Identity(), width=2, seconds=0.05)
    data = result.to_json()
    table = PAGE[PAGE.index("| field | content |") :]
    described = set(re.findall(r"`(\w+)`", table))
    assert set(data) <= described
    assert set(data["coverage"]) | set(data["settings"]) <= described
    assert set(data["clauses"][0]) <= described
    assert set(finding.__dataclass_fields__) <= described
    assert Coverage().sentence() == "no later tokens were changed"


def test_the_page_lists_the_clauses_of_layers() -> None:
    from ithbit.contract.clauses import CLAUSES

    for clause in CLAUSES[:13]:
        assert f"`{clause.name}`" in PAGE


def test_the_example_of_the_page_is_a_test_file(tmp_path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    for fault, status in (("x.cumsum(1)", 0), ("x.flip(1)", 1)):
        folder = tmp_path / str(status)
        folder.mkdir()
        (folder / "test_mine.py").write_text(example)
        (folder / "layers.py").write_text(
            "import torch\n\n\nclass Mine(torch.nn.Module):\n    def forward(self, x):\n"
            f"        return {fault}\n"
        )
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_mine.py"],
            cwd=folder,
            capture_output=True,
            text=True,
        )
        assert done.returncode == status, done.stdout
        assert status == 0 or "breaks 1 clause of its contract: causal" in done.stdout
