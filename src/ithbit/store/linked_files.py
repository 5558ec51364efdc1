"""The files of a run folder that its records refer to by digest: weights and certificate."""

import errno
import hashlib
import os
import stat
from dataclasses import replace
from io import BufferedReader
from pathlib import Path

from ithbit.store.bounded_json import bounded_json
from ithbit.store.records import PROVED, VerificationRecord
from ithbit.store.schema import UnreadableError

_MOST_BYTES = 1 << 30


def open_regular(path: str | Path) -> BufferedReader:
    """Open a file to read; raises OSError at once if it is anything else than a regular file."""
    opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise OSError(errno.EINVAL, "not a regular file")
    return open(opened, "rb")


def read_regular(path: str | Path, most: int = _MOST_BYTES) -> bytes:
    """The bytes of a file; raises OSError at once if it is none, or too large to be of a run."""
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size > most:
            raise OSError(errno.EFBIG, f"more than {most:,} bytes")
        return file.read()


def leads_out(path: str | Path, store: str | Path) -> bool:
    """Whether links lead from a path in a store to what is outside of it."""
    return not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(store))


def need_within(folder: Path) -> None:
    """Raise OSError if a run folder is a link that leads out of its store: nothing is written
    there."""
    if leads_out(folder, folder.parent):
        raise OSError(errno.ELOOP, "it is a link that leads out of the store")


def owner(weights: bytes) -> str | None:
    """The id of the run that a weights file says it is of; None if it says nothing."""
    size = int.from_bytes(weights[:8], "little")
    try:
        return bounded_json(weights[8 : 8 + size])["__metadata__"]["run_id"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def sha256_of_file(path: str | Path) -> str | None:
    """The digest of a file; None if it cannot be read."""
    try:
        with open_regular(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, ValueError):
        return None


def check_linked_files(
    folder: str, record: VerificationRecord, weights_sha256: str | None
) -> VerificationRecord:
    """The record, with its proof as *bounded* unless proof.json is the certificate it refers to;
    raises `UnreadableError` if it is about other weights than these (None: there are none)."""
    if weights_sha256 not in (None, record.weights_sha256):
        raise UnreadableError("verification.json is about other weights than those of the folder")
    verification, proof = record.found, record.found.proof
    counts = proof and proof.verdict == PROVED and _has_certificate(folder, record)
    claimed = proof is not None and (proof.outcome == "proved" or verification.verdict == PROVED)
    if proof is not None and claimed and not counts:
        verification = verification.with_proof(replace(proof, outcome="bounded", checked=""))
    return replace(record, found=verification)


def _has_certificate(folder: str, record: VerificationRecord) -> bool:
    """Whether proof.json is the file that a record says was confirmed, and states what the record
    does of the same run and weights. Whether it holds is for `ithbit check-certificate` to say."""
    proof = record.found.proof
    try:
        data = read_regular(f"{folder}/proof.json")
        content = bounded_json(data)
    except (OSError, ValueError, RecursionError):
        return False
    if proof is None or not isinstance(content, dict):
        return False
    stated = [content.get(name) for name in ("run_id", "weights_sha256", "margin")]
    expected = [record.run_id, record.weights_sha256, proof.least_margin]
    return stated == expected and hashlib.sha256(data).hexdigest() == proof.certificate_sha256
