"""Arguments of a wrong type: one sentence each, and never an error from inside."""

import pytest
import torch

import ithbit
from ithbit.errors import IthbitError

MODEL = ithbit.ModelSpec("rhi", "gru", n_bits=4)
WRONG_PROTOCOL = "protocol must be a Protocol, as in ithbit.Protocol"


@pytest.mark.parametrize(
    ("name", "given", "options", "sentence"),
    [
        ("train", ("rhi", "gru"), {"protocol": {"max_epochs": 1}}, WRONG_PROTOCOL),
        ("probe", (torch.nn.Identity,), {"protocol": {}}, WRONG_PROTOCOL),
        ("capacity", ("rhi", "gru"), {"protocol": {"max_epochs": 1}}, WRONG_PROTOCOL),
        ("train", ("rhi", "gru"), {"workers": "2"}, "workers must be a whole number, got '2'"),
        ("train", ("rhi", "gru"), {"store": None}, "store must be a path, got NoneType"),
        ("train", ("rhi", "gru"), {"device": torch.device("cpu")}, "unknown device device"),
        (
            "train",
            ("rhi", torch.nn.Linear(16, 16)),
            {},
            "got an instance of Linear; give the class",
        ),
        ("sweep", ({"task": ["rhi"]},), {}, "a sweep is the name .*, got 'task' in a dict"),
        ("sweep", (["smoke"],), {}, "a sweep is the name .*, got 'smoke' in a list"),
        ("sweep", (MODEL,), {}, "a sweep is the name .*, got ModelSpec"),
        ("sweep", (None,), {}, "a sweep is the name .*, got None"),
        ("sweep", ("smoke",), {"n": "4"}, "n must be a whole number, got '4'"),
        ("status", ({"task": "rhi"},), {"store": "."}, "a sweep is the name .*, got 'task'"),
        ("verify", ("a",), {"budget": 1e6}, "budget must be a whole number, got 1000000.0"),
        ("verify", ("a",), {"seconds": "9"}, "seconds must be a number, got '9'"),
        ("verify", ("a",), {"seed": "9"}, "seed must be a whole number, got '9'"),
        ("certify", (MODEL,), {}, "the weights of a construction, got ModelSpec"),
        ("certify", ("rhi", "rnn"), {"n": "4"}, "n must be a whole number, got '4'"),
        ("explain", (MODEL,), {"bits": "1", "index": 1}, "the weights of a construction, got"),
        ("explain", ("rhi", "rnn"), {"bits": 101, "index": 1}, "bits must be a string of 0 and 1"),
        ("explain", ("rhi", "rnn"), {"bits": "1", "index": "1"}, "index must be a whole number"),
        ("check_certificate", (MODEL,), {}, "file must be a path, got ModelSpec"),
        ("bound", ("rhi", 3), {}, "theory is about families by name, got 3; choose one of"),
        ("bound", ("rhi", "rnn"), {"n": "8"}, "n must be a whole number, got '8'"),
        ("score", ([0, 1],), {}, "predictions must be a path, got list"),
        ("data", ("rhi",), {"n": "8"}, "n must be a whole number, got '8'"),
        ("sample", ("rhi",), {"count": "8"}, "count must be a whole number, got '8'"),
        ("probe", (torch.nn.Identity,), {"width": "2"}, "width must be a whole number, got '2'"),
        ("probe", (torch.nn.Identity,), {"n": "8"}, "n must be a whole number, got '8'"),
        ("capacity", ("rhi", "gru"), {"minutes": "5"}, "minutes must be a number, got '5'"),
        ("capacity", ("rhi", "gru"), {"need": "5"}, "need must be a whole number, got '5'"),
        ("report", ([MODEL],), {}, "store must be a path, got list"),
        ("compare", ("results/paper",), {"alpha": "x"}, "alpha must be a number, got 'x'"),
        ("merge", (None,), {}, "source must be a path, got NoneType"),
    ],
)
def test_a_wrong_type_is_a_sentence(name, given, options, sentence, tmp_path, monkeypatch) -> None:
    if name != "compare":  # which reads a store first
        monkeypatch.chdir(tmp_path)
    with pytest.raises(IthbitError, match=sentence):
        getattr(ithbit, name)(*given, **options)
    assert not list(tmp_path.iterdir())


def test_one_run_is_a_sweep_too(tmp_path) -> None:
    run = ithbit.RunSpec(MODEL, seed=0)
    assert list(ithbit.sweep(run, store=tmp_path, dry_run=True, device="cpu").runs) == [run]
