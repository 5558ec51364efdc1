"""A result as plain data and as a table."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.paths import RESULTS

from ithbit.bench.result import BenchResult, BenchRow, Ceilings, from_json, read_result, result_text
from ithbit.errors import StoreError

STORED = sorted((RESULTS / "bench").glob("*.json"))
ENVIRONMENT = {"device": "cuda", "device_name": "A GPU", "cores": 4, "torch": "2", "commit": None}
SETTINGS = {"steps": 10, "repeats": 3, "epoch_steps": 196, "batch": 256}


def row(seconds, errors=None, layers=1, constructive=True) -> BenchRow:
    work = 1_000_000, 2_000
    return BenchRow("rhi", "gru", layers, 64, 5, constructive, *work, seconds, errors or {})


RESULT = BenchResult(
    ENVIRONMENT,
    SETTINGS,
    Ceilings(1e12, 1e9),
    ("a remark",),
    (
        row({"reference": 1.96, "stacked": 0.196, "kernels": 0.0196}),
        row({"reference": 1.0, "stacked": 0.25}, {"kernels": "RuntimeError: out of memory"}, 2),
        row({"stacked": 0.5}, {"reference": "no transformers", "kernels": "refused"}, 4, False),
    ),
)


def test_ratios_and_shares() -> None:
    first, second, third = RESULT.rows
    assert (first.ratio("stacked"), second.ratio("stacked")) == (pytest.approx(10), 4)
    assert (second.ratio("kernels"), third.ratio("stacked")) == (None, None)
    # 196 steps of a million operations in 0.0196 s are 1e10 a second, of 1e12.
    assert RESULT.shares(first, "kernels") == pytest.approx((0.01, 0.02))
    assert RESULT.shares(second, "kernels") is None


def test_written_and_read_it_is_the_same(tmp_path: Path) -> None:
    data = RESULT.to_json()
    assert from_json(json.loads(json.dumps(data, allow_nan=False))) == RESULT
    assert data["rows"][0]["ratios"]["kernels"] == pytest.approx(100)
    assert data["rows"][1]["fp32_share"]["kernels"] is None
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(data))
    assert read_result(path) == RESULT


def test_what_is_no_result_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    with pytest.raises(StoreError, match="cannot read"):
        read_result(path)
    for text in ("{", "[]", "{}", '{"schema": 1}', '{"schema": 2, "rows": [{}]}'):
        path.write_text(text)
        with pytest.raises(StoreError) as refused:
            read_result(path)
        assert str(refused.value) == (
            f"{path} holds no bench result of this version; give a file that "
            "`ithbit bench --json FILE` wrote"
        )


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content.update(environment=[]),
        lambda content: content.update(settings=5),
        lambda content: content["environment"].pop("device_name"),
        lambda content: content["environment"].update(commit=3),
        lambda content: content["ceilings"].update(copy_bytes=0),
        lambda content: content["ceilings"].update(copy_bytes="fast"),
        lambda content: content["rows"][0].update(seeds="five"),
        lambda content: content["rows"][0].update(seconds=[1.0]),
        lambda content: content["rows"][0]["seconds"].update(stacked=float("inf")),
        lambda content: content["rows"][0]["seconds"].update(stacked=-1.0),
        lambda content: content["rows"][0].update(errors={"stacked": {}}),
    ],
)
def test_what_cannot_be_shown_is_no_result(tmp_path: Path, change) -> None:
    path, content = tmp_path / "bench.json", json.loads(STORED[-1].read_text())
    change(content)
    path.write_text(json.dumps(content).replace("Infinity", "1e999"))
    with pytest.raises(StoreError, match="holds no bench result of this version"):
        read_result(path)


def test_a_deep_file_is_no_result(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    path.write_text("[" * 100_000)
    with pytest.raises(StoreError, match="holds no bench result of this version"):
        read_result(path)


def tables(lines: list[str]) -> list[list[str]]:
    """The parts of a text that stand between empty lines, without machine and feet."""
    parts = "\n".join(lines).split("\n\n")
    return [part.split("\n") for part in parts[1:-1]]


def test_the_tables_are_aligned_and_tell_failures_once() -> None:
    lines = result_text(RESULT).splitlines()
    times, shares = tables(lines)
    paths, units = (line.split() for line in times[:2])
    assert paths == ["reference", "stacked", "kernels", "stacked", "kernels"]
    assert units[-5:] == ["s", "s", "s", "ratio", "ratio"]
    assert [line.split()[-5:] for line in times[2:]] == [
        ["1.96", "0.196", "0.0196", "10.0", "100.0"],
        ["1", "0.25", "failed", "4.0", "–"],
        ["failed", "0.5", "failed", "–", "–"],
    ]
    assert shares[0].split() == ["stacked", "stacked", "kernels", "kernels"]
    assert shares[1].split()[-4:] == ["fp32", "copy", "fp32", "copy"]
    assert [line.split()[-4:] for line in shares[2:]] == [
        ["0.1%", "0.2%", "1%", "2%"],
        ["0.078%", "0.16%", "–", "–"],
        ["0.039%", "0.078%", "–", "–"],
    ]
    for table in (times, shares):
        assert len({len(line) for line in table}) == 1  # the last column ends where its head does
    text = " ".join(" ".join(lines).split())
    assert "2 constructive configurations: geometric mean 6.3, 4.0 to 10.0" in text
    assert "scaled to the 196 steps of an epoch" in text
    assert "Note: a remark" in text
    assert "Note: kernels failed (rhi gru L=2): RuntimeError: out of memory" in text


@pytest.mark.parametrize("seeds", [5, 20])
@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_a_terminal_of_eighty_columns_holds_every_line(path: Path, seeds: int) -> None:
    result = read_result(path)
    rows = (*result.rows, *(replace(row, n=1024, seeds=seeds) for row in result.rows))
    text = result_text(replace(result, rows=rows))
    assert max(map(len, text.splitlines())) <= 80
    assert all(row.family in text for row in result.rows)


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_the_results_that_are_shipped_can_be_read(path: Path) -> None:
    result = read_result(path)
    ratios = [row.ratio("stacked") for row in result.rows]
    assert len(ratios) >= 9
    assert all(ratio is not None and math.isfinite(ratio) for ratio in ratios)
    assert result.rows[0].family in result_text(result)
