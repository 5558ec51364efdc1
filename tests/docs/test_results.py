"""The pages' numbers are those of the results beside them."""

import json
import re
from statistics import geometric_mean
from zipfile import ZipFile

import polars as pl
import pytest
import torch
from experiments.proofs_on_paper import differing
from tests.support.paths import RESULTS, ROOT, WEIGHTS

import ithbit
from ithbit.display import lower_text
from ithbit.engine.evaluate import held_out_examples
from ithbit.families import FAMILIES, POSITIONS
from ithbit.published import published
from ithbit.spec import ModelSpec, Protocol
from ithbit.store.frame import load_rows
from ithbit.store.records import PROVED
from ithbit.sweeps import presets


def table(page: str, head: str) -> list[list[str]]:
    """The cells of the rows of the table that starts so in a page."""
    text = (ROOT / "docs" / page).read_text()
    lines = text.split(f"| {head} |")[1].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines]


def variant(label: str) -> presets.Variant:
    """Task, family and depth of a name such as 'RHI full linear, L = 2'."""
    task, _, rest = label.lower().partition(" ")
    name, depth = rest.split(", l = ")
    if name == "softmax":  # full and causal are the same model at one layer
        name = "full softmax"
    (family,) = (f for f in FAMILIES if FAMILIES[f].label.lower() == name.rstrip("2"))
    return task, family, int(depth)  # type: ignore[return-value]


def test_length_transfer_has_the_means_of_its_results() -> None:
    means = (
        pl.read_csv(RESULTS / "length_transfer.csv")
        .filter(n=64)
        .group_by("task", "family", "layers", "query_by")
        .agg(pl.mean("half"), pl.mean("double"))
    )
    rows = table("reproduction.md", "trained at n = 64")
    for label, *shown in rows:
        task, family, layers = variant(label)
        cell = means.filter(task=task, family=family, layers=layers)
        by = {row["query_by"]: row for row in cell.iter_rows(named=True)}
        found = [by[way][size] for way in ("instance", "training") for size in ("half", "double")]
        places = [len(text.partition(".")[2]) for text in shown]
        assert shown == [f"{x:.{p}f}" for x, p in zip(found, places, strict=True)], label
    assert len(rows) == 8


@pytest.fixture(scope="module")
def ablation() -> pl.DataFrame:
    """Successes of three seeds by variant, length and encoding."""
    return (
        pl.read_csv(RESULTS / "paper" / "runs.csv")
        .filter(pl.col("seed") < 3, pl.col("n_bits") >= 32)
        .group_by("task", "family", "n_layers", "n_bits", "positions")
        .agg(pl.len().alias("runs"), pl.sum("solved"))
    )


def test_encodings_have_the_sums_of_their_results(ablation: pl.DataFrame) -> None:
    nine = pl.DataFrame(presets.CONSTRUCTIVE, ["task", "family", "n_layers"], orient="row")
    sums = (
        ablation.join(nine, on=["task", "family", "n_layers"])
        .group_by("positions", "n_bits")
        .agg(pl.sum("solved"), pl.sum("runs"))
    )
    rows = table("reproduction.md", "encoding")
    for name, *shown in rows:
        for n, text in ((32, shown[0]), (64, shown[2])):
            (cell,) = sums.filter(positions=name, n_bits=n).iter_rows(named=True)
            assert text == f"{cell['solved']}/{cell['runs']}", (name, n)
    assert [row[0] for row in rows] == list(POSITIONS)


def test_each_configuration_has_its_successes_by_encoding(ablation: pl.DataFrame) -> None:
    rows = table("log/reproduction.md", "configuration")
    for label, *shown in rows:
        length, _, name = label.partition(": ")
        task, family, layers = variant(name)
        n_bits = int(length.removeprefix("n = "))
        cell = ablation.filter(task=task, family=family, n_layers=layers, n_bits=n_bits)
        solved = {row["positions"]: str(row["solved"]) for row in cell.iter_rows(named=True)}
        assert shown == [solved.get(way, "") for way in POSITIONS], label
    assert len(rows) == 16


