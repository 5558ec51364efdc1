"""The page docs/recall.md says what the code and the published points say."""

import json
import re
import sys

import pytest
from tests.support.command_line import output_of
from tests.support.paths import ROOT

import ithbit
from ithbit.display import upper_text

PAGE = (ROOT / "docs" / "recall.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `((?:rhi|lhi) [^`]+)` \|(.*)\|$", PAGE, re.MULTILINE)
TASKS = ("mqar", "induction", "induction-growing", "copy")
LAYERS = re.findall(r"^\| `([\w-]+)` \| (\S+.*?) \|(.*)\|$", PAGE, re.MULTILINE)


@pytest.mark.parametrize(("options", "cells"), ROWS)
def test_n_star_in_the_page(options, cells):
    numbers = [int(cell.replace(",", "")) for cell in cells.split("|")]
    for values, number in zip((2, 16, 256, 4096, 65_536), numbers, strict=True):
        arguments = ("bound", *options.split(), "--values", str(values), "--all", "--json")
        proved = [r for r in json.loads(output_of(*arguments))["routes"] if r["real_arithmetic"]]
        assert number == min(r["n_star"] for r in proved if "8.3" not in r["rests_on"])


@pytest.mark.parametrize(
    ("options", "cells"), re.findall(r"^\| `(bound rhi [^`]+)` \|(.*)\|$", PAGE, re.MULTILINE)
)
def test_queries_of_several_tokens_in_the_page(options, cells):
    numbers = [int(cell.replace(",", "")) for cell in cells.split("|")]
    for tokens, number in zip((1, 2, 4, 8, 16), numbers, strict=True):
        arguments = (*options.split(), "--query-tokens", str(tokens), "--all", "--json")
        proved = [r for r in json.loads(output_of(*arguments))["routes"] if r["real_arithmetic"]]
        assert number == min(r["n_star"] for r in proved if "8.3" not in r["rests_on"])


@pytest.mark.parametrize(
    ("family", "sizes", "shown"),
    [
        ("gru", {}, "one GRU 3,928 pairs"),
        ("gru", {"width": 4}, "of width 4 58;"),
        ("mamba2", {}, r"Mamba2 665\* (687 proved)"),
        ("softmax-full", {"activation": "relu"}, r"one BERT block with ReLU 69\* (73)"),
        ("softmax-full", {"activation": "relu", "width": 64}, r"of width 64 253\* (270)"),
        (
            "softmax-full",
            {"activation": "relu", "width": 64, "ff": 256},
            r"with 256 hidden units there 265\* (281)",
        ),
        ("softmax-full", {}, "With GELU it is 224,570."),
    ],
)
def test_trained_blocks_in_the_page(family, sizes, shown):
    assert shown in PAGE.replace("\n", " ")
    routes = ithbit.bound("mqar", family, model="trained", **sizes).routes
    best = next(route for route in routes if route.real_arithmetic)
    proved = next(route for route in routes if route.real_arithmetic and not route.cited)
    said = f"{best.n_star:,}" + (rf"\* ({proved.n_star:,}" if best.cited else "")
    assert said in shown


@pytest.mark.parametrize("line", re.findall(r"^ithbit (.+?)(?: +#.*)?$", PAGE, re.MULTILINE))
def test_commands_in_the_page_run(line):
    assert output_of(*line.split())


def test_the_table_of_layers():
    rows = {family: [first, *rest.split("|")] for family, first, rest in LAYERS if "(" in rest}
    table = ithbit.verdict(n=4).recall
    for start in range(0, len(table), 4):
        cells = rows[table[start][0].arch.family]
        for entry, cell in zip(table[start : start + 4], cells, strict=True):
            stars = [f"{each.n_star:,}" for each in entry if each.n_star is not None][:2]
            assert re.findall(r"\d[\d,]*\d", cell) == stars
            least = {"possible": str(len(entry)), "impossible": "ω(1)"}.get(entry[-1].answer)
            assert cell.strip().startswith(least or f"≥ {len(entry)}?")
    assert len(rows) == len(table) / 4


@pytest.mark.parametrize(
    "row",
    re.findall(
        r"^\| `(rnn|ssm|softmax-full)( --width 64)?`(?:, one layer)? \| ([\d.]+ \|.*)\|$",
        PAGE,
        re.M,
    ),
)
def test_accuracies_in_the_page(row):
    family, wide, cells = row
    for n, cell in zip((64, 128, 256, 512, 1024), cells.split("|"), strict=True):
        found = ithbit.bound("mqar", family, width=64 if wide else 16, n=n).accuracy
        assert cell.strip() == upper_text(1 if found is None else found, 3)


def test_the_published_points(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "experiments"))
    import mqar_states

    points = mqar_states.points()
    for point in points:  # the formula against the figure's horizontal axis
        assert abs(point.sizes[0] / point.state_read - 1) < 0.01
    assert len({(p.model, p.width, p.size) for p in points}) == len(points) == 42
    assert f"is {min(point.sizes[1] for point in points)}," in PAGE
    sets = [
        [point for point in points if point.first],
        points,
        [point for point in points if point.model not in mqar_states.FIXED],
    ]
    shown = re.findall(r"\| ([+−][\d.]+) \| ([+−][\d.]+) \|", PAGE)
    for some, texts in zip(sets, shown, strict=True):
        found = mqar_states.correlations(some)
        assert [f"{each:+.2f}".replace("-", "−") for each in found] == list(texts)
    sys.modules.pop("mqar_states")
