"""What a store holds, and the records of one run folder: valid, or the reason why it is set aside.

Every command reads runs this way. A run is valid if `spec.json` and, if present, `result.json` or
else `failure.json` are JSON objects of this schema that belong to the folder's run, have all fields
with the right types, and do not contradict themselves. They belong to the run if their id is that
of the spec they hold, and the folder has the name that this spec gives it. A folder of any other
name is a copy: it is named and never counted, so that no run counts twice.

What is read is data, whoever wrote it: only regular files are opened (opening a FIFO would wait for
ever), and a record is strict JSON: no key twice, no NaN.
"""

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from ithbit.errors import SpecError, StoreError, as_int
from ithbit.families import family_named, task_named
from ithbit.spec import ModelSpec, Protocol, RunSpec, spec_id
from ithbit.store.bounded_json import bounded_json
from ithbit.store.contradictions import check_result, check_verification
from ithbit.store.linked_files import (
    check_linked_files,
    read_regular,
    sha256_of_file,
)
from ithbit.store.linked_files import open_regular as open_regular
from ithbit.store.records import (
    SCHEMA,
    VERDICTS_0_1,
    Epoch,
    Failure,
    Result,
    VerificationRecord,
    from_json,
)
from ithbit.store.schema import (
    MAX_INT,
    ContradictionError,
    CopyError,
    UnreadableError,
    check,
    must,
    read_as,
    schema,
    shortened,
)

Data = Mapping[str, Any]  # by field name: a JSON record, or a row of a table
State = Literal["finished", "failed", "unfinished"]

TABLE_FORMATS = ("parquet", "csv")  # of an export
_LARGEST, _DEEPEST = 1 << 26, 50  # of a record: bytes, levels of lists and objects
_RUN_FOLDER = re.compile(r"(?P<name>.+)-[0-9a-f]{12}")
WHOSE = {"run_id": must(str), "name": must(str)}
_SEED = {"seed": must(int)}
RESULT = {name: field for name, field in schema(Result).items() if name != "spec"}
RESULT |= {"solved": must(bool)}
_FAILURE = {name: field for name, field in schema(Failure).items() if name != "spec"}


def run_folders(store: Path) -> Iterator[tuple[str, str]]:
    """The run's name and the folder's name, for every run folder of a store."""
    for entry in sorted(os.scandir(store), key=lambda entry: entry.name):
        match = _RUN_FOLDER.fullmatch(entry.name)
        if match and entry.is_dir():
            yield match["name"], entry.name


def is_export(folder: Path) -> bool:
    """Whether a folder holds the table of runs of `ithbit export`, and no run folders."""
    tables = (folder / f"runs.{form}" for form in TABLE_FORMATS)
    return any(map(os.path.isfile, tables)) and not any(run_folders(folder))


def check_kind(store: Path) -> None:
    """Raise `StoreError` if a store is a file or an export; it need not exist yet."""
    if os.path.exists(store) and not os.path.isdir(store):
        raise StoreError(f"the store {store} is a file; give a folder with --store")
    if is_export(store):
        raise StoreError(
            f"{store} holds the tables of `ithbit export`, not run folders; name another folder "
            "(`ithbit table`, `compare`, `plot`, `report` and `export` read the tables)"
        )


def read_json(path: str) -> dict[str, Any] | None:
    """The record at `path`, or None if there is none; raises `UnreadableError`."""
    name = os.path.basename(path)
    try:
        with open_regular(path) as file:
            if os.fstat(file.fileno()).st_size > _LARGEST:
                raise UnreadableError(f"{name} is too large for a record")
            data = _parsed(file.read())
    except FileNotFoundError:
        if os.path.islink(path):  # its target may be missing only for now
            raise UnreadableError(f"{name} is a link to nothing") from None
        return None
    except _TwiceError as error:
        raise UnreadableError(f"{name} has {error} twice") from None
    except (ValueError, RecursionError):
        raise UnreadableError(f"{name} is not valid JSON") from None
    except OSError as error:
        raise UnreadableError(f"{name} cannot be read ({error.strerror})") from None
    if not isinstance(data, dict):
        raise UnreadableError(f"{name} is not a JSON object")
    if data.get("schema") != SCHEMA:
        raise UnreadableError(
            f"{name} has schema {shortened(data.get('schema'))}, this version reads {SCHEMA}"
        )
    return data


class _TwiceError(ValueError):
    """A key that a JSON object has twice: which value counts would depend on the reader."""


