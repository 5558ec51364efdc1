"""Kernels compiled in one process are found by another, and the compiling is left at any time."""

import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="the kernels need triton")

from ithbit.kernels import compile_ahead as ahead
from ithbit.kernels.compile_ahead import KernelPrecompiler
from ithbit.spec import ModelSpec

MODELS = [ModelSpec(task, "gru", n, 2) for task in ("rhi", "lhi") for n in (4, 8)]
GPU = torch.device("cuda", 0)

NAMES = """
import os
import ithbit.kernels.step
from ithbit.kernels.attention import token_rows as attention_rows
from ithbit.kernels.gru import recurrence as gru_layer
from ithbit.kernels.attention import linear_mix
from ithbit.kernels.mamba2 import last_block as mamba2_last
from ithbit.kernels.mamba2 import mix as mamba2_mix
from ithbit.kernels.mamba2 import token_rows as mamba2_rows
kernels = [
    attention_rows.enter_rows, attention_rows.project_back, attention_rows.answer_rows,
    gru_layer.run_layer, linear_mix.mix_back,
    mamba2_last.finish, mamba2_mix.mix, mamba2_rows.project_back,
]
child = os.fork()  # a process each, with nothing but the imports behind it
names = sorted(kernel.cache_key for kernel in (kernels if child else kernels[::-1]))
if child:
    os.waitpid(child, 0)
print(*names, flush=True)
"""


def test_a_kernel_has_one_name_in_triton_s_cache() -> None:
    """Whichever kernel a process launches first: Triton's own names depend on that."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", NAMES], env=environment, capture_output=True, text=True, check=True
    )
    forwards, backwards = done.stdout.splitlines()
    assert forwards == backwards
    assert len(set(forwards.split())) == 8


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """Without a GPU: marks in a folder, and a process of our choice instead of one that compiles.

    Gives a function that takes what the process does for each of its `models`; `mark(model)` says
    that one is done.
    """
    monkeypatch.setattr(ahead, "_mark", lambda model, batch, device, kind: tmp_path / named(model))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (4 << 30, 4 << 30))

    def named(model: ModelSpec) -> str:
        return f"{model.task}{model.n_bits}"

    def use(work: str) -> None:
        begin = "import json, sys, time, pathlib\n"
        read = "models = [m for unit in json.load(sys.stdin)['units'] for m in unit]\n"
        mark = f"def mark(m): (pathlib.Path({str(tmp_path)!r}) / (m['task'] + str(m['n_bits'])))"
        code = begin + read + mark + ".touch()\nfor m in models:\n    " + work
        monkeypatch.setattr(ahead, "_COMMAND", (sys.executable, "-c", code))

    return use


def until(true) -> None:
    """Wait, but not for ever."""
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_each_model_is_ready_when_its_kernels_are(compiler) -> None:
    compiler("mark(m) if m['n_bits'] == 8 else time.sleep(600)")
    long, short = MODELS[1], MODELS[0]
    said: list[str] = []
    with KernelPrecompiler(MODELS, 256, GPU, said.append) as kernels:
        assert not kernels.ready(short)
        until(lambda: kernels.ready(long) and kernels.ready(MODELS[3]))
        assert not kernels.ready(short)
    assert kernels._processes  # and none is left
    assert all(process.poll() is not None for process in kernels._processes)
    assert said == ["compiling kernels, 2 at a time, once per machine"]


def test_what_does_not_compile_keeps_nobody_waiting_and_is_said_once(compiler) -> None:
    compiler("sys.exit('no such instruction')")
    said: list[str] = []
    with KernelPrecompiler(MODELS, 256, GPU, said.append) as kernels:
        until(lambda: all(map(kernels.ready, MODELS)))
    assert len(said) == 3  # at the start, and of each of two lengths
    assert "(no such instruction)" in said[1]


def test_of_few_or_marked_models_nothing_is_compiled(compiler) -> None:
    compiler("sys.exit('not to be started')")
    with KernelPrecompiler(MODELS[:2], 256, GPU, pytest.fail) as kernels:
        assert all(map(kernels.ready, MODELS[:2]))
    for model in MODELS:
        ahead._mark(model, 256, GPU, "uniform").touch()
    with KernelPrecompiler(MODELS, 256, GPU, pytest.fail) as kernels:
        assert all(map(kernels.ready, MODELS))


def test_a_mark_is_of_the_kernels_text_and_of_what_they_draw(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    uniform, mixed = (ahead._mark(MODELS[0], 256, GPU, kind) for kind in ("uniform", "mixed"))
    assert uniform != mixed
    folder = Path(ahead.__file__).parent
    texts = [path.read_bytes() for path in sorted(folder.rglob("*.py"))]
    assert len(texts) > len(list(folder.glob("*.py")))
    assert ahead._sources() == hashlib.sha256(b"".join(texts)).hexdigest()


def test_a_listener_that_wants_to_stop_is_heard(compiler) -> None:
    compiler("time.sleep(600)")

    def stop(text: str) -> None:
        raise KeyError(text)

    with (
        pytest.raises(KeyError, match="compiling kernels"),
        KernelPrecompiler(MODELS, 256, GPU, stop) as some,
    ):
        until(lambda: some._raised)
    with (
        pytest.raises(KeyError, match="compiling kernels"),
        KernelPrecompiler(MODELS, 256, GPU, stop) as some,
    ):
        until(lambda: some.ready(MODELS[0]))
