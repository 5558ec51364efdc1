"""The board that a person sees while runs train."""

from pathlib import Path

from ithbit.api.progress import Board
from ithbit.engine.device import choose_device
from ithbit.engine.how import Event
from ithbit.engine.loop import train
from ithbit.spec import ModelSpec, Protocol, RunSpec
from ithbit.store.records import Failure

TINY = Protocol(batch_size=32, epoch_examples=64, held_out_examples=32, max_epochs=3)
RUNS = [RunSpec(ModelSpec("rhi", "gru", n_bits=3), seed, TINY) for seed in range(3)]
ODD = "IndexError: [/red] is no [bold]index"  # square brackets are markup to the terminal library


def watched(store: Path) -> Board:
    """One run finished, one failed, one told of a remark."""
    with Board(RUNS) as board:
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
    assert "2 of 3 runs done" in shown
    assert f"failed: {ODD}" in shown
    assert "waiting" in shown