def _parsed(content: bytes) -> Any:
    """Strict JSON in UTF-8; raises ValueError or RecursionError on anything else."""

    def refused(constant: str) -> Any:
        raise ValueError(f"{constant} is not JSON")

    data = bounded_json(content, object_pairs_hook=_without_twins, parse_constant=refused)
    _check_depth(data)
    if (
        b"\\u" in content
    ):  # half a surrogate pair is no text: it cannot be printed or put in a table
        json.dumps(data, ensure_ascii=False).encode()
    return data


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise _TwiceError(f"{twice!r:.40}")
    return data


def _check_depth(data: Any, depth: int = 0) -> None:
    """Raise ValueError for lists or objects nested so deeply that writing them could fail."""
    if depth > _DEEPEST:
        raise ValueError("nested too deeply")
    if isinstance(data, dict | list):
        for each in data.values() if isinstance(data, dict) else data:
            _check_depth(each, depth + 1)


def read_run(folder: str) -> tuple[State, dict[str, Any]]:
    """The state of a run by its files, and the record that shows it; raises `UnreadableError`."""
    spec = read_json(f"{folder}/spec.json")
    if spec is None:
        raise UnreadableError("it has no spec.json; half copied?")
    _check_head(folder, spec, "spec.json")
    result = read_json(f"{folder}/result.json")
    if result is not None:
        _check_head(folder, result, "result.json")
        check(result, RESULT, "result.json")
        check_result(result, result["spec"]["protocol"], "result.json")
        return "finished", result
    failure = read_json(f"{folder}/failure.json")
    if failure is not None:
        _check_head(folder, failure, "failure.json")
        check(failure, _FAILURE, "failure.json")
        return "failed", failure
    return "unfinished", spec


def is_copy(folder: str) -> bool:
    """Whether a folder is a copy of a run's folder under another name."""
    try:
        read_run(folder)
    except CopyError:
        return True
    except UnreadableError:
        pass
    return False


def ended(folder: str) -> Result | Failure | None:
    """How the run of a folder ended, or None if it has not; raises `UnreadableError`."""
    state, record = read_run(folder)
    if state == "unfinished":
        return None
    return from_json(Result, record) if state == "finished" else from_json(Failure, record)


def _check_head(folder: str, record: dict[str, Any], file: str) -> None:
    """Check what all three files have in common: the run's id and name, and its complete spec."""
    if not folder.endswith(f"-{record.get('run_id')}"):
        raise UnreadableError(f"{file} belongs to another run")
    spec = record.get("spec")
    if not isinstance(spec, dict) or not all(
        isinstance(spec.get(part), dict) for part in ("model", "protocol")
    ):
        raise UnreadableError(f"{file} has no complete spec")
    model, protocol = spec["model"], spec["protocol"]
    try:
        task_named(model["task"])
        family_named(model["family"])
    except SpecError:
        raise UnreadableError(f"{file} names an unknown task or family") from None
    except (KeyError, TypeError):
        pass  # reported by the next check
    check(model, schema(ModelSpec), f"{file}: model")
    # A field that the protocol lacks did not exist yet: its default applies.
    fields = {n: f for n, f in schema(Protocol).items() if protocol.get(n) is not None}
    check(protocol, fields, f"{file}: protocol")
    check(record, WHOSE, file)
    check(spec, _SEED, f"{file}: spec")
    if spec_id(spec) != record["run_id"]:
        raise UnreadableError(f"{file} has the spec of another run")
    run = check_spec(model, spec["seed"], protocol, file)
    if record["name"] != run.name:
        raise UnreadableError(f"{file} has the name of another run: {record['name']!r:.80}")
    is_complete = _is_complete(model, ModelSpec) and _is_complete(protocol, Protocol)
    if is_complete and run.run_id != record["run_id"]:
        raise UnreadableError(f"{file} has another spelling of the spec of {run.folder}")
    same = with_floats(run)
    if same.run_id != record["run_id"] and os.path.isdir(
        os.path.join(os.path.dirname(folder), same.folder)
    ):
        raise CopyError(f"it is the same run as {same.folder}, which counts; move it out")
    own = f"{run.name}-{record['run_id']}"
    if os.path.basename(folder) != own:
        exists = os.path.isdir(os.path.join(os.path.dirname(folder), own))
        what = (
            "which counts; move it out of the store" if exists else "which is not there; rename it"
        )
        raise CopyError(f"it is a copy of {own}, {what}")