def test_models_that_see_no_order_end_as_a_majority_vote() -> None:
    runs = pl.read_csv(RESULTS / "paper" / "runs.csv").filter(positions="none", solved=False)
    assert runs.height == 30
    voted = {
        (n_bits, seed): majority(n_bits, seed)
        for n_bits, seed in runs.select("n_bits", "seed").unique().iter_rows()
    }
    ends = runs.select("n_bits", "seed", "final_accuracy").iter_rows()
    off = [abs(accuracy - voted[n_bits, seed]) for n_bits, seed, accuracy in ends]
    assert sum(one < 1e-6 for one in off) == 21
    assert max(off) < 0.0071
    best = dict(runs.group_by("n_bits").agg(pl.max("max_accuracy")).iter_rows())
    assert (round(best[32], 3), round(best[64], 3)) == (0.586, 0.566)


def majority(n_bits: int, seed: int) -> float:
    """Accuracy of the more frequent bit, 0 where there is none, on a seed's held-out examples."""
    spec = ModelSpec("rhi", "gru", n_bits)
    examples = held_out_examples(spec, Protocol(), [seed], torch.device("cpu"))
    vote = 2 * examples.bits[0].sum(-1) > n_bits
    return (vote == examples.answer[0].bool()).double().mean().item()


CELL = ["task", "family", "n_layers", "n_bits"]


def runs_of(*names: str) -> pl.DataFrame:
    """Runs of the paper's encoding, of several exports together."""
    columns = [*CELL, "positions", "seed", "solved", "first_solved_epoch", "max_accuracy"]
    tables = [pl.read_csv(RESULTS / name / "runs.csv").select(columns) for name in names]
    return pl.concat(tables).filter(positions="polynomial")


def cell_of(runs: pl.DataFrame, label: str, n_bits: int) -> pl.DataFrame:
    task, family, layers = variant(label)
    return runs.filter(task=task, family=family, n_layers=layers, n_bits=n_bits)


def test_longer_inputs_have_the_epochs_of_their_results() -> None:
    runs = runs_of("paper", "beyond")
    rows = table("reproduction.md", "first perfect epoch")
    for label, *shown in rows:
        for n_bits, text in zip((32, 64, 96, 128), shown, strict=True):
            first = cell_of(runs, label, n_bits)["first_solved_epoch"].sort(nulls_last=True)
            if n_bits <= 64:
                failed = f", {first.null_count()} –" if first.has_nulls() else ""
                assert text == f"{first.min()}–{first.max()}{failed}", label
                assert len(first) == 20
            else:
                epochs = ["–" if epoch is None else str(epoch) for epoch in first]
                assert text == ", ".join(epochs), label
                assert len(first) == 5
    assert len(rows) == 8


def test_every_cell_between_none_and_all_has_its_row() -> None:
    runs = runs_of("paper")
    rows = table("log/reproduction.md", "cell")
    shown = {row[0].replace(" L =", ", L ="): row[1:] for row in rows}
    for row in published().successes:
        for n_bits, theirs in row.successes.items():
            label = f"{row.task.upper()} {row.label}, L = {row.n_layers}"
            cell = cell_of(runs, label if row.n_layers > 1 else full(label), n_bits)
            assert cell.height == 20
            solved = int(cell["solved"].sum())
            name = next(
                (one for one in shown if one.lower() == f"{label}, n = {n_bits}".lower()), ""
            )
            if solved in (0, 20) and 4 * theirs == solved:
                assert not name
                continue
            first = int(cell.filter(pl.col("seed") < 5)["solved"].sum())
            *counts, reached = shown.pop(name)
            assert counts == [f"{solved}/20", f"{first}/5", f"{theirs}/5"], name
            missed = cell.filter(~pl.col("solved"))["max_accuracy"].sort().round(4)
            ends = [missed[0], missed[-1]] if len(missed) > 1 else list(missed)
            assert [float(word) for word in reached.split() if word[0] == "0"] == ends, name
    assert not shown


def full(label: str) -> str:
    """A one-layer label as its full variant's, which is the one that is counted."""
    return label.replace("Linear", "full linear")


