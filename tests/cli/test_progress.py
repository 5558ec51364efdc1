"""The board that a person sees while runs train."""

import math
import re
from contextlib import nullcontext
from dataclasses import fields, replace
from pathlib import Path
from statistics import mean

import polars as pl
import pytest
from tests.support.one_stack import train
from tests.support.paths import RESULTS

from ithbit.api.progress import Board, _Line, bars
from ithbit.engine.device import choose_device
from ithbit.engine.training_context import Event
from ithbit.spec import ModelSpec, Protocol, RunSpec
from ithbit.store.records import Epoch, Failure

EPOCH = [field.name for field in fields(Epoch)]
TINY = Protocol(batch_size=32, epoch_examples=64, held_out_examples=32, max_epochs=3)
RUNS = [RunSpec(ModelSpec("rhi", "gru", n_bits=3), seed, TINY) for seed in range(3)]
ODD = "IndexError: [/red] is no [bold]index"  # square brackets are markup to the terminal library


def watched(store: Path) -> Board:
    """One run finished, one failed, one with a remark."""
    board = Board(RUNS)
    with board.live or nullcontext():
        train(RUNS[:1], store, choose_device("cpu"), watch=board.watch)
        board.watch(Event(RUNS[1], Failure(RUNS[1], ODD, "", 2)))
        board.watch(Event(RUNS[2], "a remark with [/brackets]"))
    return board


def test_lines_where_there_is_no_terminal(tmp_path, capsys) -> None:
    watched(tmp_path)
    said = capsys.readouterr()
    assert said.out == ""
    lines = said.err.splitlines()
    assert lines[0].startswith(f"{RUNS[0].name}: not solved in 3 epochs, best 0.")
    assert lines[1:] == [f"{RUNS[1].name}: failed: {ODD}", "a remark with [/brackets]"]


def test_the_table_of_a_terminal(tmp_path) -> None:
    board = watched(tmp_path)
    board.console.width = 200
    with board.console.capture() as text:
        board.console.print(board._table())
    shown = text.get()
    assert "2 of 3 runs done (1 failed)" in shown
    assert "failed" in shown
    assert "not solved" in shown
    assert "waiting" in shown


def test_seeds_are_seen_at_eighty_columns(capsys) -> None:
    runs = [RunSpec(ModelSpec("lhi", "softmax-causal", 64, 2), seed) for seed in (7, 8, 19)]
    epoch = Epoch(123, 0.5, 0.5, 0.75, 1e-3, 1.0)
    failed = Failure(runs[1], "RuntimeError: " + "a long reason " * 9, "", 2)
    board = Board(runs)
    board.watch(Event(runs[0], epoch))
    board.watch(Event(runs[0], replace(epoch, epoch=124)))
    board.watch(Event(runs[1], failed))
    board.console.width = 80
    with board.console.capture() as text:
        board.console.print(board._table())
    shown = text.get()
    assert max(map(len, shown.splitlines())) <= 80
    for seed in (7, 8, 19):
        assert f"lhi softmax-causal L2 n64 s{seed} " in shown
    for word in ("124/500", "5.00e-01", "0.7500", "failed"):
        assert word in shown
    assert failed.error in capsys.readouterr().err  # above the table


