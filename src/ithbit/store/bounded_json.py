"""JSON from a file that anyone may have written: refused before it takes all memory."""

import json
from typing import Any

MOST_BYTES = 1 << 27
MOST_VALUES = 1 << 23  # about, by commas and opening brackets; they may take a gigabyte


def bounded_json(data: bytes, **hooks: Any) -> Any:
    """What `json.loads` gives, which may need fifty times the memory of its text; raises ValueError
    before it does for more than a record or a certificate can have.

    >>> bounded_json(b'{"n": 8}')
    {'n': 8}
    """
    if len(data) > MOST_BYTES or sum(map(data.count, (b",", b"[", b"{"))) > MOST_VALUES:
        raise ValueError("it holds too much")
    return json.loads(data.decode(), **hooks)
