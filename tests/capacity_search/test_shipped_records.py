"""The records that ship are enough for the atlas, and for what the pages say of its runs."""

import runpy
import tarfile
from collections import Counter
from pathlib import Path

import pytest
from tests.support.paths import RESULTS, ROOT

from ithbit.capacity_search.result import Capacity, atlas, row
from ithbit.capacity_search.search import SearchSettings
from ithbit.capacity_search.search_rounds import Search
from ithbit.store.reading import read_json

CAPACITY = (ROOT / "docs" / "capacity.md").read_text(encoding="utf-8")
README = (RESULTS / "README.md").read_text(encoding="utf-8")
OF_A_SEARCH = ("solved_at", "failed_at", "final", "rate", "stand", "seeds", "verdicts", "tried")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `experiments/capacity.py --restore` unpacks them."""
    folder = tmp_path_factory.mktemp("atlas")
    with tarfile.open(RESULTS / "capacity" / "records.tar.xz") as tar:
        tar.extractall(folder, filter="data")
    return folder


def test_the_atlas_follows_from_the_records(store: Path) -> None:
    """Without weights: a verdict is on record with the digest of the weights it is about."""
    parts = runpy.run_path(str(ROOT / "experiments" / "capacity.py"))["PARTS"]
    found: dict[tuple[object, ...], Capacity] = {}
    for models, most_n in parts.values():
        search = Search(SearchSettings(most_n=most_n), store)
        for state in map(search.state, models):
            if state.tried:
                each = row(state, measure=False)
                found[each.task, each.family, each.layers, each.width] = each
    assert len(found) == len(atlas()) == 62
    for each in atlas():
        derived = found[each.task, each.family, each.layers, each.width]
        for name in OF_A_SEARCH:
            assert getattr(derived, name) == getattr(each, name), (each, name)


def test_the_pages_count_the_runs_of_the_records(store: Path) -> None:
    devices, core, verdicts = Counter[str](), 0, 0
    for folder in store.iterdir():
        result = read_json(str(folder / "result.json"))
        assert result is not None, folder
        devices[result["environment"]["device"]] += 1
        model = result["spec"]["model"]
        core += is_core(model["task"], model["family"], model["n_layers"], model["d_model"])
        verdicts += (folder / "verification.json").is_file()
    sentence = f"the {devices.total():,} runs behind the atlas, {verdicts} of them verified"
    assert sentence in " ".join(README.split())
    on_gpu = f"{devices['cuda']:,} runs were trained on an H200, with the kernels of commit c746d8a"
    assert f"{on_gpu} or before; {devices['cpu']} on two CPU cores" in " ".join(README.split())
    assert f"They took {core} runs" in " ".join(CAPACITY.split())
    others = f"add {devices.total() - core:,} runs, {devices['cpu']} of them on two CPU cores"
    assert others in " ".join(CAPACITY.split())


def test_the_page_counts_the_runs_that_stand() -> None:
    cells = [c for c in atlas() if is_core(c.task, c.family, c.layers, c.width)]
    right, open_ = (
        sum(
            int(part.split(" ", 1)[0])
            for each in cells
            for part in each.verdicts.split(", ")
            if part.split(" ", 1)[1] == verdict
        )
        for verdict in ("right on all inputs", "not refuted")
    )
    assert right + open_ == sum(each.stand for each in cells)
    sentence = f"lower ends of the {len(cells)} cells of one and two layers up to width 32"
    sentence += f", {right + open_} runs stand, {right} of them right on all inputs and {open_} not"
    assert sentence in " ".join(CAPACITY.split())
    assert f"{sum(each.final for each in atlas())} are final" in README


def is_core(task: str, family: str, layers: int, width: int) -> bool:
    recurrent = family in ("gru", "mamba2", "linear-causal")
    return task == "rhi" and recurrent and layers <= 2 and width <= 32
