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


def test_a_layer_that_cannot_be_built_is_refused_before_a_search(ithbit, tmp_path) -> None:
    (tmp_path / "mine.py").write_text("Number = 3\n")
    for name in ("Missing", "Number"):
        status, out, err = ithbit("capacity", "rhi", "mine.py:" + name, "--dry-run")
        assert (status, out) == (2, "")
        assert err.startswith("ithbit: ")
        assert "length tried next" not in err


def test_a_search_that_is_done_says_no_more(ithbit, tmp_path) -> None:
    (tmp_path / "mine.py").write_text(
        "import torch\nclass ALayerOfALongName(torch.nn.Identity): ...\n"
    )
    small = ("--width", 2, "--lr", 0.01, "--start", 1, "--most-n", 1, "--seeds", 0, "--need", 1)
    ask = ("capacity", "rhi", "mine.py:ALayerOfALongName", *small, "--max-epochs", 1)
    assert ithbit(*ask, "--device", "cpu", "--workers", 1)[0] == 0
    status, out, err = ithbit(*ask, "--device", "cpu", "--dry-run")
    assert (status, err) == (0, "1 cell, 0 open\n")
    assert "1 of 1 seed succeed within 1 epoch of mixed examples" in " ".join(out.split())
    assert "…" not in out
