"""Results print as people read them, in a terminal and in a notebook."""

import inspect
import sys
import types

import pytest
import torch
from rich.console import Console

import ithbit
from ithbit.api import progress
from ithbit.display import Paragraph, Printable, show
from ithbit.engine.training_context import Event
from ithbit.spec import ModelSpec, Protocol, RunSpec
from ithbit.store.records import Epoch

TINY = Protocol(batch_size=32, epoch_examples=64, held_out_examples=32, max_epochs=2)
PAPER = "results/paper"


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def results(store):
    settings = {"n": 2, "protocol": TINY, "store": store, "workers": 1, "device": "cpu"}
    return ithbit.train("lhi", "gru", seeds="0-1", **settings)


def made(results, store) -> dict[str, Printable]:
    return {
        "LHI gru L=1 n=2, polynomial positions": results,
        "2 done (2 runs)": ithbit.status(store=store),
        "all: 2 runs": ithbit.verify(results, store=store, device="cpu"),
        "0 runs merged, 2 were there already": ithbit.merge(store, store=store.parent / "other"),
        "possible (Theorem 14a)": ithbit.verdict("lhi", "rnn", n=8),
        "Number of formal layers": ithbit.verdict(n=4),
        "impossible for every n > 487": ithbit.bound("rhi", "rnn"),
        "margin >= 10 on all 6·2^6 inputs": ithbit.certify("lhi", "rnn", n=6),
        "so the answer is 1": ithbit.explain("lhi", "rnn", bits="101", index=3),
        "an upper bound on the causal complexity": ithbit.complexity("gru", model="trained"),
        "45/45": ithbit.table("length-by-n", show="published"),
        "index 3 asks for bit number 3: 1": ithbit.sample("rhi", n=4),
        "Is it causal?": ithbit.probe(
            lambda width: torch.nn.Identity(), width=2, rank_n=4, train=False, device="cpu"
        ),
        "missing   constructive": ithbit.sweep("smoke", store=store, dry_run=True, device="cpu"),
    }


@pytest.mark.usefixtures("short_check")
def test_every_result_prints_and_has_html(results, store, capsys) -> None:
    ithbit.merge(store, store=store.parent / "other")
    for text, result in made(results, store).items():
        assert isinstance(result, Printable), type(result)
        assert text in str(result), type(result)
        assert repr(result) == str(result)
        html = result._repr_html_()
        assert html.startswith("<pre")
        assert html.endswith("</pre>")
        assert text.split()[0].replace("'", "&#x27;") in html
        capsys.readouterr()
        show(result)
        # What the command line prints is what Python shows, but for the ends of lines.
        printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
        assert printed == str(result).splitlines()


def test_html_is_escaped(store) -> None:
    class Hostile(Printable):
        def render(self):
            yield "<script>alert(1)</script> [bold]:smile:[/bold]"

    assert "<script>" not in Hostile()._repr_html_()
    assert str(Hostile()) == "<script>alert(1)</script> [bold]:smile:[/bold]"


def test_a_result_prints_once_in_a_notebook(results, monkeypatch) -> None:
    """rich sees a notebook there, and would display what goes to a file."""
    plain = str(results)
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    assert str(results) == plain


def test_comparison_prints() -> None:
    agreement = ithbit.compare(PAPER)
    assert agreement.agrees
    assert str(agreement).startswith("Successes of many cells at once. Hypothesis: in every cell")
    assert "\nNo evidence of a difference: none of 258 comparisons differs.\n" in str(agreement)


@pytest.mark.parametrize("columns", [20, 40, 50, 60, 70, 80])
def test_numbers_stay_whole_in_a_narrow_terminal(results, monkeypatch, columns) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    text = str(results)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= columns
    assert ("s/epoch ┃" in text) == (columns == 80)  # else it is named below the table
    if columns >= 40:
        assert all(f" {each.max_accuracy:.4f} │" in text for each in results)


def test_results_are_a_list(results) -> None:
    assert len(results) == 2
    assert results == list(results)
    assert results.failures == []
    assert [each["spec"]["seed"] for each in results.to_json()] == [0, 1]
    assert results[:1][0].spec.seed == 0


def test_progress_is_off_in_python_and_lines_without_a_terminal(tmp_path, capsys) -> None:
    settings = {"n": 2, "protocol": TINY, "workers": 1, "device": "cpu", "seeds": [0]}
    ithbit.train("lhi", "gru", store=tmp_path / "a", **settings)
    assert capsys.readouterr() == ("", "")
    seen = []
    ithbit.train("lhi", "gru", store=tmp_path / "b", progress=True, watch=seen.append, **settings)
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("1 run; ")
    assert "lhi_n2_gru_L1d16h2_polynomial_s0: " in said.err
    assert [type(event.what).__name__ for event in seen] == ["Epoch", "Epoch", "Result"]


class Output:
    """A stand-in for the widget of a notebook."""

    def __enter__(self) -> "Output":
        return self

    def __exit__(self, *ended: object) -> None: ...

    def clear_output(self, wait: bool = False) -> None: ...

    def close(self) -> None: ...


def test_bars_in_a_notebook(monkeypatch, capsys) -> None:
    """rich draws through ipywidgets; here both are stand-ins that keep what is displayed."""
    run = RunSpec(ModelSpec("lhi", "gru", n_bits=2), 0)
    drawn: list[object] = []
    display = types.ModuleType("IPython.display")
    display.display = lambda *shown, **kinds: drawn.extend(shown)
    widgets = types.ModuleType("ipywidgets")
    widgets.Output = Output
    widgets.__spec__ = types.SimpleNamespace()
    for name, module in (
        ("IPython", types.ModuleType("IPython")),
        ("IPython.display", display),
        ("ipywidgets", widgets),
    ):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(
        progress, "Console", lambda **settings: Console(force_jupyter=True, **settings)
    )
    board = progress.Board([run])
    with board.live as live:
        board.watch(Event(run, Epoch(1, 0.5, 0.5, 0.5, 1e-3, 0.1)))
        live.refresh()
    texts = [each.text for each in drawn if hasattr(each, "text")]
    assert any("0 of 1 run done" in text and f"s{run.seed}" in text for text in texts)
    assert capsys.readouterr() == ("", "")  # no lines beside the bars


@pytest.mark.parametrize("name", ["train", "sweep", "verify", "probe"])
def test_progress_and_watch_have_one_name(name) -> None:
    module = __import__(f"ithbit.{ithbit._HOME[name]}", fromlist=[name])
    found = inspect.signature(getattr(module, name)).parameters
    assert found["progress"].default is False
    assert found["watch"].default is None


class Note(Printable):
    """A paragraph with a path that is longer than a narrow terminal."""

    path = "/a/folder/with/a/very/long/name/of/sixty/characters/layers.py"

    def render(self):
        yield Paragraph("one two three four five six seven eight nine ten " * 3, "- ", "    ")
        yield Paragraph(f"see {self.path}", "  ", "    ", style="bold")


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_a_paragraph_is_wrapped_to_the_terminal(monkeypatch, capsys, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    show(Note())
    first, *rest = capsys.readouterr().out.splitlines()
    assert first.startswith("- one two")
    assert rest[0].startswith("    ")
    assert Note.path in rest[-1]  # neither broken nor cut
    lengths = [len(line) for line in (first, *rest) if Note.path not in line]
    assert min(columns, 80) - 10 < max(lengths) <= min(columns, 80)
