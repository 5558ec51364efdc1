"""One damaged run, whatever the damage, stops no reader of a store: the others are read, nothing is
deleted, and nothing waits."""

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.support.paths import TOY_LAYERS

import ithbit
from ithbit.errors import IthbitError
from ithbit.sweeps.estimate import observed_pace

TINY = ithbit.Protocol(batch_size=32, epoch_examples=64, held_out_examples=32, max_epochs=2)
SAMPLED = 20  # damages tried in the default suite; all of them in the slow one
Damage = Callable[[Path], object]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three verified runs of n = 2, one of them of a user's own layer."""
    store = tmp_path_factory.mktemp("whole") / "runs"
    here = {"n": 2, "width": 4, "protocol": TINY, "store": store, "device": "cpu", "workers": 1}
    ithbit.train("lhi", "gru", seeds=[0, 1], **here)
    ithbit.train("lhi", f"{TOY_LAYERS}:RunningMean", seeds=[0], **here)
    ithbit.verify(all_runs=True, store=store, device="cpu")
    return store


def of_bytes() -> Iterator[tuple[str, Damage]]:
    """What may have become of any file."""

    def put(content: Callable[[bytes], bytes]) -> Damage:
        return lambda file: file.write_bytes(content(file.read_bytes()))

    yield "deleted", lambda file: file.unlink()
    yield "empty", put(lambda data: b"")
    for share in (1, 2, 7):
        yield (
            f"truncated at {share}/8",
            put(lambda data, share=share: data[: len(data) * share // 8]),
        )
    for seed in range(3):
        noise = random.Random(seed).randbytes(999)
        yield f"random {seed}", put(lambda data, noise=noise: noise)
        at = random.Random(seed).random()

        def one_byte(data: bytes, at: float = at) -> bytes:
            place = int(at * len(data))
            return (
                data[:place] + bytes(each ^ 0xFF for each in data[place:][:1]) + data[place + 1 :]
            )

        yield f"one byte {seed}", put(one_byte)
    yield "not UTF-8", put(lambda data: b"\xff\xfe" + data)
    yield "zeros", put(lambda data: bytes(len(data)))
    for text in ("[]", "7", "null", '"text"', "{}", "true", "[" * 10**5, "1e999", '{"schema": 1}'):
        yield f"JSON {text[:9]}", put(lambda data, text=text: text.encode())
    yield "a folder", lambda file: (file.unlink(), file.mkdir())
    yield "a FIFO", lambda file: (file.unlink(), os.mkfifo(file))
    yield "a link to nothing", lambda file: (file.unlink(), file.symlink_to("gone"))
    yield "a link to itself", lambda file: (file.unlink(), file.symlink_to(file.name))
    yield "a device", lambda file: (file.unlink(), file.symlink_to("/dev/zero"))
    if os.geteuid():
        yield "unreadable", lambda file: file.chmod(0)


VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    2.5,
    10**9,
    10**30,
    float("nan"),
    float("inf"),
    "",
    "1.0",
    "\ud800",
    "x" * 10**5,
    "../../x",
    "\x1b[31m",
    [],
    {},
    {"0": {}},
    "DEEP",
)
DEEP = "[" * 300 + "]" * 300


def paths_in(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path to every field of a JSON value."""
    fields = data.items() if isinstance(data, dict) else enumerate(data[:2])
    for key, value in fields:
        yield (*path, key)
        if isinstance(value, dict | list):
            yield from paths_in(value, (*path, key))


def replaced(path: tuple[Any, ...], value: Any) -> Damage:
    """One field of a record replaced."""

    def damage(file: Path) -> None:
        data = json.loads(file.read_text())
        inner = data
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = value
        file.write_text(json.dumps(data).replace('"DEEP"', DEEP))

    return damage


def removed(path: tuple[Any, ...]) -> Damage:
    def damage(file: Path) -> None:
        data = json.loads(file.read_text())
        inner = data
        for key in path[:-1]:
            inner = inner[key]
        del inner[path[-1]]
        file.write_text(json.dumps(data))

    return damage


def damages(folder: Path) -> list[tuple[str, str, Damage]]:
    """Every damage: the file, its name, and what is done to the file."""
    found = []
    for file in sorted(folder.iterdir()):
        found += [(file.name, what, damage) for what, damage in of_bytes()]
        if file.suffix == ".json":
            for path in paths_in(json.loads(file.read_text())):
                found += [
                    (file.name, f"{path} = {value!r:.20}", replaced(path, value))
                    for value in VALUES
                ]
                found.append((file.name, f"no {path}", removed(path)))
    return found


def files_in(store: Path) -> set[str]:
    """Everything below a store, links not followed."""
    return {
        os.path.relpath(os.path.join(root, name), store)
        for root, folders, names in os.walk(store)
        for name in (*folders, *names)
    }


def try_one(whole: Path, place: Path, victim: str, file: str, what: str, damage: Damage) -> None:
    store = place / "runs"
    shutil.copytree(whole, store)
    damage(store / victim / file)
    others = {folder.name for folder in whole.iterdir()} - {victim}
    before = files_in(store)
    try:
        found = ithbit.verify(all_runs=True, again=True, store=store, device="cpu")
        verified = {each.folder for each in found}
        assert others <= verified
        named = victim in verified or any(victim in each for each in found.set_aside)
        assert named or ithbit.status(store=store).runs[victim] == "stopped"  # it has no result
        str(found), json.dumps(found.to_json())
        said = ithbit.status(store=store)
        assert set(said.runs) == others | {victim}
        str(said), json.dumps(said.to_json())
        frame = ithbit.runs(store)
        assert others <= set(frame["folder"])
        assert frame["max_accuracy"].is_between(0, 1).all()
        ithbit.runs(store, histories=True)
        str(ithbit.table("main", store=store, settings="any"))
        merged = ithbit.merge(store, store=place / "merged")
        assert len(merged.taken) >= len(others)
        observed_pace(store, cuda=False)
        with suppress(IthbitError):
            ithbit.load(victim, store=store)
        with suppress(IthbitError):
            ithbit.explore(victim, store=store, out=place / "page.html")
        assert before <= files_in(store) | {f"{victim}/verification.json"}
    except BaseException as error:
        error.add_note(f"{victim}/{file}: {what}")
        raise
    finally:
        shutil.rmtree(place)


def cases(whole: Path) -> list[tuple[str, str, str, Damage]]:
    own = next(folder for folder in whole.iterdir() if (folder / "layer.json").exists())
    other = min(folder for folder in whole.iterdir() if folder != own)
    all_of_own = [(own.name, *each) for each in damages(own) if each[0].startswith("layer.")]
    return [(other.name, *each) for each in damages(other)] + all_of_own


def test_some_damages(whole: Path, tmp_path: Path) -> None:
    every = cases(whole)
    sample = random.Random(0).sample(every, SAMPLED)
    sample += [case for case in every if case[2] == "a FIFO" or case[1] == "layer.json"][::6]
    for number, case in enumerate(sample):
        try_one(whole, tmp_path / str(number), *case)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_damage(whole: Path, tmp_path: Path) -> None:
    for number, case in enumerate(cases(whole)):
        try_one(whole, tmp_path / str(number), *case)
