"""Figures are drawn, show what they should, and look the same for a family everywhere."""

import itertools
import re
import statistics
from pathlib import Path

import pytest
from matplotlib.colors import to_hex
from tests.support.paths import RESULTS
from tests.support.synthetic_store import Plan, write_store

import ithbit
from ithbit.errors import SpecError, StoreError
from ithbit.families import FAMILIES
from ithbit.published import Variant
from ithbit.reporting.cells import Cell, Cells, gather
from ithbit.reporting.figures import FIGURES, check_figure_format, draw, for_page, save
from ithbit.reporting.figures.curves import curves_figure
from ithbit.reporting.figures.grid import SHADES
from ithbit.reporting.figures.style import looks
from ithbit.spec import ModelSpec, Protocol, RunSpec
from ithbit.store.frame import Records, export, load_rows


@pytest.mark.parametrize("name", FIGURES)
def test_figures_are_drawn(name: str, paper_cells: Cells, mixed_records: Records) -> None:
    for cells in (paper_cells, gather(mixed_records)):
        svg = for_page(draw(name, cells), name)
        assert svg.startswith("<svg")
        assert svg.rstrip().endswith("</svg>")


def test_runs_of_a_causal_twin_alone_have_their_accuracy_drawn(tmp_path: Path) -> None:
    """The main table counts the full twin, but accuracies are shown of both."""
    run = RunSpec(ModelSpec("lhi", "softmax-causal", 8, 1), 0)
    cells = gather(load_rows(write_store(tmp_path, [Plan(run, False, 0.8, 3)])))
    assert len(draw("accuracy", cells).axes) == 1
    with pytest.raises(StoreError, match="no finished run of the store belongs in the figure"):
        draw("successes", cells)


def test_formats_by_ending(tmp_path: Path, paper_cells: Cells) -> None:
    figure = draw("positions", paper_cells)
    starts = {"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml"}
    for form, start in starts.items():
        path = save(figure, tmp_path / f"figure.{form}")
        assert path.read_bytes().startswith(start)
    with pytest.raises(
        SpecError, match=r"'figure.jpg': its extension must be one of .png, .svg, .pdf"
    ):
        check_figure_format(tmp_path / "figure.jpg")


def test_counts_over_neighbouring_bars_keep_apart() -> None:
    """Those of our runs, which have verdicts at both lengths; the title explains the letters."""
    figure = draw("positions", gather(load_rows(RESULTS / "paper")))
    figure.draw_without_rendering()
    left = figure.axes[0]
    labels = [text for text in left.texts if "r" in text.get_text()]
    assert len(labels) == 2
    boxes = [text.get_window_extent() for text in left.texts]
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))
    assert all(box.y1 < left.get_window_extent().y1 for box in boxes)
    letters = {letter for text in left.texts for letter in text.get_text() if letter.isalpha()}
    title = left.get_title(loc="left")
    assert letters
    assert letters == {word for word in title.split("(")[1].split() if len(word) == 1}


def test_equal_figures_give_equal_files(tmp_path: Path, paper_cells: Cells) -> None:
    for form in ("svg", "pdf", "png"):
        first, second = (
            save(draw("positions", paper_cells), tmp_path / folder / f"figure.{form}").read_bytes()
            for folder in ("a", "b")
        )
        assert first == second


def test_ids_of_two_figures_do_not_meet(paper_cells: Cells) -> None:
    def ids(name: str) -> set[str]:
        svg = for_page(draw(name, paper_cells), name)
        # What a url or a link refers to is what must not be taken from another figure.
        return set(re.findall(r'(?:url\(#|href="#)([^)"]+)', svg))

    assert ids("positions")
    assert not ids("positions") & ids("length")


def test_the_grid_shows_every_count(differing_store: Path) -> None:
    cells = gather(load_rows(differing_store))
    figure = draw("successes", cells)
    texts = [text.get_text() for axes in figure.axes for text in axes.texts]
    shown = [text for text in texts if re.fullmatch(r"\d/5", text)]
    assert len(shown) == 23 * 4
    assert "Causal linear, L = 2" in texts
    rings = [
        patch
        for axes in figure.axes
        for patch in axes.patches
        if to_hex(patch.get_edgecolor()) == "#d55e00"
    ]
    assert len(rings) == 4  # the spoiled cells


