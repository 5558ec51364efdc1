"""Numbers of the wrong kind are met with a sentence, wherever Python hands them over."""

import numpy as np
import pytest

import ithbit
from ithbit import ModelSpec, Protocol, RunSpec
from ithbit.errors import SpecError
from ithbit.theory.architecture import architecture


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: Protocol(max_epochs="3"), "protocol: max_epochs must be a whole number, got '3'"),
        (lambda: Protocol(eps=None, batch_size=2.5), "eps must be a number, got None; batch_size"),
        (lambda: Protocol(eps=True), "eps must be a number, got True"),
        (lambda: ModelSpec("rhi", "gru", n_bits=8.0), "n must be a whole number, got 8.0"),
        (lambda: ModelSpec("rhi", "gru", True), "n must be a whole number, got True"),
        (lambda: RunSpec(ModelSpec("rhi", "gru", 8), "0"), "seed must be a whole number, got '0'"),
        (lambda: architecture("rnn", width=[16]), r"width must be a whole number, got \[16\]"),
        (lambda: ithbit.construct("rhi", "softmax-full", n="4"), "n must be a whole"),
        (lambda: ithbit.verdict("rhi", "rnn", layers=1.5, n=8), "layers must be a whole"),
        (lambda: ithbit.verdict("rhi", "rnn", layers=1, n="8"), "n must be a whole"),
        (lambda: ithbit.train("rhi", "gru", n="8"), "n must be a whole number, got '8'"),
        (lambda: ithbit.train("rhi", "gru", n=8, seeds=3), r"such as range\(5\) or \[3\], got 3"),
        (lambda: ithbit.train("rhi", "gru", n=8, seeds="0 to 4"), "seeds are numbers from 0 and"),
    ],
)
def test_a_number_of_the_wrong_kind_gets_a_sentence(call, sentence) -> None:
    with pytest.raises(SpecError, match=sentence):
        call()


def test_numpys_numbers_become_plain_ones() -> None:
    protocol = Protocol(learning_rate=np.float32(0.5), max_epochs=np.int64(3), clip_norm=5)
    assert [type(v) for v in (protocol.learning_rate, protocol.max_epochs, protocol.clip_norm)] == [
        float,
        int,
        int,
    ]
    run = RunSpec(ModelSpec("rhi", "gru", np.int64(8)), np.uint8(1), Protocol())
    assert run.run_id == RunSpec(ModelSpec("rhi", "gru", 8), 1, Protocol()).run_id
