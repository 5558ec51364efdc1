"""`ithbit capacity`: a mistake is one sentence, and where a search stands is shown at once."""

import json

import pytest


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--width", "4,x"), "width must be numbers such as 4,8,16, got '4,x'"),
        (("--lr", "fast"), "lr must be numbers such as 0.001,0.01, got 'fast'"),
        (("--width", "5"), "heads must divide the width, got 2 heads at width 5"),
        (("--factor", "1"), "the factor must be above 1, got 1"),
        (("--seeds", "0-2"), "need must be from 1 to the number of seeds, got 4"),
        (("--on", "moon"), "--on must be local or slurm, got 'moon'"),
    ],
)
def test_what_cannot_be_asked_is_one_sentence(ithbit, options, sentence) -> None:
    status, out, err = ithbit("capacity", "rhi", "linear-causal", *options)
    assert (status, out) == (2, "")
    assert sentence in err
    assert len(err.strip().splitlines()) == 1


def test_where_a_search_stands(ithbit) -> None:
    cells = ("--width", "4,8", "--layers", "1,2", "--device", "cpu", "--dry-run")
    status, out, err = ithbit("capacity", "rhi", "gru", *cells)
    assert status == 0
    assert out.count("– …") == 4
    assert " 0.00 " not in out  # bits per number, before anything was tried
    assert "4 cells, 4 open; if all fail at the length tried next" in err
    status, out, _ = ithbit("capacity", "rhi", "gru", *cells, "--json")
    assert status == 0
    rows = json.loads(out)["rows"]
    assert [(row["width"], row["layers"]) for row in rows] == [(4, 1), (4, 2), (8, 1), (8, 2)]
    assert [row["state"] for row in rows] == [4, 8, 8, 16]
    assert [row["bits_per_number"] for row in rows] == [None] * 4
