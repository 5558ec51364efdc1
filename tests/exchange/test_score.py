"""Inputs for models trained elsewhere, and what is made of their answers."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

import ithbit
from ithbit.errors import SpecError
from ithbit.external_models import adversarial_set, held_out_set, read_sets, score, write_sets
from ithbit.tasks.sampling import HELD_OUT_SEED


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_sets("lhi", 8, folder, [0, 1, 2], exhaustive=True)
    return folder


def answers(data: Path) -> dict[str, np.ndarray]:
    return {name: each.answer.copy() for name, each in read_sets(data)[2].items()}


def test_the_held_out_set_is_the_one_runs_are_judged_by() -> None:
    found = held_out_set(8, [3])
    (first,) = ithbit.sample("rhi", n=8, seed=3 + HELD_OUT_SEED)
    assert (tuple(found.bits[0]), found.index[0]) == (first.bits, first.index)
    assert len(found.index) == 2000


def test_files_agree_with_each_other(data: Path) -> None:
    for name in ("held_out", "adversarial", "exhaustive"):
        arrays, frame = np.load(data / f"{name}.npz"), pl.read_parquet(data / f"{name}.parquet")
        assert frame["index"].to_list() == arrays["index"].tolist()
        assert frame["bits"][5] == "".join(map(str, arrays["bits"][5]))
    assert pl.read_parquet(data / "exhaustive.parquet").height == 2048
    assert "ithbit score predictions.npz" in (data / "README.md").read_text()


def test_adversarial_inputs_beat_majority() -> None:
    hard = adversarial_set(9)
    odd = np.array(hard.label) == "odd one out"
    majority = hard.bits.mean(1) > 0.5
    assert (majority[odd] != hard.answer[odd]).all()


def test_right_answers_score_as_solved(data: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "all.npz", **answers(data))
    found = score(tmp_path / "all.npz", data, "mine")
    assert (found.solved, found.exhaustive, found.n_wrong) == (3, 1.0, 0)
    mine, *theirs = found.successes()
    assert mine == ("mine", "", "3 of 3 held-out sets")
    assert {label for label, _, _ in theirs} >= {"GRU", "Softmax", "Full linear"}
    assert "all inputs: right on all 2,048" in str(found)


def test_one_wrong_answer_costs_its_seed(data: Path, tmp_path: Path) -> None:
    given = answers(data)
    given["held_out"][2000] ^= 1  # the first row of the second seed
    frame = pl.concat(
        [
            pl.DataFrame({"set": name, "number": np.arange(len(row)), "prediction": row})
            for name, row in given.items()
        ]
    )
    frame.sample(fraction=1.0, shuffle=True, seed=0).write_csv(tmp_path / "all.csv")
    found = score(tmp_path / "all.csv", data)
    assert found.held_out == {0: 1.0, 1: 1 - 1 / 2000, 2: 1.0}
    assert found.solved == 2


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"held_out": np.zeros(3)}, r"has \(3,\) answers to held_out, which has 6000 inputs"),
        ({"held_out": np.full(6000, 2)}, "answers are 0 or 1"),
        ({"held_out": np.full(6000, np.nan)}, "answers are 0 or 1"),
        ({"held_out": np.full(6000, "1")}, "answers are 0 or 1"),
        ({"adversarial": np.zeros(64)}, "does not answer the set held_out"),
        ({"other": np.zeros(3)}, "answers other; the sets of .* are held_out, adversarial"),
    ],
)
def test_bad_answers(
    data: Path, tmp_path: Path, change: dict[str, np.ndarray], sentence: str
) -> None:
    np.savez(tmp_path / "bad.npz", **change)
    with pytest.raises(SpecError, match=sentence):
        score(tmp_path / "bad.npz", data)


def test_bad_files(data: Path, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"there is no file .*none\.npz"):
        score(tmp_path / "none.npz", data)
    with pytest.raises(SpecError, match=r"predictions are \.npz, \.csv, \.parquet files"):
        score(tmp_path / "answers.txt", data)
    (tmp_path / "torn.npz").write_bytes(b"PK\x03\x04")
    with pytest.raises(SpecError, match=r"cannot be read as \.npz"):
        score(tmp_path / "torn.npz", data)
    (tmp_path / "text.npz").write_text("0 1 1 0")
    with pytest.raises(
        SpecError, match=r"a file that numpy\.savez writes, with an array of 0 and 1"
    ):
        score(tmp_path / "text.npz", data)
    np.savez(tmp_path / "objects.npz", held_out=np.array([{}, 1], dtype=object))
    with pytest.raises(SpecError, match=r"cannot be read as \.npz"):
        score(tmp_path / "objects.npz", data)
    pl.DataFrame({"set": ["held_out"], "number": [0]}).write_csv(tmp_path / "short.csv")
    with pytest.raises(SpecError, match="lacks the columns prediction"):
        score(tmp_path / "short.csv", data)
    pl.DataFrame({"set": ["held_out"], "number": [4], "prediction": [0]}).write_csv(
        tmp_path / "gap.csv"
    )
    with pytest.raises(SpecError, match="must answer every number of the set held_out once"):
        score(tmp_path / "gap.csv", data)
    with pytest.raises(SpecError, match="holds no inputs"):
        score(tmp_path / "short.csv", tmp_path)
    (tmp_path / "data.json").write_text('{"schema": 9}')
    with pytest.raises(SpecError, match=r"data\.json cannot be used: it is of another version"):
        score(tmp_path / "short.csv", tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"schema": 1, "task": "rhi", "n_bits": 1e999, "seeds": [0], "sets": ["held_out"]}',
        '{"schema": 1, "task": "rhi", "n_bits": 4, "seeds": [1e999], "sets": ["held_out"]}',
        '{"schema": 1, "task": "rhi", "n_bits": 0, "seeds": [0], "sets": ["held_out"]}',
        '{"schema": 1, "task": "rhi", "n_bits": 4, "seeds": [], "sets": ["held_out"]}',
        '{"schema": 1, "task": "rhi", "n_bits": 4, "seeds": [-1], "sets": ["held_out"]}',
        '{"schema": 1, "task": [], "n_bits": 4, "seeds": [0], "sets": ["held_out"]}',
    ],
)
def test_a_record_of_no_inputs_is_a_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "data.json").write_text(text)
    with pytest.raises(SpecError, match=r"data\.json cannot be used: .*; write it again"):
        read_sets(tmp_path)


def test_a_small_file_of_many_zeros_is_not_read(data: Path, tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "bomb.npz", held_out=np.zeros(1 << 24, np.uint8))
    with pytest.raises(SpecError, match=r"holds far more than 8,112 answers: 16,777,\d+ bytes"):
        score(tmp_path / "bomb.npz", data)


def test_sizes_are_checked(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="all inputs are written for n up to 16, got n = 17"):
        write_sets("rhi", 17, tmp_path, [0], exhaustive=True)
    with pytest.raises(SpecError, match="n must be at least 1, got 0"):
        ithbit.data("rhi", n=0, out=tmp_path)
    with pytest.raises(SpecError, match="unknown task 'xyz'"):
        write_sets("xyz", 4, tmp_path, [0])


@pytest.mark.parametrize(
    "no_answer", ["nan", "NaN", "inf", "-inf", "", "null", "1e400", "-1", "0.5"]
)
def test_what_is_no_answer_is_not_right(data: Path, tmp_path: Path, no_answer: str) -> None:
    """Not even where the answer is 0, which a comparison with NaN would give."""
    given = [no_answer if bit == 0 else "1" for bit in answers(data)["held_out"]]
    rows = [f"held_out,{number},{each}" for number, each in enumerate(given)]
    (tmp_path / "bad.csv").write_text("\n".join(["set,number,prediction", *rows]) + "\n")
    with pytest.raises(SpecError, match="answers are 0 or 1"):
        score(tmp_path / "bad.csv", data)
    numbers = [float(each) if each not in ("", "null") else None for each in given]
    frame = pl.DataFrame({"prediction": numbers}).with_columns(set=pl.lit("held_out"))
    frame.with_row_index("number").write_parquet(tmp_path / "bad.parquet")
    with pytest.raises(SpecError, match="answers are 0 or 1"):
        score(tmp_path / "bad.parquet", data)
