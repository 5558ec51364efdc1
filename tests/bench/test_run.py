"""The bench for real, tiny and on a CPU; what fails is reported and the rest continues."""

import json
from pathlib import Path

import pytest
from tests.support.paths import RESULTS

from ithbit.bench.result import read_result, result_text
from ithbit.bench.run import TIMED, bench, environment, measure_ceilings, seconds, step_seconds
from ithbit.cli import main
from ithbit.engine.device import choose_device
from ithbit.errors import IthbitError, SpecError
from ithbit.spec import ModelSpec
from ithbit.sweeps.presets import CONSTRUCTIVE, VARIANTS, Variant

CPU = choose_device("cpu")
TINY: tuple[Variant, ...] = (("lhi", "gru", 1), ("rhi", "linear-full", 2))


def test_every_family_is_there_and_at_its_deepest() -> None:
    assert TIMED[:9] == CONSTRUCTIVE
    for family in {family for _, family, _ in VARIANTS}:
        deepest = max(layers for _, name, layers in VARIANTS if name == family)
        assert any((name, layers) == (family, deepest) for _, name, layers in TIMED)
    assert len(set(TIMED)) == len(TIMED)


@pytest.mark.slow  # tests/experiments has a shorter one
def test_a_tiny_bench_on_a_cpu(monkeypatch) -> None:
    monkeypatch.setattr("ithbit.bench.run.usable_cores", lambda: 1)  # one worker
    kept, messages = [], []
    result = bench((4,), (2,), "cpu", 2, 1, True, TINY, messages.append, kept.append)
    assert [(row.task, row.family, row.layers) for row in result.rows] == list(TINY)
    assert [set(row.seconds) for row in result.rows] == [{"reference", "stacked", "compiled"}] * 2
    assert all(seconds > 0 for row in result.rows for seconds in row.seconds.values())
    assert [len(part.rows) for part in kept] == [1, 2]
    assert kept[-1] == result
    assert result.remarks == ("no kernels: the kernels need a CUDA GPU, and this run is on a CPU",)
    assert any("ceilings" in text for text in messages)


def test_what_fails_is_told_and_the_rest_goes_on(monkeypatch) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")  # no worker of the stacked models starts
    messages: list[str] = []
    result = bench((4,), (1,), "cpu", 1, 1, True, TINY, messages.append)
    assert [set(row.seconds) for row in result.rows] == [{"reference"}] * 2
    no_word = "a worker failed: no word"
    assert [row.errors for row in result.rows] == [{"stacked": no_word, "compiled": no_word}] * 2
    assert "Note: stacked failed (lhi gru L=1, rhi linear-full L=2): a worker" in result_text(
        result
    )


def test_the_kernels_refuse_in_a_sentence() -> None:
    pytest.importorskip("triton")
    with pytest.raises(IthbitError, match="power of two, 4 or more, got 6"):
        step_seconds("kernels", ModelSpec("lhi", "gru", 4, d_model=6), 1, CPU, 1, 1)


def test_ceilings_and_clock() -> None:
    ceilings = measure_ceilings(CPU, repeats=1, quick=True)
    assert ceilings.fp32_flops > 0
    assert ceilings.copy_bytes > 0
    calls: list[int] = []
    assert seconds(lambda: calls.append(1), CPU, repeats=3) >= 0
    assert len(calls) == 3


def test_the_environment_names_machine_versions_and_commit() -> None:
    found = environment(CPU)
    assert {"torch", "triton", "transformers", "cpu", "cores", "commit"} <= set(found)
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize("values", [{"lengths": (0,)}, {"seeds": (0,)}, {"steps": 0}])
def test_numbers_that_cannot_be_are_refused(values) -> None:
    with pytest.raises(SpecError, match="must be at least 1, got 0"):
        bench(**values)


def test_the_command(monkeypatch, capsys, tmp_path: Path) -> None:
    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["ithbit", "bench", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), *capsys.readouterr()

    assert call("-n", 0)[0] == 2
    stored = RESULTS / "bench" / "h200.json"
    status, out, _ = call("--read", stored)
    assert (status, "geometric mean" in out) == (0, True)
    status, out, _ = call("--read", stored, "--json", "-")
    assert json.loads(out)["schema"] == 2
    assert call("--read", stored, "--json", tmp_path / "copy.json")[0] == 0
    assert read_result(tmp_path / "copy.json") == read_result(stored)
    assert call("--read", tmp_path / "none.json")[0] == 2
    for file, why in (
        (tmp_path / "none" / "x", "No such file or directory; give a file in a folder that can be"),
        (tmp_path / "copy.json" / "x", "Not a directory; give a file in a folder that can be"),
        (tmp_path, "it is a folder; name a file"),
    ):
        status, out, err = call("--json", file, "--quick")
        assert (status, out) == (2, "")
        assert f"cannot write {file}: {why}" in err
        assert len(err.strip().splitlines()) == 1  # nothing was timed
    assert not (tmp_path / "none").exists()
