"""A weights file is compared with the spec before anything is allocated, and the spec with it."""

import json
import resource
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save, save_file
from tests.support.synthetic_store import Plan, write_run

import ithbit
from ithbit.errors import StoreError
from ithbit.models import classifier
from ithbit.models.layer_source import family_of
from ithbit.spec import ModelSpec, RunSpec
from ithbit.verification.run_verification import params_of
from ithbit.verification.stored_run import read_stored_run

RUN = RunSpec(ModelSpec("lhi", "softmax-full", 2, n_layers=2, d_model=4), 0)
Damage = Callable[[Path], object]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Two runs with weights, and a third that a test may damage."""
    for seed in range(3):
        stored(tmp_path, replace(RUN, seed=seed))
    return tmp_path


def stored(store: Path, run: RunSpec, model: ModelSpec | None = None) -> Path:
    folder = write_run(store, Plan(run, False, 0.75, 5))
    save_file(classifier.init(model or run.model, run.seed), folder / "weights.safetensors")
    return folder


def as_dtype(dtype: torch.dtype) -> Damage:
    def damage(file: Path) -> None:
        save_file({name: value.to(dtype) for name, value in load_file(file).items()}, file)

    return damage


def changed(change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> Damage:
    def damage(file: Path) -> None:
        save_file(change(load_file(file)), file)

    return damage


def header(**fields: object) -> Damage:
    """A file whose header says this of its first tensor."""

    def damage(file: Path) -> None:
        data = file.read_bytes()
        size = int.from_bytes(data[:8], "little")
        said = json.loads(data[8 : 8 + size])
        said["embed"] |= fields
        text = json.dumps(said).encode()
        file.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + size :])

    return damage


DAMAGES: dict[str, tuple[Damage, str]] = {
    **{
        str(dtype): (as_dtype(dtype), f"are not float32: .* is {name}")
        for dtype, name in {
            torch.float64: "F64",
            torch.float16: "F16",
            torch.bfloat16: "BF16",
            torch.int64: "I64",
            torch.int8: "I8",
            torch.bool: "BOOL",
        }.items()
    },
    "one of another dtype": (
        changed(lambda params: params | {"embed": params["embed"].double()}),
        "'embed' is F64",
    ),
    "empty": (lambda file: file.write_bytes(b""), "are damaged"),
    "truncated": (lambda file: file.write_bytes(file.read_bytes()[:-1]), "are damaged"),
    "longer": (lambda file: file.write_bytes(file.read_bytes() + b"0"), "are damaged"),
    "random": (lambda file: file.write_bytes(bytes(range(256)) * 9), "are damaged"),
    "a long header": (
        lambda file: file.write_bytes(b"\xff" * 7 + b"\x7f" + file.read_bytes()[8:]),
        "are damaged",
    ),
    "a large shape": (header(shape=[1 << 40, 1 << 40]), "are damaged"),
    "offsets beyond the end": (header(data_offsets=[0, 1 << 50]), "are damaged"),
    "no such dtype": (header(dtype="F33"), "are damaged"),
    "extra": (changed(lambda params: params | {"x": torch.zeros(1)}), "do not fit its model"),
    "missing": (
        changed(lambda params: {n: v for n, v in params.items() if n != "embed"}),
        "do not fit",
    ),
    "renamed": (
        changed(lambda params: {n.replace("qkv", "kqv"): v for n, v in params.items()}),
        "do not fit",
    ),
    "turned": (changed(lambda params: params | {"embed": params["embed"].T.contiguous()}), "fit"),
    "of size zero": (changed(lambda params: params | {"embed": torch.zeros(0)}), "do not fit"),
    "none": (changed(lambda params: {}), "do not fit"),
    "a folder": (lambda file: (file.unlink(), file.mkdir()), "not a regular file"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_one_damaged_file_is_named_and_the_others_are_verified(store: Path, name: str) -> None:
    damage, reason = DAMAGES[name]
    folder = store / RUN.folder
    damage(folder / "weights.safetensors")
    found = ithbit.verify(all_runs=True, store=store, device="cpu")
    assert (len(found), len(found.set_aside)) == (2, 1)
    with pytest.raises(StoreError, match=reason) as refused:
        ithbit.load(RUN, store=store)
    assert str(refused.value) in found.set_aside[0]
    assert RUN.name in found.set_aside[0]
    with pytest.raises(StoreError, match=reason):
        ithbit.explore(RUN, store=store, out=store / "page.html")


def test_weights_that_are_not_finite_are_refuted(store: Path) -> None:
    file = store / RUN.folder / "weights.safetensors"
    for value in (torch.nan, torch.inf):
        params = load_file(file)
        params["blocks.1.qkv.weight"][0, 0] = value
        save_file(params, file)
        (found,) = ithbit.verify(RUN, store=store, device="cpu")
        assert found.verdict == "refuted"


@pytest.mark.parametrize(
    ("family", "sizes"),
    [
        *product(
            ("softmax-full", "linear-causal", "gru", "mamba2"),
            ({"d_model": 60_000}, {"d_model": 10**8}, {"n_layers": 10**8}),
        ),
        ("softmax-causal", {"d_ff": 10**8}),
        ("mamba2", {"d_state": 10**8}),
        ("gru", {"n_bits": 10**9, "positions": "learned"}),
    ],
    ids=str,
)
def test_a_spec_of_enormous_sizes_allocates_nothing(tmp_path: Path, family: str, sizes) -> None:
    small = ModelSpec("lhi", family, 2, d_model=4)
    run = RunSpec(replace(small, **sizes), 0)
    stored(tmp_path, run, small)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(StoreError, match="do not fit its model"):
        _ = read_stored_run(tmp_path / run.folder).weights
    assert len(ithbit.verify(all_runs=True, store=tmp_path, device="cpu").set_aside) == 1
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 1 << 20  # kilobytes


def test_nor_does_a_layer_of_the_users_own(tmp_path: Path) -> None:
    family, code = family_of("torch:lstm")
    small = ModelSpec("lhi", family, 2, d_model=4, code=code)
    for sizes in ({"d_model": 60_000}, {"n_layers": 10**8}):
        stored(tmp_path, run := RunSpec(replace(small, **sizes), 0), small)
        with pytest.raises(StoreError, match="do not fit its model"):
            ithbit.load(run, store=tmp_path)
    assert len(ithbit.verify(all_runs=True, store=tmp_path, device="cpu").set_aside) == 2


def counts(spec: ModelSpec) -> tuple[int, int]:
    params = classifier.init(spec, 0)
    return len(params), sum(value.numel() for value in params.values())


def test_shapes_are_those_of_the_initial_weights(spec) -> None:
    params = classifier.init(spec, 0)
    found = classifier.shapes(spec, 0, *counts(spec))
    assert found is not None
    assert list(found.items()) == [(name, tuple(value.shape)) for name, value in params.items()]
    if not spec.code:
        assert list(params_of(RunSpec(spec, 0), save(params))) == list(params)
