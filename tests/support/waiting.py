"""Waiting for what another process does, with an end."""

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], bool], what: str, seconds: float = 90) -> None:
    """Wait until the condition holds; fail after that many seconds, naming what was waited for."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"did not happen in {seconds:g} s: {what}"
        time.sleep(0.005)
