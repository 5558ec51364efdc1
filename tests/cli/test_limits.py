"""Absurd sizes: a sentence within little memory, and nothing is left behind."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SWEEP = """
task = "rhi"
family = "gru"
n = [8, 100000000]
layers = 1
seeds = "0"
"""

# Every command in one process, which may take 300 MB beside what it has after its imports.
PROGRAM = """
import io, json, resource, sys
from contextlib import redirect_stderr, redirect_stdout
import ithbit.api.theory, ithbit.api.training, ithbit.theory.verdicts
import ithbit.sweeps.runner, ithbit.external_models, ithbit.verification.run_verification
import ithbit.contract.probe, ithbit.reporting.page.probe
from ithbit.cli import main
words = dict(line.split(":", 1) for line in open("/proc/self/status"))
limit = 1024 * int(words["VmSize"].split()[0]) + 300 * 1024**2
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
found = []
for command in json.loads(sys.argv[1]):
    sys.argv = ["ithbit", *command.split()]
    out, err, code = io.StringIO(), io.StringIO(), None
    with redirect_stdout(out), redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
        except BaseException as error:
            code = repr(error)
    found.append([code, out.getvalue(), err.getvalue()])
print(json.dumps(found))
"""

REFUSED = {
    "train rhi gru --n 100000000": "needs at least 6.4 TB of memory, but this machine's free",
    "train lhi softmax-full --n 100000000 --positions learned --device cpu": "needs at least",
    "train rhi gru --layers 100000000": "needs at least",
    "train rhi softmax-full --width 100000000 --heads 1": "needs at least",
    "train rhi gru --width 1000000000": "width must be at most 100,000,000, got 1000000000",
    "sweep big.toml": "training rhi_n100000000_gru_L1d16h2_polynomial_s0 needs at least 6.4 TB",
    "data rhi --n 100000": "making the inputs of n = 100,000 needs at least",
    "sample rhi --n 1000000000": "at most 1,000,000 bits, got n=1000000000 with count=1; take",
    "sample rhi --count 1000000000": "at most 1,000,000 bits, got n=8 with count=1000000000",
    "certify lhi rnn --n 100000000": "written for n up to 14267, got n = 100000000; take a shorter",
    "bound rhi rnn --layers 100000": "computed for at most 500 layers, got 100,000; take fewer",
    "bound rhi rnn --width 10000000000000": "width must be at most 1,000,000,000,000, got",
    "complexity rnn --width 10000000000000": "width must be at most 1,000,000,000,000",
    "probe torch:lstm --no-train --rank-n 10000000000": "probing lstm needs at least 20 TB",
    "probe torch:lstm --no-train --n 1000000000000": "take a smaller n, rank length or width",
    "score answers.npz --data absurd": "making the inputs of n = 1,000,000,000 needs at least",
}

ANSWERED = {
    "params rhi gru --n 100000000 --positions learned": "3200001761",
    "verdict rhi softmax-full --n 100000000": "possible (Theorem 12c)",
    "verdict lhi ssm --layers 1000000 --n 1000000000000": "and 999,998 identity layers",
    "verdict rhi rnn --layers 100000": "bounds are computed for at most 500 layers, got 100,000",
    "verdict --n 1000000000000": "What is proved holds for every n, so for",
    "bound rhi linear-causal --layers 500 --width 1000000000000 --n 1000000000000": "vacuous",
    "complexity softmax-causal --position 1000000000000": "at token k = 1000000000000",
}


@pytest.mark.skipif(sys.platform != "linux", reason="limits the memory as Linux counts it")
def test_absurd_sizes_are_answered_or_refused_within_little_memory(tmp_path: Path) -> None:
    (tmp_path / "big.toml").write_text(SWEEP)
    (tmp_path / "absurd").mkdir()
    record = {"schema": 1, "task": "rhi", "n_bits": 10**9, "seeds": [0], "sets": ["held_out"]}
    (tmp_path / "absurd/data.json").write_text(json.dumps(record))
    (tmp_path / "answers.npz").write_bytes(b"")
    before = sorted(tmp_path.rglob("*"))
    commands = json.dumps([*REFUSED, *ANSWERED])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, commands], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    found = dict(zip([*REFUSED, *ANSWERED], json.loads(done.stdout), strict=True))
    for command, sentence in REFUSED.items():
        code, _, err = found[command]
        assert (code, err.count("ithbit: ")) == (2, 1), (command, code, err)
        assert sentence in " ".join(err.split()), command
    for command, text in ANSWERED.items():
        code, out, _ = found[command]
        assert code == 0, (command, code)
        assert text in " ".join(out.split()), command
    assert sorted(tmp_path.rglob("*")) == before
