"""A thinned curve says what the history said, at the epochs it keeps."""

import json
import math
from dataclasses import asdict
from pathlib import Path

import pytest

from ithbit.reporting.page.curves import DIGITS, NO_NUMBER, encode_curve, thin_curve
from ithbit.store.records import Epoch


def decode(text: str) -> list[tuple[int, float | None, float | None]]:
    """The reading side, as template/page.js has it."""

    def number(digits: str) -> int:
        value = 0
        for digit in digits:
            value = 64 * value + DIGITS.index(digit)
        return value

    points = []
    for at in range(0, len(text), 7):
        accuracy, loss = number(text[at + 3 : at + 5]), number(text[at + 5 : at + 7])
        points.append(
            (
                number(text[at : at + 3]),
                None if accuracy == NO_NUMBER else accuracy / 4000,
                None if loss == NO_NUMBER else 10 ** (-9 + 12 * loss / 4094),
            )
        )
    return points


def test_points_come_back() -> None:
    points = [(1, 0.4985, 0.69), (200, 1.0, 1e-6), (262143, 0.0, 1e-9)]
    for (epoch, accuracy, loss), (e, a, x) in zip(
        points, decode(encode_curve(points)), strict=True
    ):
        assert (e, a) == (epoch, accuracy)
        assert x == pytest.approx(loss, rel=0.004)  # a step is 12 decades over 4,094


def test_what_is_no_number_comes_back_as_none() -> None:
    points = [(1, None, math.nan), (2, math.inf, "much")]
    assert decode(encode_curve(points)) == [(1, None, None), (2, None, None)]
    assert decode(encode_curve([(3, 1.5, 1e9)])) == [(3, 1.0, 1000.0)]
    assert decode(encode_curve([(4, -1.0, 0.0)])) == [(4, 0.0, 1e-9)]


def test_thinning_keeps_both_ends_and_passes_over_torn_lines(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    lines = [
        json.dumps(asdict(Epoch(epoch, 0.5, 0.5, epoch / 500, 1e-3, 0.1)))
        for epoch in range(1, 501)
    ]
    (tmp_path / "run" / "history.jsonl").write_text("\n".join(lines) + "\n")
    points = decode(thin_curve(f"{tmp_path}/run", 48))
    assert len(points) == 48
    assert (points[0][0], points[-1][0]) == (1, 500)
    assert all(accuracy == epoch / 500 for epoch, accuracy, _ in points)
    (tmp_path / "run" / "history.jsonl").write_text("\n".join(lines[:20]) + '\n{"epoch": 21, "he')
    assert [point[0] for point in decode(thin_curve(f"{tmp_path}/run", 48))] == list(range(1, 21))
    assert thin_curve(f"{tmp_path}/gone", 48) == ""
