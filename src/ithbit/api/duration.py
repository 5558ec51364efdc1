"""Durations as a person says them."""


def clock(seconds: float) -> str:
    """A duration in its two largest units.

    >>> clock(42), clock(150), clock(7300), clock(200_000)
    ('42 s', '2 min 30 s', '2 h 1 min', '2 d 7 h')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"