def test_both_ways_of_training_have_the_successes_of_their_results() -> None:
    sides = [runs_of("paper"), runs_of("same-science/stacked", "stacked-n64")]
    rows = table("log/kernels.md", "20 seeds")
    for label, *shown in rows:
        name, _, n = label.rpartition(", n = ")
        cells = [cell_of(side, name, int(n)).filter(pl.col("seed") < 20) for side in sides]
        assert [cell.height for cell in cells] == [20, 20], label
        assert shown == [str(cell["solved"].sum()) for cell in cells], label
    assert len(rows) == 7


def test_both_ways_of_training_take_one_course_in_the_first_epoch() -> None:
    """Where the curves of both are kept."""
    kernels, stacked = (
        pl.concat(
            pl.read_parquet(RESULTS / name / "histories.parquet").filter(epoch=1) for name in names
        )
        for names in (("same-science/kernels", "paper"), ("same-science/stacked",))
    )
    both = stacked.join(kernels, on="name")
    assert both.height == 7 * 20 - 5 + 20
    for column, bar in (("train_loss", 5e-8), ("held_out_loss", 2e-7)):
        assert (both[column] / both[f"{column}_right"] - 1).abs().max() < bar  # type: ignore[operator]


def test_shipped_weights_and_the_main_sweep_are_the_same_runs() -> None:
    """`everywhere/uniform` and `paper` were trained apart; a kernel that rounds otherwise shows."""
    ours, theirs = (load_rows(RESULTS / name).rows for name in ("paper", "everywhere/uniform"))
    of_machine = ["environment", "started_at", "finished_at", "seconds_per_epoch"]
    of_machine += ["evaluation_seconds", "verification", "certificate_sha256"]
    both = theirs.select("run_id").join(ours, on="run_id", maintain_order="left")
    assert both.height == 135
    assert both.drop(of_machine).equals(
        theirs.join(both, on="run_id", how="semi", maintain_order="left").drop(of_machine)
    )
    later = theirs.join(ours.filter(pl.col("seed") >= 5), on=[*CELL, "positions", "seed"])
    assert later.height == 240
    assert later["first_solved_epoch"].equals(
        later["first_solved_epoch_right"], check_names=False, null_equal=True
    )


def test_proofs_in_the_main_sweep_are_those_of_the_shipped_weights() -> None:
    """And with the same digests; the runs are the same to the last bit, but for when and where."""
    ours = load_rows(RESULTS / "paper").rows.filter(verification=PROVED)
    shipped = load_rows(WEIGHTS / "uniform").rows.filter(verification=PROVED)
    assert ours.height == shipped.height == 15
    assert differing(ours, shipped) == []
    assert differing(ours.with_columns(final_loss=pl.lit(1.0)), shipped) == ["final_loss"]
    columns = ["run_id", "certificate_sha256"]
    assert ours.select(columns).sort("run_id").equals(shipped.select(columns).sort("run_id"))


def test_successes_of_the_first_seeds_have_their_verdicts() -> None:
    twin = (pl.col("n_layers") == 1) & pl.col("family").str.ends_with("causal")
    runs = load_rows(RESULTS / "paper").rows.filter("solved", pl.col("verification").is_not_null())
    runs = runs.filter(~twin)
    row_columns = {  # the rows of the table, as cells
        "all that succeed": pl.lit(True),
        "the eight constructive configurations": pl.col("group") == "constructive",
        "stress tests": pl.col("group") == "stress test",
        "RHI causal linear, L = 2, 3 and 4": (pl.col("family") == "linear-causal")
        & (pl.col("task") == "rhi"),
        "RHI Mamba2, L = 1 to 4": (pl.col("family") == "mamba2") & (pl.col("task") == "rhi"),
        "RHI GRU, L = 2, 3 and 4": (pl.col("family") == "gru") & (pl.col("task") == "rhi"),
        "RHI linear, L = 1": (pl.col("family") == "linear-full") & (pl.col("n_layers") == 1),
    }
    rows = table("reproduction.md", "runs that the paper's criterion calls successful")
    shown = 0
    for label, *counts in rows:
        length, _, which = label.partition(", ")
        cell = runs.filter(row_columns[which], n_bits=int(length.removeprefix("n = ")))
        words = ("refuted", "not refuted", "right on all inputs", "proved on all inputs")
        found = [cell.height, *(cell.filter(verification=word).height for word in words)]
        assert [int(text.replace("–", "0")) for text in counts] == found, label
        shown += cell.height
    assert shown == runs.height == 300