@pytest.fixture
def clock(monkeypatch):
    """A clock of our own, in seconds."""
    now = [0.0]
    monkeypatch.setattr("ithbit.api.progress.time.monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize(("n_epochs", "until"), [(60, "its loss"), (500, "its last epoch")])
def test_the_time_left_is_right_within_a_factor_of_two(n_epochs, until, clock) -> None:
    """Over the second half of a run that stops at a loss, or that never does; processes start for
    as long as thirty epochs take."""
    (run,) = runs = [RunSpec(ModelSpec("rhi", "gru", n_bits=8), 0)]
    rate = math.log(1e-6) / n_epochs if until == "its loss" else 0.0
    board = Board(runs)
    clock[0] = 30.0
    for number in range(1, n_epochs):
        clock[0] += 1.0
        loss = math.exp(rate * number) * (1 + 0.02 * math.sin(number))
        board.watch(Event(run, Epoch(number, loss, loss, 0.5, 1e-3, 1.0)))
        if number > n_epochs / 2:
            (line,) = board._lines.values()
            for left in (board._seconds_left(), line.seconds_left):
                assert 0.5 <= left / (n_epochs - number) <= 2, number
            assert ("about" if until == "its loss" else "at most") in board._headline()


def test_the_time_left_of_the_shipped_runs() -> None:
    """Over their second halves: what is reported as a guess is right within a factor of two in
    nine of ten cases, and the rest is reported as the longest there may be, which it is."""
    runs = RESULTS / "paper" / "runs.csv"
    asked = pl.scan_csv(runs, infer_schema_length=None).select("run_id", "stopped_by")
    kept = asked.filter(pl.col("stopped_by").is_in(["loss", "solved"])).unique("run_id")
    histories = pl.scan_parquet(RESULTS / "paper" / "histories.parquet").join(kept, on="run_id")
    by_run = histories.sort("run_id", "epoch").collect().partition_by("run_id")
    is_guess, guesses = [], []
    for history in by_run[::9]:
        length, by_loss = len(history), history["stopped_by"][0] == "loss"
        protocol = Protocol(stop_when_solved=not by_loss)
        line = _Line(RunSpec(ModelSpec("rhi", "gru", n_bits=8), 0, protocol))
        for epoch in history.select(EPOCH).iter_rows(named=True):
            line.take(Epoch(**epoch), 0.0)
            left = length - epoch["epoch"]
            if not 0 < left <= length / 2:
                continue
            if line.foreseen is None:
                assert line.epochs_left >= left
            else:
                assert by_loss
                guesses.append(0.5 <= line.epochs_left / left <= 2)
            if by_loss:
                is_guess.append(line.foreseen is not None)
    assert mean(is_guess) > 0.2
    assert mean(guesses) > 0.85


def test_the_end_of_tightening_is_foreseen() -> None:
    """A run with consistency ends a fixed number of epochs after it is solved, unless it loses that
    again; what the protocol allows says nothing."""
    protocol = Protocol(examples="blocks", consistency=1.0)
    line = _Line(RunSpec(ModelSpec("lhi", "gru", n_bits=8), 0, protocol))
    guesses = []
    for k in range(1, 55):
        line.take(Epoch(k, 0.001, 0.001, 1.0 if k >= 5 else 0.9, 1e-3, 0.1), float(k))
        guesses.append(line.foreseen)
    assert guesses[:4] == [None] * 4
    assert guesses[4:] == [*range(48, 0, -1), 1, 1]
    line.take(Epoch(55, 0.5, 0.5, 0.9, 1e-3, 0.1), 55.0)  # lost: it solves again
    assert line.foreseen is None


def test_one_long_run_is_waited_for_when_all_others_are_done(clock) -> None:
    """Two at a time were quicker than the last one alone is."""
    runs = [RunSpec(ModelSpec("rhi", "gru", n_bits=8), seed) for seed in range(2)]
    board = Board(runs)
    for number in range(1, 500):
        clock[0] += 1.0
        for run in runs if number < 10 else runs[:1]:
            board.watch(Event(run, Epoch(number, 0.7, 0.7, 0.5, 1e-3, 1.0)))
        if number == 10:
            board.watch(Event(runs[1], Failure(runs[1], "lost", "", 9)))
        if number > 250:
            assert 0.5 <= board._seconds_left() / (500 - number) <= 2, number


def test_one_epoch_is_one_epoch(tmp_path, capsys) -> None:
    run = replace(RUNS[0], protocol=replace(TINY, max_epochs=1))
    train([run], tmp_path, choose_device("cpu"), watch=Board([run]).watch)
    assert f"{run.name}: not solved in 1 epoch, best 0." in capsys.readouterr().err


def test_a_bar_shows_what_share_of_a_list_is_done(monkeypatch, capsys) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with bars(progress=True) as shown:
        items = shown.track(range(4), description="checking")
        assert [next(items) for _ in range(3)] == [0, 1, 2]
        items.close()
    assert re.findall(r"checking.*?(\d+%)", capsys.readouterr().err)[-1] == "50%"  # two are done
    with bars(progress=False) as shown:
        assert list(shown.track(range(4))) == [0, 1, 2, 3]
    assert capsys.readouterr().err == ""
