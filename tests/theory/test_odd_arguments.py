"""The theory's functions and commands on arguments that make no sense: an answer or a sentence."""

import random
import sys

import pytest

import ithbit
from ithbit.cli import main
from ithbit.errors import IthbitError

CALLS = {
    "verdict n": lambda v: ithbit.verdict("rhi", "rnn", 1, v),
    "verdict of a trained block at n": lambda v: ithbit.verdict(
        "lhi", "gru", 1, v, model="trained"
    ),
    "verdict layers": lambda v: ithbit.verdict("rhi", "rnn", v, 8),
    "verdict width": lambda v: ithbit.verdict("lhi", "mamba2", 2, 2, model="trained", width=v),
    "verdict ff": lambda v: ithbit.verdict("rhi", "softmax-full", 1, 8, ff=v),
    "verdict heads": lambda v: ithbit.verdict("rhi", "softmax-full", 1, 8, heads=v),
    "verdict state": lambda v: ithbit.verdict("lhi", "mamba2", 2, 8, state=v, model="trained"),
    "verdict model": lambda v: ithbit.verdict("lhi", "rnn", 1, 8, model=v),
    "bound task": lambda v: ithbit.bound(v, "rnn"),
    "bound n": lambda v: ithbit.bound("rhi", "rnn", n=v),
    "bound width": lambda v: ithbit.bound("rhi", "linear-causal", width=v),
    "bound heads": lambda v: ithbit.bound("rhi", "linear-causal", heads=v),
    "bound bits": lambda v: ithbit.bound("rhi", "rnn", bits=v, all_routes=True),
    "bound conv": lambda v: ithbit.bound("rhi", "mamba2", model="trained", conv=v),
    "complexity position": lambda v: ithbit.complexity("softmax-causal", position=v),
    "certify n": lambda v: ithbit.certify("rhi", "softmax-full", n=v),
    "certify heads": lambda v: ithbit.certify("lhi", "softmax-full", n=2, heads=v, model="trained"),
    "explain index": lambda v: ithbit.explain("rhi", "softmax-full", bits="101", index=v),
    "explain bits": lambda v: ithbit.explain("rhi", "softmax-full", bits=v, index=1),
}
VALUES = (0, 1, -3, 10**30, 10**999, 2.0, 1.5, True, None, [], "", "nan", "x")


# Texts: what Python cannot write, as a number of 5,000 digits, is not given to these.
NAMES = ("verdict model", "bound task", "explain bits")


@pytest.mark.parametrize("call", CALLS)
def test_an_answer_or_a_sentence(call):
    huge = () if call in NAMES else (10**5000, -(10**5000))
    for value in (*VALUES, *huge, float("nan"), float("inf")):
        try:
            said = str(CALLS[call](value))
        except IthbitError as sentence:
            said = str(sentence)
        assert said


NUMBERS = ("0", "-1", "1", "2", "3", "10" * 15, "9" * 5000, "nan", "inf", "1.5", "", "x", "6", "16")
OPTIONS = {
    "verdict": ("--layers", "--n", "--width", "--ff", "--heads", "--state"),
    "bound": ("--layers", "--n", "--width", "--ff", "--heads", "--state", "--conv", "--bits"),
    "complexity": ("--width", "--ff", "--heads", "--state", "--conv", "--position"),
    "certify": ("--layers", "--width", "--ff", "--heads", "--state"),
    "explain": ("--width", "--index"),
}
NEEDED = {"certify": ["--n", "3"], "explain": ["--bits", "101", "--index", "2"]}
FAMILIES = ("softmax-full", "linear-causal", "linear-full", "rnn", "ssm", "gru", "mamba2", "x")


def test_commands_end_with_0_or_with_2_and_a_sentence(capsys, monkeypatch):
    draw = random.Random(0)
    codes = set()
    for _ in range(150):
        command = draw.choice(list(OPTIONS))
        given = [command, *([] if command == "complexity" else [draw.choice(("rhi", "lhi"))])]
        given += [draw.choice(FAMILIES), *NEEDED.get(command, [])]
        for option in draw.sample(OPTIONS[command], 2):
            given += [option, draw.choice(NUMBERS)]
        given += draw.choice(([], ["--model", "trained"]))
        monkeypatch.setattr(sys, "argv", ["ithbit", *given])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
        said = capsys.readouterr()
        assert code in (0, 2), given
        assert "Traceback" not in said.err, given
        assert said.err.strip() if code else said.out.strip(), given
        codes.add(code)
    assert codes == {0, 2}
