"""Files written whole or not at all: under a temporary name, then moved into place in one step."""

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any
from uuid import uuid4

from ithbit.errors import OutputError, StoreError


def in_memory(write: Callable[[BytesIO], object]) -> bytes:
    """What a library writes, as bytes: a full disk then raises in our code, not in its own."""
    buffer = BytesIO()
    write(buffer)
    return buffer.getvalue()


def write_atomically(path: Path, content: bytes) -> None:
    """Put a file in place in one step, after it has been flushed to disk.

    An earlier file at `path` stays until then.
    """
    try:
        _write_and_move(path, content)
    except FileNotFoundError:  # a second copy of the run started, and cleared the folder meanwhile
        _write_and_move(path, content)


def _write_and_move(path: Path, content: bytes) -> None:
    # Not mkstemp, whose files only one user can read: a store may be shared. The suffix is kept: a
    # run folder is cleared of what a killed process left by it.
    temporary = path.with_name(f".ithbit-{uuid4().hex}{path.suffix}")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_output(path: Path, content: bytes) -> Path:
    """Write a file that the user asked for, creating its folders. Raises `OutputError`."""
    try:
        if path.is_dir():
            raise OutputError(f"cannot write {path}: it is a folder; name a file")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
    except (FileExistsError, NotADirectoryError) as error:
        raise OutputError(
            f"cannot write {path}: {path.parent} is not a folder; give another path"
        ) from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise OutputError(f"cannot write {path}: {reason}; name another file") from error
    return path


def write_text(path: Path, text: str) -> Path:
    """Like `write_output`, for UTF-8 text."""
    return write_output(path, text.encode())


def check_writable(path: Path) -> None:
    """Before long work, raise `OutputError` if a file cannot be written, or has no folder."""
    try:
        if path.is_dir():
            raise OutputError(f"cannot write {path}: it is a folder; name a file")
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise OutputError(
            f"cannot write {path}: {error.strerror or error}; give a file in a folder that can be "
            "written"
        ) from error


def json_bytes(data: dict[str, Any]) -> bytes:
    """A record as it is stored on disk."""
    return (json.dumps(data, indent=1, allow_nan=False) + "\n").encode()


@contextmanager
def translate_os_errors(path: Path) -> Iterator[None]:
    """Turn an error of the operating system into a `StoreError`; nothing finished is lost."""
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"cannot write to {path}: {error.strerror or error}; what is finished is kept: "
            "fix that and run the same command again"
        ) from error
