"""Files written whole or not at all."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from ithbit.errors import OutputError


def write_whole(path: Path, write: Callable[[Path], object]) -> Path:
    """Let `write` fill a temporary file beside `path`, then put it there in one step.

    What stood at `path` before stays until the new file is complete. Folders on the way are made.
    """
    temporary = None
    try:
        if path.is_dir():
            raise OutputError(f"cannot write {path}: it is a folder; name a file")
        path.parent.mkdir(parents=True, exist_ok=True)
        # The suffix stays: matplotlib and polars tell the format by it.
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".ithbit-", suffix=path.suffix)
        os.close(handle)
        temporary = Path(name)
        write(temporary)
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)  # mkstemp's own is for one user alone
        os.replace(temporary, path)
    except OSError as error:
        reason = error.strerror or str(error)
        raise OutputError(f"cannot write {path}: {reason}; name another file") from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
    return path


def write_text(path: Path, text: str) -> Path:
    """Write UTF-8 text whole or not at all."""
    return write_whole(path, lambda at: at.write_bytes(text.encode()))


def check_writable(path: Path) -> None:
    """Refuse a file that could not be written, or whose folder is not there: before long work."""
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
