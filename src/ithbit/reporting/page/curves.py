"""Learning curves small enough for a page of ten thousand runs.

A curve is thinned to evenly spaced epochs and written as text, seven base-64 digits per point:
three for the epoch, two for the accuracy in units of 1/4000 (exact for held-out sets whose size
divides 4,000, as the paper's 2,000 does) and two for the logarithm of the loss, from 1e-9 to 1e3 in
4,094 steps. 4095 means no number. `template/page.js` reads it back.
"""

import math

from ithbit.store.reading import epoch_of, history_lines, in_order
from ithbit.store.records import Epoch

DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
NO_NUMBER = 4095
LOG_LOW, LOG_HIGH = -9.0, 3.0


def _digits(value: int, places: int) -> str:
    return "".join(DIGITS[(value >> 6 * place) & 63] for place in reversed(range(places)))


def _accuracy(value: object) -> int:
    if not isinstance(value, float | int) or not math.isfinite(value):
        return NO_NUMBER
    return round(4000 * min(1.0, max(0.0, value)))


def _loss(value: object) -> int:
    if not isinstance(value, float | int) or not math.isfinite(value):
        return NO_NUMBER
    log = math.log10(max(value, 10.0**LOG_LOW))
    return round(4094 * (min(log, LOG_HIGH) - LOG_LOW) / (LOG_HIGH - LOG_LOW))


def encode_curve(points: list[tuple[int, object, object]]) -> str:
    """Points (epoch, accuracy, loss) as text.

    >>> encode_curve([(1, 0.5, 1.0), (64, 1.0, 1e-9)])
    'AABfQv-ABA-gAA'
    """
    return "".join(
        _digits(min(epoch, 64**3 - 1), 3)
        + _digits(_accuracy(accuracy), 2)
        + _digits(_loss(loss), 2)
        for epoch, accuracy, loss in points
    )


def _spaced(count: int, points: int) -> list[int]:
    """At most `points` places out of `count`, evenly spaced, both ends included."""
    if count <= points:
        return list(range(count))
    return [round(step * (count - 1) / (points - 1)) for step in range(points)]


def thin_epochs(epochs: list[Epoch], points: int) -> str:
    """At most `points` of these epochs, evenly spaced, both ends included, as text."""
    thinned = (epochs[at] for at in _spaced(len(epochs), points))
    return encode_curve([(e.epoch, e.held_out_accuracy, e.held_out_loss) for e in thinned])


def thin_curve(folder: str, points: int) -> str:
    """At most `points` epochs of a run folder's history, thinned like `thin_epochs`, as text.

    Only the lines that are kept are parsed; a torn line is skipped.
    """
    lines = history_lines(folder)
    thinned = [epoch_of(lines[at]) for at in _spaced(len(lines), points)]
    return thin_epochs(in_order(thinned), points)
