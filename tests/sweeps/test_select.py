"""Which runs a sweep has: presets, filters, and users' own files with their mistakes."""

from pathlib import Path

import pytest

from ithbit.errors import SpecError
from ithbit.sweeps.presets import demo, paper, smoke
from ithbit.sweeps.select import parse_seeds, read_sweep, selected, sweep_runs

GOOD = """
task = ["rhi", "lhi"]
family = ["gru", "softmax-full"]
layers = [1, 2]
n = 4
seeds = "0-2"
positions = ["polynomial", "rotary"]
[protocol]
max_epochs = 7
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "mine.toml"
    path.write_text(text)
    return path


def test_consistency_comes_with_blocks_unless_examples_are_given(tmp_path) -> None:
    (run, *_) = selected(paper()[:1], "paper", {}, consistency=1.0)
    assert (run.protocol.consistency, run.protocol.examples) == (1.0, "blocks")
    (run, *_) = selected(paper()[:1], "paper", {}, consistency=1.0, examples="uniform")
    assert run.protocol.examples == "uniform"
    (run, *_) = selected([run], "it", {}, consistency=0.0)
    assert run == paper()[0]
    given = 'consistency = [0.0, 2]\nexamples = "mixed"\n'
    runs = read_sweep(write(tmp_path, GOOD + given))
    assert {(r.protocol.consistency, r.protocol.examples) for r in runs} == {
        (0.0, "mixed"), (2.0, "mixed"),
    }  # fmt: skip


def test_filters_keep_and_replace() -> None:
    runs = selected(paper(), "paper", {"task": ["lhi"], "family": ["mamba2"], "n": [8, 16]})
    assert len(runs) == 2 * 2 * 5
    assert {run.model.task for run in runs} == {"lhi"}
    keep = {"family": ["gru"], "layers": [1], "n": [8]}
    more = selected(paper(), "paper", keep, range(20))
    assert len(more) == 2 * 20
    short = selected(paper()[:5], "paper", {}, max_epochs=3, stop_when_solved=True)
    assert all(run.protocol.max_epochs == 3 and run.protocol.stop_when_solved for run in short)
    assert {run.run_id for run in short}.isdisjoint(run.run_id for run in paper())


def test_a_sweep_of_the_paper_keeps_its_identity() -> None:
    assert sweep_runs("paper") == paper()


def test_the_demo_trains_one_model_that_can_and_one_that_cannot() -> None:
    assert {run.group for run in demo()} == {"constructive", "stress test"}
    assert {(run.model.task, run.model.n_bits) for run in demo()} == {("lhi", 8)}
    assert len(smoke()) == 18


def test_a_file_crosses_its_lists_and_takes_rotary_where_it_fits(tmp_path: Path) -> None:
    runs = read_sweep(write(tmp_path, GOOD))
    # two tasks, two depths, three seeds; GRU in one encoding, softmax in two
    assert len(runs) == 2 * 2 * 3 * (1 + 2)
    assert {run.protocol.max_epochs for run in runs} == {7}
    assert len(set(runs)) == len(runs)


def test_all_problems_of_a_file_are_said_at_once(tmp_path: Path) -> None:
    text = 'task="rhi"\nfamly="gru"\nlayers=[1]\nn=[4]\nseeds="0-"\n[protocol]\nepochs=3\n'
    with pytest.raises(SpecError) as error:
        read_sweep(write(tmp_path, text))
    message = str(error.value)
    assert "unknown key 'famly'; the keys are task, family, layers, n, seeds" in message
    assert "the key 'family' is missing" in message
    assert "unknown key 'epochs' in [protocol]; the keys are learning_rate" in message
    assert "seeds are numbers from 0" in message


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (('"gru"', '"lstm"'), "unknown family 'lstm'"),
        (("[1, 2]", "[0]"), "layers must be at least 1, got 0"),
        (("max_epochs = 7", "max_epochs = 0"), "max_epochs must be at least 1, got 0"),
        (('["rhi", "lhi"]', '["middle"]'), "unknown task 'middle'"),
        (("n = 4", "n = [4"), "not valid TOML"),
        (("n = 4", f"n = {'[' * 100_000}"), "not valid TOML"),
    ],
)
def test_wrong_values_are_named(change: tuple[str, str], said: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=said.replace("[", r"\[")):
        read_sweep(write(tmp_path, GOOD.replace(*change)))


def test_what_cannot_be_a_sweep() -> None:
    with pytest.raises(SpecError, match="unknown sweep 'papr'; choose one of paper, positions"):
        sweep_runs("papr")
    with pytest.raises(SpecError, match=r"cannot read nowhere.toml: No such file"):
        sweep_runs("nowhere.toml")
    with pytest.raises(SpecError, match=r"goes from low to high"):
        parse_seeds("4-2")


@pytest.mark.parametrize(
    ("keep", "said"),
    [
        ({"n": [7, 96]}, "it has only --n 8, 16, 32, 64"),
        ({"layers": [9], "n": [96]}, "it has only --layers 1, 2, 3, 4"),
        ({"task": ["lhi"], "layers": [4]}, "with --task lhi it has only --layers 1, 2"),
        (
            {"task": ["lhi"], "family": ["gru", "mamba2"], "layers": [4]},
            "with --task lhi --family gru, mamba2 it has only --layers 1, 2",
        ),
    ],
)
def test_filters_that_leave_nothing_are_told_what_there_is(
    keep: dict[str, list], said: str
) -> None:
    with pytest.raises(SpecError) as error:
        selected(paper(), "paper", keep)
    assert str(error.value) == f"no run of paper passes the filters: {said}"


@pytest.mark.parametrize("change", [("n = 4", "n = []"), ('"softmax-full"]', "]")])
def test_a_file_of_no_runs(change: tuple[str, str], tmp_path: Path) -> None:
    text = GOOD.replace(*change).replace('"polynomial", ', "")
    with pytest.raises(SpecError, match=r"mine\.toml has no runs: every list needs a value"):
        sweep_runs(str(write(tmp_path, text)))


def test_families_from_files_beside_the_sweep(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "layers.py").write_text(f"# {folder}\n")
    families = '["gru", "a/layers.py:Mine", "b/layers.py:Mine", "torch:lstm"]'
    text = GOOD.replace('["gru", "softmax-full"]', families) + "\n"
    runs = read_sweep(write(tmp_path, text.replace("[protocol]", "heads = [1, 2]\n[protocol]")))
    cells = {(run.model.family, run.model.code) for run in runs}
    assert [family for family, _ in sorted(cells)].count("layers.py:Mine") == 2
    assert len(cells) == 4
    # Two tasks, depths and three seeds; heads count for the GRU's name alone, rotary for none.
    assert len(set(runs)) == 2 * 2 * 3 * (2 + 3)
    kept = selected(runs, "mine.toml", {"family": ["a/layers.py:Mine"]})
    assert {run.model.family for run in kept} == {"layers.py:Mine"}


def test_a_layer_that_is_not_there_is_one_of_the_problems(tmp_path: Path) -> None:
    text = GOOD.replace('"softmax-full"', '"gone.py:Mine"').replace("n = 4", "n = 0")
    with pytest.raises(SpecError, match=r"there is no file .*gone\.py.*n must be at least 1"):
        read_sweep(write(tmp_path, text))


def test_lists_in_protocol_are_crossed(tmp_path: Path) -> None:
    more = "learning_rate = [0.001, 0.003]\nbatch_size = [64, 256]\n"
    once = read_sweep(write(tmp_path, GOOD))
    runs = read_sweep(write(tmp_path, GOOD + more))
    assert len(runs) == len(set(runs)) == 4 * len(once)
    settings = {(run.protocol.learning_rate, run.protocol.batch_size) for run in runs}
    assert settings == {(0.001, 64), (0.001, 256), (0.003, 64), (0.003, 256)}
    with pytest.raises(SpecError, match="learning_rate must be positive and finite, got -1"):
        read_sweep(write(tmp_path, GOOD + "learning_rate = [0.001, -1.0]\n"))
    with pytest.raises(SpecError, match="every list needs a value"):
        sweep_runs(str(write(tmp_path, GOOD + "learning_rate = []\n")))


@pytest.mark.parametrize(
    ("seeds", "said"),
    [
        ("1" * 5000, "at most 19 digits"),
        (f"0-{'9' * 5000}", "at most 19 digits"),
        ("0-9999," * 200 + "1", "at most 1,000,000 seeds"),
    ],
)
def test_seeds_without_end_are_refused(seeds: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=said):
        parse_seeds(seeds)
    with pytest.raises(SpecError, match=said):
        read_sweep(write(tmp_path, GOOD.replace('"0-2"', f'"{seeds}"')))


def test_lists_that_cross_without_end_are_refused(tmp_path: Path) -> None:
    numbers = list(range(1, 2001))
    many = f'task = ["rhi"]\nfamily = ["gru"]\nlayers = {numbers}\nn = {numbers}\nseeds = "0"\n'
    with pytest.raises(SpecError, match="more than 1,000,000 combinations"):
        read_sweep(write(tmp_path, many))
    few = many.replace(f"layers = {numbers}", "layers = [1]")
    assert len(read_sweep(write(tmp_path, few))) == 2000
    with pytest.raises(SpecError, match="more than 1,000,000 runs"):
        read_sweep(write(tmp_path, few.replace('"0"', '"0-999"')))
