"""The commands certify, check-certificate and explain, as a user meets them."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from ithbit.cli import app
from ithbit.errors import IthbitError
from ithbit.theory.constructions import CONSTRUCTIONS

RUNNER = CliRunner()


def run(*arguments: str) -> str:
    result = RUNNER.invoke(app, list(arguments), env={"COLUMNS": "100", "TERM": "dumb"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_certify_prints_a_claim_a_person_can_read():
    text = run("certify", "rhi", "softmax-full", "--n", "16")
    assert "RHI by softmax-full, n = 16 (Theorem 12c)" in text
    assert "enumerated" not in text
    assert "enumerated   all 2048 inputs run one by one" in run("certify", "lhi", "rnn", "--n", "8")
    assert "certified    margin >= 1.99792635 on all 16·2^16 inputs" in text
    assert "(observed)" in text
    assert "real arithmetic on the stored weights, not float runs" in text
    assert "for every n  margin >= 1.858" in text


@pytest.mark.parametrize("entry", CONSTRUCTIONS, ids=lambda entry: f"{entry.task}-{entry.family}")
def test_certify_json_has_the_claim(entry):
    claim = json.loads(run("certify", entry.task, entry.family, "--n", "5", "--json"))
    assert claim["certified"] is True
    assert claim["margin"] >= 1
    assert claim["inputs"] == 160
    assert claim["depth"] == entry.depth
    assert claim["width"] in (1, 2)
    assert isinstance(claim["arithmetic"], str)
    assert claim["float_execution"]["kind"] == "observed, not certified"
    assert claim["float_execution"]["float32"]["wrong"] == 0
    assert claim["float_execution"]["every_input"]["inputs_run"] == 160
    assert "weights" not in claim


def test_large_n_is_an_exact_integer_in_json_and_a_power_in_text():
    claim = json.loads(run("certify", "lhi", "ssm", "--n", "4096", "--json"))
    assert claim["inputs"] == 4096 * 2**4096
    assert "4096·2^4096 inputs" in run("certify", "lhi", "ssm", "--n", "4096")


def test_a_written_certificate_checks_and_a_tampered_one_is_refused(tmp_path):
    path = tmp_path / "c.json"
    text = run("certify", "lhi", "rnn", "--n", "6", "--variant", "pair", "-o", str(path))
    assert f"written to {path}" in text
    assert "holds: lhi by rnn, margin >= 1 on all 6·2^6 inputs" in run(
        "check-certificate", str(path)
    )
    assert json.loads(run("check-certificate", str(path), "--json"))["certified"] is True
    path.write_text(path.read_text().replace('"margin": 1.0', '"margin": 2.0'))
    with pytest.raises(IthbitError, match=r"refused: the margin is stated as 2\.0"):
        run("check-certificate", str(path))


def test_explain_shows_the_way_of_the_index():
    text = run("explain", "lhi", "softmax-causal", "--bits", "1011", "--index", "3")
    assert "bit 3 = 1 ◂" in text
    assert "index 3: 1" in text
    assert "so the answer is 1 ✓" in text
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 100
    assert "so the answer is 0 ✓" in run("explain", "lhi", "gru", "--bits", "1011", "--index", "2")
    assert "→" in run("explain", "lhi", "rnn", "--bits", "1011", "--index", "3")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("certify", "lhi", "rnn", "--n", "0"), "n must be at least 1, got 0"),
        (("certify", "lhi", "rnn", "--n", "1000000"), "n up to 14267, got n = 1000000"),
        (("certify", "rhi", "ssm", "--n", "4"), "ithbit verdict rhi ssm"),
        (("certify", "rhi", "gru", "--n", "4"), "formal counterpart is 'rnn'"),
        (("certify", "lhi", "rnn", "--n", "4", "--variant", "x"), "no variant 'x'"),
        (
            ("certify", "lhi", "rnn", "--n", "4", "-o", "/proc/no/c.json"),
            "cannot write /proc/no/c.json",
        ),
        (("check-certificate", "/no/where.json"), "cannot read /no/where.json"),
        (("explain", "lhi", "rnn", "--bits", "1021", "--index", "1"), "string of 0 and 1"),
        (("explain", "lhi", "rnn", "--bits", "", "--index", "1"), "string of 0 and 1"),
        (("explain", "lhi", "rnn", "--bits", "101", "--index", "4"), r"in 1\.\.3, got 4"),
        (("explain", "lhi", "rnn", "--bits", "1" * 40, "--index", "4"), "at most 32 bits"),
    ],
)
def test_mistakes_are_one_sentence(arguments, message):
    with pytest.raises(IthbitError, match=message):
        run(*arguments)


def test_the_command_line_needs_no_torch_and_exits_with_two():
    code = (
        "import sys; sys.argv = ['ithbit', 'certify', 'lhi', 'rnn', '--n', '0']\n"
        "from ithbit.cli import main\n"
        "try:\n    main()\n"
        "finally:\n    assert 'torch' not in sys.modules\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 2
    assert result.stderr == "ithbit: n must be at least 1, got 0\n"


def test_help_names_every_option():
    text = run("certify", "--help")
    for word in ("task", "family", "--n", "--variant", "--json", "--output"):
        assert word in text


def test_weights_of_trained_blocks_are_certified_and_shown(tmp_path):
    file = tmp_path / "certificate.json"
    text = run("certify", "rhi", "softmax-full", "--model", "trained", "--n", "6", "-o", str(file))
    assert "margin >= 2.0796" in text
    assert "for every n  margin >= 1.91025125" in text
    assert "holds: rhi by softmax-full" in run("check-certificate", str(file))
    options = ("--model", "trained", "--bits", "1011", "--index", "3")
    assert "so the answer is 1" in run("explain", "lhi", "linear-causal", *options)
    shown = json.loads(run("construct", "lhi", "gru", "--model", "trained", "--n", "3", "--json"))
    assert shown["head.weight"][0][2] == 2 + 2.0**-20
