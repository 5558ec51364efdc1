import json
import math
from dataclasses import fields, make_dataclass, replace

import pytest

from ithbit.errors import SpecError
from ithbit.spec import ModelSpec, Protocol, RunSpec, run_from_json, since_0_2

RUN = RunSpec(ModelSpec("lhi", "mamba2", n_bits=64, n_layers=2), seed=3)


def test_the_defaults_are_the_paper_s_settings() -> None:
    """The table of training and evaluation settings, row by row."""
    paper = Protocol()
    assert (paper.learning_rate, paper.beta1, paper.beta2) == (1e-3, 0.9, 0.999)
    assert (paper.eps, paper.weight_decay, paper.clip_norm) == (1e-8, 0.0, 5.0)
    assert (paper.batch_size, paper.epoch_examples, paper.max_epochs) == (256, 50_000, 500)
    assert (paper.plateau_factor, paper.plateau_patience) == (0.5, 30)
    assert (paper.min_learning_rate, paper.stop_loss) == (1e-5, 1e-6)
    assert paper.held_out_examples == 2_000
    assert not paper.stop_when_solved
    assert paper.epoch_steps == 196


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        *((name, 0, "must be at least 1, got 0") for name in ("batch_size", "epoch_examples")),
        *((name, -1, "must be at least 1") for name in ("held_out_examples", "max_epochs")),
        *(
            (name, value, f"{name} must be positive and finite, got {value}")
            for name in ("learning_rate", "eps", "clip_norm")
            for value in (0.0, -1.0, math.inf, math.nan)
        ),
        *(
            (name, value, f"{name} must be 0 or more and finite")
            for name in ("weight_decay", "min_learning_rate", "stop_loss")
            for value in (-1.0, math.inf, math.nan)
        ),
        ("plateau_patience", -1, "plateau_patience must be 0 or more and finite, got -1"),
        *(
            (name, value, f"{name} must be 0 or more and below 1")
            for name in ("beta1", "beta2", "plateau_factor", "plateau_threshold")
            for value in (-0.1, 1.0, math.nan)
        ),
    ],
)
def test_a_protocol_is_checked(name, value, said) -> None:
    with pytest.raises(SpecError, match=f"^protocol: .*{said}"):
        Protocol(**{name: value})


def test_all_problems_of_a_protocol_at_once() -> None:
    with pytest.raises(SpecError, match=r"batch_size .*; max_epochs .*; clip_norm"):
        Protocol(batch_size=0, max_epochs=0, clip_norm=-1)


@pytest.mark.parametrize("seed", [-1, 1 << 63])
def test_a_seed_is_checked(seed) -> None:
    with pytest.raises(SpecError, match=f"seeds must be 0 or more and below 2.63, got {seed}"):
        replace(RUN, seed=seed)


def test_a_spec_travels_as_json() -> None:
    run = replace(RUN, protocol=Protocol(learning_rate=0.1 + 0.2, stop_when_solved=True))
    again = run_from_json(json.loads(json.dumps(run.to_json())))
    assert again == run
    assert again.run_id == run.run_id
    with pytest.raises(TypeError):
        run_from_json(run.to_json() | {"protocol": {"rate": 1}})
    with pytest.raises(ValueError, match="seed must be a whole number, got '0'"):
        run_from_json(run.to_json() | {"seed": "0"})


def test_every_field_has_a_say_in_the_id() -> None:
    """Two different runs never share a folder."""
    changed = [replace(RUN, seed=4)]
    for field in fields(Protocol):
        value = getattr(RUN.protocol, field.name)
        if field.name == "examples":
            changed.append(replace(RUN, protocol=replace(RUN.protocol, examples="mixed")))
            continue
        other = not value if isinstance(value, bool) else value * 2 if value < 0.5 else value / 2
        if field.type is int:
            other = value + 1
        if other == value:
            other = 0.25
        changed.append(replace(RUN, protocol=replace(RUN.protocol, **{field.name: other})))
    for change in (
        {"task": "rhi"},
        {"family": "gru"},
        {"n_bits": 63},
        {"n_layers": 3},
        {"d_model": 32},
        {"n_heads": 4},
        {"d_ff": 65},
        {"d_state": 8},
        {"positions": "none"},
        *({"family": "layers.py:Mine", "code": digit * 12} for digit in "ab"),
    ):
        changed.append(replace(RUN, model=replace(RUN.model, **change)))
    ids = [run.run_id for run in (RUN, *changed)]
    assert len(changed) == 1 + len(fields(Protocol)) + len(fields(ModelSpec)) + 1
    assert len(set(ids)) == len(ids)


def test_the_id_does_not_change_between_versions() -> None:
    """A store written by an earlier version is still this run's: nothing is trained again."""
    assert RUN.run_id == "ad34a7da6fea"
    assert "examples" not in RUN.to_json()["protocol"]
    assert RUN.name == "lhi_n64_mamba2_L2d16h2_polynomial_s3"


@pytest.mark.parametrize("part", ["model", "protocol"])
@pytest.mark.parametrize(
    ("default", "other"), [("", "x"), (0, 1), (False, True), (0.0, 0.5), (1, 1.5)]
)
def test_a_later_field_counts_only_where_it_is_set(part: str, default, other) -> None:
    spec = getattr(RUN, part)
    new = [("later", type(other), since_0_2(default))]
    later = make_dataclass("Later", new, bases=(type(spec),), frozen=True)
    quiet, loud = (
        replace(RUN, **{part: later(**vars(spec), **set_)}) for set_ in ({}, {"later": other})
    )
    assert (quiet.run_id, quiet.folder, quiet.to_json()) == (RUN.run_id, RUN.folder, RUN.to_json())
    assert loud.run_id != RUN.run_id
    assert loud.to_json()[part]["later"] == other
    # A field that is no `since_0_2` would change every id there is.
    careless = [("later", type(other), default)]
    kind = make_dataclass("Careless", careless, bases=(type(spec),), frozen=True)
    assert replace(RUN, **{part: kind(**vars(spec))}).run_id != RUN.run_id


def test_unknown_examples_get_a_sentence() -> None:
    assert Protocol(examples="mixed").examples == "mixed"
    with pytest.raises(SpecError, match="unknown examples 'even'; choose one of uniform, mixed"):
        Protocol(examples="even")


@pytest.mark.parametrize("name", ["task", "family", "positions"])
@pytest.mark.parametrize("value", [None, 3, ["gru"], {"a": 1}, [":"]])
def test_names_are_text(name, value) -> None:
    """What a file has in their place is not hashed."""
    fields = {"task": "lhi", "family": "gru", "n_bits": 3, name: value}
    with pytest.raises(SpecError, match=rf"{name} must be text"):
        ModelSpec(**fields)