@pytest.mark.parametrize(("solved", "ringed"), [(17, False), (14, False), (13, True), (20, True)])
def test_a_ring_is_for_rates_nearer_to_another_count(
    tmp_path: Path, solved: int, ringed: bool
) -> None:
    """The paper has 4 of 5 there, as 16 of 20 would be."""
    model = ModelSpec("lhi", "mamba2", 64, 2)
    plans = [Plan(RunSpec(model, s), s < solved, 1.0 - (s >= solved) / 2, 500) for s in range(20)]
    cells = gather(load_rows(write_store(tmp_path, plans, with_history=False)))
    patches = [patch for axes in draw("successes", cells).axes for patch in axes.patches]
    rings = sum(to_hex(patch.get_edgecolor()) == "#d55e00" for patch in patches)
    assert rings == ringed


def test_epochs_until_first_perfect_are_those_of_all_runs(tmp_path: Path) -> None:
    model = ModelSpec("lhi", "gru", 64)
    early = [RunSpec(model, seed, Protocol(stop_when_solved=True)) for seed in range(1, 4)]
    plans = [Plan(RunSpec(model, 0), True, 1.0, 90), *(Plan(run, True, 1.0, 30) for run in early)]
    cells = gather(load_rows(write_store(tmp_path, plans, with_history=False)))
    panel = next(a for a in draw("epochs", cells).axes if a.get_title("left") == "LHI GRU, L = 1")
    drawn = {line.get_marker(): list(line.get_ydata()) for line in panel.get_lines()}
    assert len(drawn["o"]) == 4
    assert [y for y in drawn["_"] if y is not None and y == y] == [90]


def test_no_figure_of_other_lengths_without_a_solved_run(tmp_path: Path) -> None:
    for solved in (False, True):
        plans = [Plan(RunSpec(ModelSpec("lhi", "gru", 64), 0), solved, 1.0 if solved else 0.5, 9)]
        cells = gather(load_rows(write_store(tmp_path / str(solved), plans, with_history=False)))
        if solved:
            assert draw("length", cells)
        else:
            with pytest.raises(StoreError, match=r"no finished run .* figure 'length'"):
                draw("length", cells)


def test_a_family_is_drawn_alike_everywhere(mixed_records: Records) -> None:
    drawn = looks([("a.py:A", "1"), ("a.py:A", "2"), *((name, "") for name in FAMILIES)])
    assert [name for name, _ in drawn] == [*FAMILIES, "a.py:A", "a.py:A"]
    assert len({look.colour for look in drawn.values()}) == len(drawn)
    assert len({look.marker for look in drawn.values()}) == len(drawn)
    for name, family in FAMILIES.items():
        if family.attention:
            assert drawn[name, ""].dash == ("--" if family.causal else "-")
    curves = curves_figure(mixed_records, Cell(Variant("lhi", "gru", 1), 64))
    colours = {line.get_color() for line in curves.axes[0].get_lines()[:5]}
    assert colours == {drawn["gru", ""].colour}


def test_shades_darken_steadily_in_grey() -> None:
    def grey(share: float) -> float:
        red, green, blue, _ = SHADES(share)
        return 0.299 * red + 0.587 * green + 0.114 * blue

    greys = [grey(step / 5) for step in range(6)]
    assert all(later < earlier - 0.05 for earlier, later in itertools.pairwise(greys))


def test_curves_have_a_line_a_seed(mixed_records: Records) -> None:
    figure = curves_figure(mixed_records, Cell(Variant("lhi", "gru", 1), 8))
    labels = figure.axes[0].get_legend_handles_labels()[1]
    assert labels == [f"seed {seed}" for seed in range(5)]


