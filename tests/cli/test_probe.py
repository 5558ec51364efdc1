"""`ithbit probe`: one sentence for each thing that can be wrong, and the whole way through."""

import json
from pathlib import Path

import pytest
from tests.support.paths import BAD_LAYERS, ROOT

from ithbit import Protocol, probe

pytestmark = pytest.mark.usefixtures("short_check")
EXAMPLES = ROOT / "examples" / "layers.py"


@pytest.mark.parametrize(
    ("layer", "sentence"),
    [
        (f"{BAD_LAYERS}:Random", "Random is not deterministic"),
        (f"{BAD_LAYERS}:WrongShape", "WrongShape returns shape"),
        (f"{BAD_LAYERS}:Raises", "RuntimeError: no kernel for this size"),
        (f"{BAD_LAYERS}:Exits", "Exits cannot be built at width 4: SystemExit: 7"),
        (f"{BAD_LAYERS}:ExitsWhenCalled", "SystemExit: 7"),
        (f"{BAD_LAYERS}:GivesNan", "GivesNan gives NaN"),
        (f"{BAD_LAYERS}:Missing", "has no Missing"),
        (f"{BAD_LAYERS}:number", "is not callable"),
        (f"{BAD_LAYERS}:needs_two", "needs arguments (width, heads)"),
        ("nowhere.py:Layer", "there is no file nowhere.py"),
        ("nonsense", "'nonsense' is not a layer"),
    ],
)
def test_what_cannot_be_probed_is_one_sentence(ithbit, layer: str, sentence: str) -> None:
    status, out, err = ithbit("probe", layer, "--width", 4)
    assert (status, out) == (2, "")
    assert sentence in err
    assert len(err.strip().splitlines()) == 1
    assert "Traceback" not in err


def test_the_traceback_is_there_for_the_asking(ithbit) -> None:
    status, _, err = ithbit("probe", f"{BAD_LAYERS}:Raises", "--traceback")
    assert status == 2
    assert "Traceback" in err
    assert 'raise RuntimeError("no kernel' in err


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("Leaky", "Leaky is not causal: output "),
        ("StateOfThree", "flat at 3 from k = 2 on"),
        ("Blind", "ignores its input"),
    ],
)
def test_what_can_be_probed_is_told(ithbit, name: str, sentence: str) -> None:
    status, out, err = ithbit(
        "probe", f"{BAD_LAYERS}:{name}", "--width", 4, "--rank-n", 6, "--no-train"
    )
    assert (status, err) == (0, "")
    assert sentence in out


@pytest.mark.parametrize(
    ("layer", "state"), [("LeakyIntegrator", 8), ("SlidingWindow", 24), ("Hybrid", None)]
)
def test_the_examples(ithbit, layer: str, state: int | None) -> None:
    arguments = ("--width", 8, "--rank-n", 12, "--no-train", "--json")
    status, out, _ = ithbit("probe", f"{EXAMPLES}:{layer}", *arguments)
    data = json.loads(out)
    assert status == 0
    assert data["behaviour"]["causal"]
    assert data["causal_rank"]["state"] == state


def test_what_a_layer_prints_is_not_in_the_json(ithbit, tmp_path: Path) -> None:
    (tmp_path / "loud.py").write_text(
        "import torch\n"
        "print('imported')\n"
        "class Loud(torch.nn.Identity):\n"
        "    def __init__(self, width):\n"
        "        super().__init__()\n"
        "        print('built')\n"
        "    def forward(self, x):\n"
        "        print('called')\n"
        "        return x\n"
    )
    where = ("--width", 2, "--rank-n", 4, "--no-train", "--device", "cpu")
    status, out, err = ithbit("probe", tmp_path / "loud.py:Loud", *where, "--json")
    assert status == 0
    rank = json.loads(out)["causal_rank"]
    assert rank["state"] is None
    assert "causality could not be checked: it prints" in rank["sentence"]
    assert {"imported", "built", "called"} <= set(err.split())


def test_a_limit_of_time_is_kept_and_told(ithbit, tmp_path: Path) -> None:
    arguments = ("--width", 4, "-n", 2, "-L", 1, "--seeds", "0", "--rank-n", 4, "--workers", 1)
    limit = ("--max-epochs", 2, "--minutes", 1e-4, "--device", "cpu", "--store", tmp_path / "runs")
    status, out, _ = ithbit("probe", "rnn", *arguments, *limit)
    assert status == 0
    assert "2 runs stopped in epoch 1 of 2, when the 0.0001 minutes were over" in " ".join(
        out.split()
    )
    # They are runs like any other, and go on when they are asked for.
    where = ("--store", tmp_path / "runs", "--device", "cpu", "--workers", 1)
    some = ("--n", 2, "--width", 4, "--seeds", "0", "--max-epochs", 2)
    assert "2 stopped" in ithbit("status", "--store", tmp_path / "runs")[1]
    assert ithbit("train", "rhi", "torch:rnn", *some, *where, "--json")[0] == 0
    assert "minutes must be more than 0" in ithbit("probe", "rnn", "--minutes", 0)[2]


def test_the_families_are_trained_for_the_asking(tmp_path: Path) -> None:
    short = Protocol(batch_size=32, epoch_examples=64, held_out_examples=32, max_epochs=1)
    where = {"store": tmp_path, "device": "cpu", "workers": 1}
    found = probe(
        "rnn", width=2, n=1, layers=1, seeds="0", rank_n=4, protocol=short, **where,
        train_families=True,
    )  # fmt: skip
    rows = found.to_json()["families"]
    assert len(rows) == 12  # six families, two tasks
    assert {row["counts"][1]["origin"] for row in rows} == {"ours"}
    assert {row["counts"][1]["runs"] for row in rows} == {1}


@pytest.mark.usefixtures("without_figures")
def test_the_whole_way(ithbit, tmp_path: Path) -> None:
    arguments = ("--width", 4, "-n", 2, "-L", 1, "--seeds", "0", "--max-epochs", 1)
    where = ("--rank-n", 4, "--store", tmp_path / "runs", "--device", "cpu", "--workers", 1)
    status, out, err = ithbit("probe", "rnn", *arguments, *where, "-o", tmp_path / "page.html")
    assert status == 0
    assert "seeds are trained one by one, not in a stack" in err
    assert "> rnn" in out
    assert len(list((tmp_path / "runs" / "probe").glob("rnn-*/report.json"))) == 1
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    assert "2 done (2 runs)" in ithbit("status", "--store", tmp_path / "runs")[1]
    page = ithbit("report", "--store", tmp_path / "runs", "-o", tmp_path / "report.html")
    assert page[0] == 0
    assert "torch:rnn" in (tmp_path / "report.html").read_text()