def test_margins_on_the_page_of_proofs_are_proved() -> None:
    """The least and the greatest of each group, rounded down to two places."""
    rows = pl.read_csv(RESULTS / "proofs" / "runs.csv").filter(pl.col("layers") == 1)
    margins = {
        **{(int(row[0]), None): row[2] for row in table("proofs.md", "n | runs bounded")},
        **{
            (int(row[0]), row[1]): row[3]
            for row in table("log/proofs.md", "n | examples | bounded")
        },
    }
    assert len(margins) == 15
    for (n, examples), shown in margins.items():
        own = rows.filter(pl.col("n") == n)
        if examples is not None:
            own = own.filter(pl.col("examples") == examples)
        proved = own["least_proved"].drop_nulls()
        assert shown == " to ".join(lower_text(each, places=2) for each in proved.sort()[[0, -1]])
    for row in table("proofs.md", "n | runs bounded"):
        own = rows.filter(pl.col("n") == int(row[0]), pl.col("least_proved").is_not_null())
        assert float(row[3]) >= (own["least_found"] - own["least_proved"]).max()
        floats = own["least_float32"].drop_nulls().sort()
        ends = " to ".join(lower_text(each, places=2) for each in floats[[0, -1]])
        assert row[4] == f"{len(floats)}: {ends}"


def test_the_tests_of_all_cells_are_those_on_the_page() -> None:
    agreement = ithbit.compare(RESULTS / "paper")
    shown = table("reproduction.md", "cells | solved, ours")
    for row, found in zip(shown, agreement.joint, strict=True):
        compared = found.comparison
        numbers = [compared.ours, f"{found.expected:.1f}", f"{compared.p_value:.2g}"]
        assert row[1:] == [*numbers, compared.detects]
    page = (ROOT / "docs" / "reproduction.md").read_text()
    every = agreement.joint[0].comparison
    others = len(agreement.comparisons) - 1
    assert f"(p = {every.p_value:.2g}), nor in {others} further comparisons" in page
    assert agreement.agrees


def test_what_the_pages_cite_of_the_results_is_there() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *RESULTS.glob("**/*.md")]
    pages += [*ROOT.glob("experiments/*.md"), *ROOT.glob("experiments/*.py")]
    cited = {
        path.rstrip(".")
        for page in pages
        for path in re.findall(r"(?<![\w:/-])(?:\.\./)*(results/[\w./-]+)", page.read_text())
    }
    made = {"results/capacity/weights.tar.gz"}  # by a script, and kept out of the repository
    assert len(cited) >= 20
    assert [path for path in sorted(cited - made) if not is_there(path)] == []
    assert not is_there("results/paper/weights")
    assert not is_there("results/weights/mixed.zip/x")


def is_there(path: str) -> bool:
    """As a file, a folder, a page of the site, or in a packed store."""
    store, packed, inside = path.partition(".zip/")
    if packed:
        return inside in ZipFile(ROOT / f"{store}.zip").namelist()
    return (ROOT / path).exists() or (ROOT / f"{path}.md").is_file()


def test_the_speed_on_a_cpu_is_that_of_its_file() -> None:
    rows = json.loads((RESULTS / "bench" / "cpu-2-cores.json").read_text())["rows"]

    def ratios(stepper: str, n: int) -> list[float]:
        return [r["ratios"][stepper] for r in rows if r["n"] == n and r["constructive"]]

    guide = " ".join((ROOT / "docs" / "guide.md").read_text().split())
    for n, phrase in ((64, "times as fast at n = 64 (geometric mean; "), (8, "times at n = 8 (")):
        all_of_n = ratios("compiled", n)
        assert len(all_of_n) == 9
        least, most = f"{min(all_of_n):.1f}", f"{max(all_of_n):.0f}"
        assert f"{geometric_mean(all_of_n):.1f} {phrase}{least} to {most})" in guide
    slow = [f"{geometric_mean(ratios('stacked', n)):.1f}" for n in (64, 8)]
    assert f"the stacked models are {slow[0]} and {slow[1]} times as fast" in guide
    mean = f"compiled code is {geometric_mean(ratios('compiled', 64)):.1f} times as fast"
    assert mean in (ROOT / "README.md").read_text()
