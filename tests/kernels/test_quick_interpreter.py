"""The quick interpreter is Triton's own, bit for bit."""

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton", reason="the kernels need triton")

from tests.support import quick_interpreter as quick
from tests.support.stacked_truth import by_kernels, fresh_step, started
from triton.runtime import interpreter

from ithbit.spec import ModelSpec, Protocol


@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels are compiled there")
@pytest.mark.parametrize("family", ["softmax-causal", "gru"])
def test_a_step_has_the_same_bits(family, monkeypatch) -> None:
    start = started(ModelSpec("rhi", family, 1), n_seeds=1)
    found = by_kernels(start, 1, Protocol(), fresh_step(start, 1))
    assert interpreter._patch_lang is quick._once
    monkeypatch.setattr(interpreter, "_patch_lang", quick._replace)
    monkeypatch.setattr(interpreter, "_get_np_dtype", quick._np_dtype)
    for kind, name, its_own in quick.ITS_OWN:
        assert vars(kind)[name] is not its_own
        monkeypatch.setattr(kind, name, its_own)
    builder = interpreter.interpreter_builder
    monkeypatch.setattr(builder, "options", replace(builder.options, sanitize_overflow=True))
    assert by_kernels(start, 1, Protocol(), fresh_step(start, 1)).equals(found)