def with_floats(run: RunSpec) -> RunSpec:
    """The same run, spelled as the defaults are: with 0 or -0.0 for 0.0 in its protocol, its id is
    another, though nothing else is."""
    protocol = vars(run.protocol)
    floats = {name: field for name, field in schema(Protocol).items() if field.kind is float}
    spelled = {name: protocol[name] + 0.0 for name in floats}  # -0.0 + 0.0 is 0.0
    return replace(run, protocol=replace(run.protocol, **spelled))


def _is_complete(part: Data, kind: type) -> bool:
    """Whether a part of a spec has the fields of this version: no others, and none missing."""
    needed = {name for name, field in schema(kind).items() if field.must_be}
    return needed <= part.keys() <= schema(kind).keys()


def check_spec(model: Data, seed: int, protocol: Data, where: str) -> RunSpec:
    """The run of a model and a protocol; refuse what cannot be built. Fields that this version
    lacks are ignored."""
    settings = [
        {name: part[name] for name in schema(kind) if part.get(name) is not None}
        for kind, part in ((ModelSpec, model), (Protocol, protocol))
    ]
    for name, value in (settings[0] | settings[1] | {"seed": seed}).items():
        if isinstance(value, int) and abs(value) > MAX_INT:
            raise ContradictionError(f"{where} has {name} = {value!r:.40}, which is too large")
    try:
        return RunSpec(ModelSpec(**settings[0]), seed, Protocol(**settings[1]))
    except SpecError as error:
        raise ContradictionError(f"{where}: {error}") from None


def read_verification(folder: str) -> VerificationRecord | None:
    """What `ithbit verify` found about the weights in a run folder, or None if it left nothing
    readable about them. That is no error: verifying again replaces it, and the run itself is valid.

    A record of other weights does not count. If the folder has no weights, there is nothing to
    compare with, and its record counts. A proof counts as *bounded (unchecked)* unless the record
    says that a second implementation confirmed the very file proof.json of the folder, and that
    file is about the same run, weights and margin.
    """
    try:
        return load_verification(folder)
    except UnreadableError:
        return None


def load_verification(folder: str) -> VerificationRecord | None:
    """As `read_verification`, but raises `UnreadableError` for a record that does not count."""
    data = read_json(f"{folder}/verification.json")
    if data is None or (spec := read_json(f"{folder}/spec.json")) is None:
        return None
    record = parse_verification(data, spec)
    return check_linked_files(folder, record, sha256_of_file(f"{folder}/weights.safetensors"))


def parse_verification(data: dict[str, Any], owner: Data) -> VerificationRecord:
    """The content of verification.json, if it is complete, consistent and about the run of `owner`,
    its spec.json or result.json; raises `UnreadableError` if not."""
    try:
        subject = data.get("run_id"), data.get("name"), data.get("n_bits")
        if subject != (owner["run_id"], owner["name"], owner["spec"]["model"]["n_bits"]):
            raise UnreadableError("verification.json belongs to another run")
        data["verdict"] = VERDICTS_0_1.get(str(data.get("verdict")), data.get("verdict"))
        record = read_as(VerificationRecord, data | {"found": data}, "verification.json")
        check_verification(record.found, "verification.json")
        wrong = {int(i): as_int("a count", count) for i, count in data["wrong_by_index"].items()}
        _ = record.found.effort, record.found.sentence()  # stages and margins that can be printed
    except (SpecError, ValueError, KeyError, TypeError, OverflowError, AttributeError) as error:
        raise UnreadableError(f"verification.json is damaged: {str(error)!r:.200}") from None
    return replace(record, found=replace(record.found, wrong_by_index=wrong))


def read_history(folder: str) -> list[Epoch]:
    """The epochs of a run folder in order, each once: its last complete line counts."""
    return in_order(map(epoch_of, history_lines(folder)))


def history_lines(folder: str) -> list[bytes]:
    """The lines of a run's history as they are on disk, including torn ones; none of a file that is
    too large to be one."""
    try:
        return read_regular(f"{folder}/history.jsonl", _LARGEST).splitlines()
    except OSError:
        return []


def epoch_of(line: bytes) -> Epoch | None:
    """The epoch in a line, or None if the line is torn or not a possible epoch."""
    if not line.startswith(b"{"):  # seen sooner than by an error
        return None
    try:
        return read_as(Epoch, bounded_json(line), "it")
    except (ValueError, RecursionError, AttributeError, UnreadableError):
        return None


def in_order(epochs: Iterable[Epoch | None]) -> list[Epoch]:
    """Each epoch once, its last record, ordered by number."""
    last = {epoch.epoch: epoch for epoch in epochs if epoch is not None}
    return [last[number] for number in sorted(last)]
