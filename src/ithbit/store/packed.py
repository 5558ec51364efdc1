"""A store as one ZIP file: finished runs packed for shipping, and read like a folder.

`opened` turns a path at or inside such a file (`weights.zip`, `weights.zip/RUN/proof.json`) into
the path of a temporary copy that lasts as long as the process. What is written there is lost: a
packed store is read-only. The file is data, whoever wrote it: only names of run folders and of the
files that a run has are taken, and no more of either than a store of ours could hold.
"""

import atexit
import re
import shutil
import tempfile
import zipfile
import zlib
from io import BytesIO
from pathlib import Path

from ithbit.errors import StoreError
from ithbit.store.linked_files import leads_out, read_regular
from ithbit.store.reading import run_folders
from ithbit.store.status import need_runs
from ithbit.store.writing import in_memory, write_output

SUFFIX = ".zip"
FILES = (
    *("spec.json", "result.json", "failure.json", "history.jsonl", "weights.safetensors"),
    *("verification.json", "proof.json"),
)
_FOLDER = re.compile(r"[A-Za-z0-9._-]+-[0-9a-f]{12}")
_ENTRIES, _BYTES = 1 << 20, 1 << 33  # the most that are unpacked
_RATIO, _SMALL = 200, 1 << 26  # nor more bytes than so many times the file, or than that many
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # others may need much memory
_DAMAGED = (zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error)
_WHEN = (2020, 1, 1, 0, 0, 0)  # of every entry: equal stores give equal files
_opened: dict[tuple[Path, int, int], Path] = {}


def packed_part(path: Path) -> Path | None:
    """The packed store that a path is, or is inside of; None if there is none."""
    for part in (path, *path.parents):
        if part.suffix.lower() == SUFFIX and part.is_file():
            return part
    return None


def opened(path: str | Path) -> Path:
    """The path itself or, at or inside a packed store, that of its temporary copy."""
    path = Path(path)
    file = packed_part(path)
    if file is None:
        return path
    stat = file.stat()
    key = file.resolve(), stat.st_mtime_ns, stat.st_size
    if key not in _opened:
        folder = Path(tempfile.mkdtemp(prefix="ithbit-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        _unpack(file, folder / file.name)
        _opened[key] = folder / file.name
    return _opened[key] / path.relative_to(file)


def as_named(path: Path) -> Path:
    """The path by which a user knows a store: the packed one, if this is its temporary copy."""
    for (file, _, _), copy in _opened.items():
        if path == copy:
            folder = Path.cwd()
            return file.relative_to(folder) if file.is_relative_to(folder) else file
    return path


def pack(store: Path, out: Path) -> Path:
    """Write the finished and failed runs of a store into one file; what is under way stays out."""
    need_runs(store)

    def write(buffer: BytesIO) -> None:
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            for _, folder in run_folders(store):
                files = {name: store / folder / name for name in FILES}
                if not (files["result.json"].exists() or files["failure.json"].exists()):
                    continue
                for name, path in files.items():
                    if path.exists():
                        if leads_out(path, store):
                            raise StoreError(
                                f"{path} is a link that leads out of the store; replace it by a "
                                "file, or move the folder out of the store"
                            )
                        entry = zipfile.ZipInfo(f"{folder}/{name}", _WHEN)
                        entry.compress_type = zipfile.ZIP_DEFLATED
                        archive.writestr(entry, read_regular(path))

    return write_output(out, in_memory(write))


def _unpack(file: Path, folder: Path) -> None:
    """Unpack the runs; raises `StoreError` for a file that holds anything else."""
    try:
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
            _check(file, entries)
            folder.mkdir(parents=True)
            for entry in entries:
                target = folder / entry.filename
                target.parent.mkdir(exist_ok=True)
                with archive.open(entry) as source, open(target, "xb") as copy:
                    n_left = entry.file_size
                    while chunk := source.read(1 << 20):
                        n_left -= len(chunk)
                        if n_left < 0:
                            raise zipfile.BadZipFile(f"{entry.filename} is larger than stated")
                        copy.write(chunk)
    except (*_DAMAGED, EOFError, NotImplementedError) as error:
        raise StoreError(f"the packed store {file} is damaged: {error!s:.200}") from error
    except (RuntimeError, ValueError) as error:  # encrypted, or compressed in an unknown way
        raise StoreError(f"the packed store {file} cannot be read: {error!s:.200}") from error
    except OSError as error:
        raise StoreError(f"the packed store {file} cannot be read: {error.strerror}") from error


def _check(file: Path, entries: list[zipfile.ZipInfo]) -> None:
    problem, size = "", sum(entry.file_size for entry in entries)
    most = min(max(_SMALL, _RATIO * file.stat().st_size), _BYTES)
    if len(entries) > _ENTRIES or size > most:
        problem = "it holds more than can be unpacked"
    elif any(entry.compress_type not in _METHODS for entry in entries):
        problem = "it is compressed in another way"
    elif len({entry.filename for entry in entries}) < len(entries):
        problem = "it holds a file twice"
    for entry in entries:
        folder, _, name = entry.filename.partition("/")
        if not _FOLDER.fullmatch(folder) or name not in FILES:
            problem = f"it holds {entry.filename!r:.100}, which is no file of a run"
    if problem:
        raise StoreError(
            f"{file} is no packed store: {problem}; `ithbit export --format zip` packs one"
        )
