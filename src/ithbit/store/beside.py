"""The files of a run folder that its records speak of: whether they are those that are meant."""

import errno
import hashlib
import json
import os
import stat
from io import BufferedReader
from pathlib import Path

from ithbit.store.records import VerificationRecord

_MOST_BYTES = 1 << 30


def open_regular(path: str | Path) -> BufferedReader:
    """Open a file to read; raises OSError at once if it is anything else than a regular file."""
    opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise OSError(errno.EINVAL, "not a regular file")
    return open(opened, "rb")


def read_regular(path: str | Path) -> bytes:
    """The bytes of a file; raises OSError at once if it is none, or too large to be of a run."""
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size > _MOST_BYTES:
            raise OSError(errno.EFBIG, f"more than {_MOST_BYTES:,} bytes")
        return file.read()


def is_of(path: str, sha256: str) -> bool | None:
    """Whether a file has that digest; None if it cannot be read."""
    try:
        with open_regular(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == sha256
    except (OSError, ValueError):
        return None


def owner(weights: bytes) -> str | None:
    """The id of the run that a weights file says it is of; None if it says nothing."""
    size = int.from_bytes(weights[:8], "little")
    try:
        return json.loads(weights[8 : 8 + size])["__metadata__"]["run_id"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def has_certificate(folder: str, verified: VerificationRecord) -> bool:
    """Whether proof.json is the file that a record says was confirmed, and states what the record
    does of the same run and weights. Whether it holds is for `ithbit check-certificate` to say."""
    proof = verified.found.proof
    try:
        data = read_regular(f"{folder}/proof.json")
        content = json.loads(data)
    except (OSError, ValueError, RecursionError):
        return False
    if proof is None or not isinstance(content, dict):
        return False
    stated = [content.get(name) for name in ("run_id", "weights_sha256", "margin")]
    meant = [verified.run_id, verified.weights_sha256, proof.least_margin]
    return stated == meant and hashlib.sha256(data).hexdigest() == proof.certificate_sha256
