"""States of fla's layers: a sentence where fla is missing; stand-ins that compute the layer."""

import csv
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.paths import ROOT

SCRIPT = ROOT / "experiments" / "fla_states.py"
HIDDEN = """
import runpy, sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "fla":
            raise ImportError("no fla here")
sys.meta_path.insert(0, Missing())
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
BY_HAND = """
import runpy, sys, warnings
import torch
from torch.nn.functional import silu, softplus

warnings.simplefilter("ignore")
script = runpy.run_path(sys.argv[1])
script["stand_ins"]()
layer = script["built"]("GatedDeltaNet")
x = torch.randn(9, 16, dtype=torch.float64)
w = {name: value.detach() for name, value in layer.layer.named_parameters()}


def through(name):
    return x @ w[name + "_proj.weight"].T


def convolved(name):
    seen = torch.cat([torch.zeros(3, 16, dtype=x.dtype), through(name)])
    return silu(sum(seen[j : j + 9] * w[name + "_conv1d.weight"][:, 0, j] for j in range(4)))


def unit(a):
    return a / (a.square().sum() + 1e-6).sqrt()


q, k, v = map(convolved, "qkv")
decay = (-w["A_log"].exp() * softplus(through("a") + w["dt_bias"])).exp()
beta, gate = through("b").sigmoid(), silu(through("g"))
out = torch.empty_like(x)
for h in range(2):
    part, state = slice(8 * h, 8 * h + 8), torch.zeros(8, 8, dtype=x.dtype)
    for t in range(9):
        key, state = unit(k[t, part]), decay[t, h] * state
        state = state + beta[t, h] * torch.outer(key, v[t, part] - key @ state)
        read = unit(q[t, part]) @ state / 8**0.5
        normed = read / (read.square().mean() + 1e-5).sqrt() * w["o_norm.weight"]
        out[t, part] = normed * gate[t, part]
print(float((layer(x[None])[0] - out @ w["o_proj.weight"].T).abs().max()))
"""

ITS_OWN = """
import runpy, sys, warnings
import torch

warnings.simplefilter("ignore")
script = runpy.run_path(sys.argv[1])
from fla.ops.generalized_delta_rule.dplr.naive import dplr_recurrence
from fla.ops.kda.naive import naive_recurrent_kda

q, k, v, a, b, g = torch.randn(6, 2, 13, 2, 8, dtype=torch.float64)
g, a, b, beta = -g.abs(), a / 3, b / 3, torch.rand(2, 13, 2).double()
unit = script["unit"]
with script["Double"]():
    mine = *script["delta"](q, k, v, g, beta), *script["rwkv7"](q, g, k, v, a, b)
    delta = naive_recurrent_kda(unit(q), unit(k), v, g, beta, output_final_state=True)
    heads = (x.transpose(1, 2) for x in (q * 8**0.5, k, v, a, b, g))
    out, state = dplr_recurrence(*heads)
print(max(float((x - y).abs().max()) for x, y in zip(mine, (*delta, out.transpose(1, 2), state))))
"""


def run(*arguments: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=250)


def test_without_fla_it_says_what_to_install() -> None:
    done = run("-c", HIDDEN, SCRIPT)
    assert done.returncode == 2
    needs = "this needs flash-linear-attention (no fla here): ithbit[reference-gpu]"
    assert done.stderr.splitlines() == [needs]


def test_a_layer_without_stand_ins_is_told() -> None:
    done = run(SCRIPT, "PaTHAttention")
    assert done.returncode == 2
    assert "no stand-ins for PaTHAttention; there are: GatedDeltaNet" in done.stderr


# Not importorskip: fla warns when it finds no GPU, and takes seconds to import.
with_fla = pytest.mark.skipif(not importlib.util.find_spec("fla"), reason="fla is not installed")


@with_fla
def test_the_stand_ins_of_gated_deltanet_compute_its_recurrence() -> None:
    done = run("-c", BY_HAND, SCRIPT)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 1e-13


@with_fla
def test_the_form_without_a_loop_computes_the_librarys_recurrences() -> None:
    """The two most general: a delta rule with decay, and erasing by vectors of their own."""
    done = run("-c", ITS_OWN, SCRIPT)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 1e-13


@with_fla
def test_the_state_of_gated_deltanet_is_its_matrices_and_three_tokens(tmp_path: Path) -> None:
    where = tmp_path / "states.csv"
    done = run(SCRIPT, "GatedDeltaNet", "-o", where)
    assert done.returncode == 0, done.stderr
    (row,) = csv.DictReader(where.read_text().splitlines())
    assert (row["declared"], row["measured"]) == ("320", str(2 * 8 * 8 + 3 * 16))