def test_curves_of_several_cells_have_a_panel_for_each_task_and_length() -> None:
    store, wanted = RESULTS / "paper", ["gru", "mamba2"]
    figure = ithbit.plot("curves", store=store, family=wanted, task=["RHI", "LHI"], n=[8, 64])
    titles = [axes.get_title("left") for axes in figure.axes]
    assert titles == ["RHI, n = 8", "RHI, n = 64", "LHI, n = 8", "LHI, n = 64"]
    runs = ithbit.runs(store).filter(task="rhi", n_layers=1, n_bits=64, positions="polynomial")
    curves = ithbit.histories(store)
    for family in wanted:
        colour = FAMILIES[family].colour
        lines = [line for line in figure.axes[1].get_lines() if line.get_color() == colour]
        ids = runs.filter(family=family)["run_id"].to_list()
        ends = [curves.filter(run_id=each).sort("epoch")["held_out_accuracy"][-1] for each in ids]
        assert sorted(float(line.get_ydata()[-1]) for line in lines[:-1]) == sorted(ends)
        assert lines[-1].get_ydata()[-1] == pytest.approx(statistics.median(ends))


def test_cells_without_curves_are_named(capfd: pytest.CaptureFixture[str]) -> None:
    figure = ithbit.plot("curves", store=RESULTS / "paper", family="gru", n=[8, 9])
    assert [axes.get_title("left") for axes in figure.axes] == ["RHI, n = 8"]
    assert "no learning curves of rhi gru, L = 1, n = 9" in capfd.readouterr().err
    with pytest.raises(StoreError, match="has no history of rhi gru, L = 1, n = 9"):
        ithbit.plot("curves", store=RESULTS / "paper", family="gru", n=[9, 10])


def test_many_curves_are_thin_and_told_by_how_they_ended(tmp_path: Path) -> None:
    model = ModelSpec("lhi", "gru", 8)
    early = [RunSpec(model, seed, Protocol(stop_when_solved=True)) for seed in range(6)]
    plans = [Plan(run, run.seed > 0, 1.0 if run.seed else 0.7, 9) for run in early]
    plans.append(Plan(RunSpec(model, 6), True, 1.0, 9))
    records = load_rows(write_store(tmp_path, plans))
    figure = curves_figure(records, Cell(Variant("lhi", "gru", 1), 8))
    assert figure.axes[0].get_title("left").endswith(", 7 runs")
    ends = [line for line in figure.axes[0].get_lines() if line.get_marker() == "o"]
    assert len(ends) == 5
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "ended when first perfect"
    ]


def test_curves_without_histories(tmp_path: Path) -> None:
    plan = Plan(RunSpec(ModelSpec("lhi", "gru", 8), 0), True, 1.0, 9)
    export(load_rows(write_store(tmp_path / "store", [plan])), tmp_path, "csv")[1].unlink()
    with pytest.raises(StoreError, match=r"n = 8, .* has no table of histories: there are no"):
        curves_figure(load_rows(tmp_path), Cell(Variant("lhi", "gru", 1), 8))


def test_curves_of_a_cell_without_runs(mixed_records: Records) -> None:
    with pytest.raises(
        StoreError, match=r"of rhi mamba2, L = 3, n = 16, learned .*; it has runs of lhi"
    ):
        curves_figure(mixed_records, Cell(Variant("rhi", "mamba2", 3), 16, "learned"))


def test_unknown_figure() -> None:
    with pytest.raises(SpecError, match="unknown figure 'pie'; choose one of successes, accuracy"):
        ithbit.plot("pie")


def test_curves_of_other_settings_are_told_apart(tmp_path: Path) -> None:
    models = [ModelSpec("lhi", "gru", 8, d_model=width) for width in (16, 32, 8)]
    plans = [Plan(RunSpec(model, 0), True, 1.0, 4) for model in models]
    records = load_rows(write_store(tmp_path, plans))
    axes = curves_figure(records, Cell(Variant("lhi", "gru", 1), 8)).axes[0]
    lines = [line for line in axes.get_lines() if str(line.get_label()).startswith("seed")]
    assert [line.get_label() for line in lines] == [
        "seed 0, the paper's settings",
        "seed 0, d = 8",
        "seed 0, d = 32",
    ]
    assert len({str(line.get_color()) for line in lines}) == 3
