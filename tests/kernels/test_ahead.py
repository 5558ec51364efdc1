"""Kernels compiled in one process are found by another."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="the kernels need triton")

NAMES = """
import sys
import ithbit.kernels.step
from ithbit.kernels import attention_rows, gru_layer, linear_mix
from ithbit.kernels import mamba2_last, mamba2_mix, mamba2_rows
kernels = [
    attention_rows.enter_rows, attention_rows.project_back, attention_rows.answer_rows,
    gru_layer.run_layer, linear_mix.mix_back,
    mamba2_last.finish, mamba2_mix.mix, mamba2_rows.project_back,
]
print(*sorted(kernel.cache_key for kernel in kernels[:: int(sys.argv[1])]))
"""


def test_a_kernel_has_one_name_in_triton_s_cache() -> None:
    """Whichever kernel a process launches first: Triton's own names depend on that."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    forwards, backwards = (
        subprocess.run(
            [sys.executable, "-c", NAMES, step],
            env=environment, capture_output=True, text=True, check=True,
        ).stdout
        for step in ("1", "-1")
    )  # fmt: skip
    assert forwards == backwards
    assert len(set(forwards.split())) == 8
