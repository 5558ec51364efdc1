"""`ithbit verdict` as a person or a script meets it."""

import json
import os
import subprocess
import sys

import pytest
from tests.support.command_line import output_of

from ithbit.cli import main


def test_verdict_table():
    text = output_of("verdict", "--n", "8")
    assert "ω(1)" in text
    assert all(family in text for family in ("softmax-full", "linear-causal", "ssm", "rnn"))
    entries = json.loads(output_of("verdict", "--n", "8", "--json"))
    papers = [entry for entry in entries if entry["task"] in ("rhi", "lhi")]
    assert len(papers) == 12
    assert {entry["task"] for entry in entries} > {"mqar", "induction", "copy"}
    found = {(entry["family"], entry["task"]): entry for entry in entries}
    assert found["rnn", "lhi"]["min_layers"] == 1
    assert found["rnn", "lhi"]["certificate"]["inputs"] == 8 * 2**8
    assert found["linear-full", "rhi"]["n_star_with_fewer"] == 4_616
    assert found["rnn", "rhi"]["n_star_by_depth"] == [487, 1_482, 2_989, 5_022]
    assert found["rnn", "rhi"]["min_layers"] is None


def test_single_verdicts():
    possible = json.loads(output_of("verdict", "lhi", "rnn", "--n", "8", "--json"))
    assert possible["answer"] == "possible"
    assert possible["certificate"]["certified"] is True
    assert "on all 8 · 2^8 inputs" in output_of("verdict", "lhi", "rnn", "--n", "8")
    impossible = ["verdict", "rhi", "rnn", "--layers", "1", "--n", "488"]
    assert json.loads(output_of(*impossible, "--json"))["n_star"] == 487
    assert "impossible (Theorem 12a)" in output_of(*impossible)
    assert "impossible past n* = 487" in output_of("verdict", "rhi", "rnn")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["lhi"], "give a task and a family, or neither"),
        (["--layers", "3"], "--layers needs a task and a family: the whole table has a number"),
        (["lhi", "rnn", "--n", "0"], "n must be at least 1, got 0"),
        (["--n", "0"], "n must be at least 1, got 0"),
        (["lhi", "rnn", "--layers", "0"], "layers must be at least 1"),
        (["lhi", "gru"], "its formal counterpart is 'rnn'"),
        (["lhi", "lstm"], "unknown family 'lstm'"),
    ],
)
def test_verdict_refuses_with_a_reason(capsys, monkeypatch, arguments, message):
    monkeypatch.setattr(sys, "argv", ["ithbit", "verdict", *arguments])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_verdicts_need_no_torch():
    program = (
        "import sys\n"
        "sys.argv = ['ithbit', 'verdict', '--n', '4']\n"
        "from ithbit.cli import app\n"
        "app(standalone_mode=False)\n"
        "print('torch' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "False"


def test_verdicts_about_what_is_trained():
    text = output_of("verdict", "lhi", "mamba2", "--layers", "2", "--model", "trained", "--n", "16")
    assert "possible (beside Theorem 14c)" in text
    assert "the margin is at least 1.717 for every n" in text
    table = output_of("verdict", "--model", "trained", "--n", "8")
    assert "Number of layers as trained that suffices at every n" in table


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_that_knows_few_characters(encoding) -> None:
    code = "from ithbit.cli import main; main()"
    table = ("table", "main", "--show", "published")
    done = subprocess.run(
        [sys.executable, "-c", code, *table],
        env=os.environ | {"PYTHONIOENCODING": encoding},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert r"\u2713" in done.stdout  # ✓
