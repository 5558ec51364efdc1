"""`ithbit bound` and `ithbit complexity` as a person or a script meets them."""

import json
import subprocess
import sys

import pytest
from tests.support.command_line import output_of

from ithbit.cli import main


def refused(capsys, monkeypatch, *arguments):
    """What the command line says on standard error, having exited with status 2."""
    monkeypatch.setattr(sys, "argv", ["ithbit", *arguments])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    return capsys.readouterr().err


def test_bound_in_json():
    found = json.loads(output_of("bound", "rhi", "rnn", "--layers", "2", "--width", "16", "--json"))
    assert found["n_star"] == 1_482
    assert found["rests_on"] == "proved here: the counting theorem (A)"
    assert found["vacuous_at"] == [8, 16, 32, 64]


def test_bound_at_a_length():
    small = ["bound", "rhi", "mamba2", "--model", "trained", "-d", "1", "--heads", "1"]
    assert json.loads(output_of(*small, "--n", "18", "--json"))["vacuous_at"] == [18]
    assert json.loads(output_of(*small, "--n", "19", "--json"))["vacuous_at"] == []
    assert "at n = 19: impossible" in output_of(*small, "--n", "19")
    assert "at n = 18: vacuous" in output_of(*small, "--n", "18")
    assert "vacuous at the paper's lengths n = 8, 16\n" in output_of(*small)


def test_every_route():
    arguments = ["bound", "rhi", "linear-causal", "--layers", "2", "--all"]
    found = json.loads(output_of(*arguments, "--json"))
    names = [route["route"] for route in found["routes"]]
    assert names == ["state of 32-bit numbers", "counting (K)", "Anthony–Bartlett 8.14"]
    assert found["n_star"] == found["routes"][1]["n_star"] == 303_737_823
    text = output_of(*arguments)
    assert all(name in text for name in names)


def test_a_cited_bound_is_shown_beside_the_proved_one():
    text = output_of("bound", "rhi", "mamba2", "--model", "trained")
    assert "impossible for every n > 2,589" in text
    assert "without the cited constant: impossible for every n > 2,874" in text


def test_trained_sizes_reach_the_bound():
    relu = output_of(
        *("bound", "lhi", "linear-full", "--model", "trained", "--layers", "1", "--width", "16"),
        *("--heads", "2", "--ff", "64", "--activation", "relu", "--json"),
    )
    assert json.loads(relu)["n_star"] == 507


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rhi", "softmax-full"], "possible; for every n by 1 layer of width 2"),
        (["lhi", "linear-full", "--layers", "2"], "possible; for every n by 2 layers of width 1"),
        (["rhi", "rnn", "--n", "0"], "n must be at least 1, got 0"),
        (["rhi", "rnn", "--layers", "0"], "layers must be at least 1, got 0"),
        (["rhi", "rnn", "--width", "0"], "width must be at least 1, got 0"),
        (["rhi", "linear-causal", "--heads", "3"], "heads must divide the width"),
        (["rhi", "lstm"], "unknown family 'lstm', choose one of softmax-full"),
        (["mhi", "rnn"], "unknown task 'mhi'; choose one of rhi, lhi"),
        (["rhi", "gru"], "its formal counterpart is 'rnn'"),
        (["rhi", "mamba2"], "its formal counterpart is 'ssm'"),
        (["rhi", "ssm", "--model", "trained"], "its trained counterpart is 'mamba2'"),
    ],
)
def test_bound_refuses_with_a_reason(capsys, monkeypatch, arguments, message):
    assert message in refused(capsys, monkeypatch, "bound", *arguments)


@pytest.mark.parametrize(
    ("arguments", "dimension", "operations"),
    [
        (["rnn"], 16, 12_432),
        (["ssm", "--transition", "constant"], 16, 7_232),
        (["linear-causal"], 272, 6_351),
        (["gru", "--model", "trained"], 16, 3_328),
        (["linear-causal", "--model", "trained", "--activation", "relu"], 144, 6_838),
        (["mamba2", "--model", "trained"], 352, 4_592),
    ],
)
def test_complexity(arguments, dimension, operations):
    found = json.loads(output_of("complexity", *arguments, "--json"))
    assert (found["dimension"], found["operations"]) == (dimension, operations)
    assert f"{operations:,} operations" in output_of("complexity", *arguments)


def test_complexity_of_softmax_grows():
    at = {
        k: json.loads(output_of("complexity", "softmax-causal", "--position", str(k), "--json"))
        for k in (10, 11)
    }
    assert at[11]["dimension"] - at[10]["dimension"] == 32
    assert "no bound for right-hand indexing follows" in output_of("complexity", "softmax-causal")


def test_complexity_refuses_with_a_reason(capsys, monkeypatch):
    message = refused(capsys, monkeypatch, "complexity", "linear-full")
    assert "linear-full is not causal" in message
    message = refused(capsys, monkeypatch, "complexity", "softmax-causal", "--position", "0")
    assert "k must be at least 1, got 0" in message
    message = refused(capsys, monkeypatch, "complexity", "lstm")
    assert message == (
        "ithbit: unknown family 'lstm', choose one of softmax-causal, linear-causal, rnn, ssm\n"
    )
    message = refused(capsys, monkeypatch, "complexity", "lstm", "--model", "trained")
    assert message.endswith("choose one of softmax-causal, linear-causal, gru, mamba2\n")
    assert "-full" not in output_of("complexity", "--help")


@pytest.mark.parametrize(
    "arguments",
    [["bound", "rhi", "linear-causal", "-L", "4", "--all"], ["complexity", "rnn"]],
)
def test_numbers_need_neither_torch_nor_numpy(arguments):
    program = (
        "import sys\n"
        f"sys.argv = ['ithbit', *{arguments!r}]\n"
        "from ithbit.cli import app\n"
        "app(standalone_mode=False)\n"
        # Balls decide a border, so a bound takes the 30 ms that flint needs to start.
        "print([name for name in ('torch', 'numpy') if name in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"
