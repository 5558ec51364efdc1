"""The page as text: what is in it, what is refused, and which words stand for which verdict."""

import re
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from safetensors.numpy import load, save
from tests.support.made_up import drawn, entry, renamed
from tests.support.paths import TESTS, WEIGHTS

import ithbit
from ithbit.errors import SpecError
from ithbit.explorer import words
from ithbit.explorer.page import (
    LONGEST,
    MOST_BYTES,
    construction,
    gather,
    of_run,
    render_page,
    write_page,
)
from ithbit.html import script_hash
from ithbit.spec import ModelSpec
from ithbit.store.reading import read_verification
from ithbit.store.records import Proof, Verdict

STORE = TESTS / "stores" / "v0_1"
HOSTILE = "</script><img src=x onerror=\"document.title='taken'\">&amp;<!--"
SPEC = ModelSpec("rhi", "softmax-full", 4)


def shipped(name: str) -> Path:
    (folder,) = WEIGHTS.glob(f"{name}-*")
    return folder


def test_a_run_and_its_construction() -> None:
    made = gather([shipped("uniform/lhi_n16_softmax-causal_L2d16h2_polynomial_s0")])
    assert [each.standing.verdict for each in made] == [
        "right on all inputs",
        "certified for all inputs",
    ]
    assert {each.spec.n_bits for each in made} == {16}
    assert made[1].weights.keys() == made[0].weights.keys()


def test_two_runs_side_by_side() -> None:
    names = [
        f"{kind}/lhi_n64_softmax-causal_L2d16h2_polynomial_s0" for kind in ("uniform", "mixed")
    ]
    made = gather([shipped(name) for name in names], with_construction=False)
    assert [each.standing.verdict for each in made] == ["refuted", "not refuted"]
    assert made[0].case is not None
    assert made[0].case.margin is not None
    assert made[0].case.margin < 0


def test_no_construction_where_none_is_known() -> None:
    assert construction(ModelSpec("rhi", "gru", 8)) is None
    assert construction(ModelSpec("lhi", "mamba2", 8, 1)) is None  # it takes two layers
    assert construction(ModelSpec("rhi", "softmax-full", 8, positions="rotary")) is not None


def test_runs_of_an_earlier_version() -> None:
    (folder,) = STORE.glob("rhi_n8_softmax-full_L1d16h2_polynomial_s1-*")
    assert of_run(folder).standing.verdict == "right on all inputs"


def test_a_record_of_other_weights_does_not_count(tmp_path: Path) -> None:
    source = shipped("uniform/lhi_n16_gru_L1d16h2_polynomial_s0")
    other = shipped("uniform/lhi_n16_gru_L1d16h2_polynomial_s1")
    folder = tmp_path / source.name
    folder.mkdir()
    for file in source.iterdir():
        folder.joinpath(file.name).write_bytes(file.read_bytes())
    assert of_run(folder).standing.verdict == "right on all inputs"
    weights = load(other.joinpath("weights.safetensors").read_bytes())
    folder.joinpath("weights.safetensors").write_bytes(save(weights))
    assert of_run(folder).standing.verdict == "not verified"


def test_weights_written_by_hand_are_not_called_trained(tmp_path: Path) -> None:
    ithbit.construct("lhi", "gru", 4, model="trained", out=tmp_path)
    (folder,) = tmp_path.iterdir()
    made = of_run(folder)
    assert (made.label, made.origin) == words.BY_HAND
    assert made.standing.verdict == "not verified"


@pytest.mark.parametrize("verdict", get_args(Verdict))
def test_every_verdict_keeps_its_word(verdict: str) -> None:
    record = read_verification(str(shipped("uniform/lhi_n32_gru_L1d16h2_polynomial_s3")))
    assert record is not None
    proof = verdict == "proved on all inputs"
    bounded = verdict == "bounded (unchecked)"
    kept = Proof("bounded" if bounded else "proved", 1.0) if proof or bounded else None
    found = replace(record.found, verdict=verdict, proof=kept)
    said = words.standing(found)
    assert said.verdict == verdict
    assert said.meaning
    assert ("proof covers" in said.meaning) == proof
    assert (said.tone == "good") == (verdict in ("right on all inputs", "proved on all inputs"))
    assert (said.tone == "bad") == (verdict == "refuted")


def test_a_verdict_of_a_later_version_stands_as_it_is() -> None:
    record = read_verification(str(shipped("uniform/lhi_n32_gru_L1d16h2_polynomial_s3")))
    assert record is not None
    said = words.standing(replace(record.found, verdict="likely"))  # type: ignore[arg-type]
    assert (said.verdict, said.meaning, said.tone) == ("likely", "", "open")


def test_hostile_text_is_escaped() -> None:
    page = render_page([renamed(entry(SPEC, drawn(SPEC)), HOSTILE)])
    assert "<img" not in page
    assert page.count("</script>") == 2
    assert page.count("&lt;/script&gt;") == 1  # in the title; elsewhere JSON has it


def test_one_script_and_nothing_from_outside() -> None:
    page = render_page([entry(SPEC, drawn(SPEC))])
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    assert f"script-src 'sha256-{script_hash(script)}'" in page
    assert re.findall(r"https?://", page) == []


@pytest.mark.parametrize(
    ("runs", "said"),
    [
        ([], "one run or two"),
        (["uniform/lhi_n16_gru_L1d16h2_polynomial_s0"] * 3, "got 3"),
        (
            [
                "uniform/lhi_n16_gru_L1d16h2_polynomial_s0",
                "uniform/lhi_n32_gru_L1d16h2_polynomial_s0",
            ],
            "must have the same task and the same n",
        ),
    ],
)
def test_what_does_not_fit_on_a_page(runs: list[str], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        gather([shipped(name) for name in runs])


def test_a_page_too_large_is_refused(tmp_path: Path) -> None:
    spec = replace(SPEC, d_model=256, d_ff=256)
    with pytest.raises(SpecError, match=f"at most {MOST_BYTES:,}"):
        write_page([entry(spec, drawn(spec))], tmp_path / "page.html")
    assert list(tmp_path.iterdir()) == []


TINY = ithbit.Protocol(batch_size=8, epoch_examples=8, held_out_examples=8, max_epochs=1)


def test_too_long_for_a_person(tmp_path: Path) -> None:
    n = LONGEST + 1
    runs = ithbit.train(
        "lhi", "gru", n=n, seeds=[0], protocol=TINY, store=tmp_path, workers=1, device="cpu"
    )
    with pytest.raises(SpecError, match=f"up to n = {LONGEST}, got n = {n}"):
        ithbit.explore(runs, store=tmp_path, out=tmp_path / "page.html")
