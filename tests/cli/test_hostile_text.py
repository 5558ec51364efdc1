"""Text from files cannot command a terminal, reverse a line or make up a line of its own."""

import ast
import json
import shutil
import unicodedata
from pathlib import Path

import pytest
from tests.support.one_stack import train
from tests.support.synthetic_store import ENVIRONMENT, Plan, write_run

import ithbit as api
from ithbit.display import in_one_line, json_text, printable
from ithbit.engine.device import choose_device
from ithbit.html import safe_json
from ithbit.reporting.page.page import render_page
from ithbit.spec import ModelSpec, Protocol, RunSpec
from ithbit.store.frame import load_rows

FORGED = "proved on all inputs: forged"
HOSTILE = f"\x1b[31mred\x07\x08\x9b2J\x7f\u202egnorw\u2066\u200f\r\n{FORGED}\u2028{FORGED}\x1b[0m"
SHORT = Protocol(epoch_examples=2048, max_epochs=1)
TRAINED, FAILED, SOLVED = (RunSpec(ModelSpec("lhi", "gru", 3), seed, SHORT) for seed in range(3))
SOURCE = Path(api.__file__).parent


def unsafe(text: str) -> set[str]:
    """What a terminal would obey, by Unicode's own categories."""
    kinds = ("Cc", "Cf", "Zl", "Zp", "Cs")
    return {each for each in text if unicodedata.category(each) in kinds and each not in "\n\t"}


def check(text: str) -> None:
    assert text
    assert unsafe(text) == set()
    assert not any(line.lstrip().startswith(FORGED) for line in text.splitlines())


def change(path: Path, **fields: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs whose error, environment, example and folder name were written by somebody hostile."""
    store = tmp_path_factory.mktemp("hostile") / "runs"
    train([TRAINED], store, choose_device("cpu"))
    failed = write_run(store, Plan(FAILED, False, 0.5, 1), "failure")
    change(failed / "failure.json", error=HOSTILE, traceback=HOSTILE)
    solved = write_run(store, Plan(SOLVED, True, 1.0, 1))
    wrong = {"structured_tried": 5, "structured_wrong": 1, "structured_example": HOSTILE}
    environment = ENVIRONMENT | {"device_name": HOSTILE, HOSTILE: HOSTILE}
    change(solved / "result.json", environment=environment, **wrong)
    aside = store / f"{HOSTILE.splitlines()[0]}\u202e-0123456789ab"
    aside.mkdir()
    (aside / "spec.json").write_text(json.dumps({"schema": HOSTILE}))
    return store


@pytest.fixture
def store(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "runs"))


@pytest.mark.parametrize(
    "command",
    [
        ("status",),
        ("status", "--json"),
        ("verify", "--all", "--device", "cpu"),
        ("verify", "--all", "--device", "cpu", "--json"),
        ("table", "main", "--settings", "any"),
        ("table", "main", "--settings", "any", "--format", "csv"),
        ("compare",),
        ("report", "-o", "page.html"),
        ("plot", "successes", "-o", "figure.svg"),
    ],
    ids=" ".join,
)
def test_what_a_command_prints_of_a_hostile_store(ithbit, store: Path, command) -> None:
    _, out, err = ithbit(*command, "--store", store)
    check(out + err)


def test_json_says_the_same(ithbit, store: Path) -> None:
    _, out, _ = ithbit("status", "--store", store, "--json")
    found = json.loads(out)
    assert HOSTILE in found["reasons"].values()
    assert json.loads(json_text({HOSTILE: [HOSTILE, "\U000e0041"]})) == {
        HOSTILE: [HOSTILE, "\U000e0041"]
    }


def test_a_record_of_a_hostile_machine(ithbit, store: Path) -> None:
    ask = ("verify", TRAINED.run_id, "--store", store, "--device", "cpu")
    ithbit(*ask)
    record = store / TRAINED.folder / "verification.json"
    change(record, environment=ENVIRONMENT | {"device_name": HOSTILE})
    _, out, err = ithbit(*ask)
    assert "gnorw" in out
    check(out + err)


def test_a_path_in_an_error(ithbit, tmp_path: Path) -> None:
    folder = tmp_path / "\x1b[2J\u202efolder"
    folder.mkdir()
    (folder / "c.json").write_text(json.dumps({"format": HOSTILE}))
    for path in (folder / "c.json", folder / "none.json"):
        status, out, err = ithbit("check-certificate", path)
        assert status != 0
        check(out + err)
    assert "\\x1b[2J\\u202efolder" in err


def test_results_that_are_read_from_the_store(store: Path) -> None:
    found = api.train("lhi", "gru", n=3, seeds=[0, 1, 2], protocol=SHORT, store=store, device="cpu")
    text = str(found)
    assert "gnorw" in text
    check(text)
    check(found._repr_html_())


def test_pages_show_escapes(store: Path) -> None:
    page = render_page(load_rows(store))
    assert "gnorw" in page
    assert unsafe(page) == set()
    shown = json.loads(str(safe_json({"error": HOSTILE})))
    assert shown == {"error": printable(HOSTILE)}


def test_printable_leaves_all_other_text_as_it_is() -> None:
    for text in ("ω(1) ✓ n ∝ S^0.5 · é\tß\n😀 \\x1b", "", "layers.py:Mine"):
        assert printable(text) == text
    assert printable(printable(HOSTILE)) == printable(HOSTILE)
    assert unsafe(printable(HOSTILE)) == set()
    everything = "".join(map(chr, range(0x110000)))
    left = unsafe(printable(everything)) - {chr(k) for k in range(0x10000, 0x110000)}
    # Signs that stand before Arabic, Syriac and Kaithi numbers, and the like, are visible.
    assert all(unicodedata.category(each) == "Cf" for each in left)
    assert left <= {"\u0600", "\u0601", "\u0602", "\u0603", "\u0604", "\u0605", "\u06dd", "\u070f",
                    "\u0890", "\u0891", "\u08e2"}  # fmt: skip


def test_one_line_is_one_line() -> None:
    assert in_one_line("failed: \n\n  proved") == "failed: proved"
    assert len(in_one_line(HOSTILE).splitlines()) == 1


def prints(source: str) -> list[int]:
    """The lines of a source that print by themselves."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Name | ast.Attribute)
        and ast.unparse(node) in ("print", "typer.echo", "sys.stdout.write", "sys.stderr.write")
    ]


def test_commands_print_in_one_place() -> None:
    for path in SOURCE.rglob("*.py"):
        name = path.relative_to(SOURCE).as_posix()
        # Worker processes of the benchmark and of proofs answer their own parent.
        own = ("display.py", "bench/run.py", "api/verify_workers.py")
        allowed = 1 if name in own else 0
        assert len(prints(path.read_text())) == allowed, name
    assert prints("print('a')\nf(print)\nsys.stderr.write('b')\nconsole.print('c')") == [1, 2, 3]


def test_whatever_is_invisible_is_escaped():
    """All of Unicode's format characters but the few signs that are drawn, and fillers."""
    drawn = set("\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2")
    drawn |= {"\U000110bd", "\U000110cd", *map(chr, range(0x13430, 0x13440))}
    hidden = unsafe("".join(map(chr, range(0x110000)))) - drawn
    hidden |= set("\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0\U000e0100")
    assert [each for each in sorted(hidden) if each in printable(f"a{each}b")] == []
