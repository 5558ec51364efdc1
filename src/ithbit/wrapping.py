"""Text output in the lines of an eighty-column terminal."""

import textwrap
from itertools import zip_longest

COLUMNS = 80


def wrapped(text: str, first: str = "", then: str = "", columns: int = COLUMNS) -> list[str]:
    """The lines of a text, indented; a word longer than a line, such as a path, is not broken.

    >>> wrapped("one two three", "- ", "  ", columns=9)
    ['- one two', '  three']
    """
    return textwrap.wrap(
        text,
        columns,
        initial_indent=first,
        subsequent_indent=then,
        break_long_words=False,
        break_on_hyphens=False,
    )


def aligned(cells: list[str], widths: list[int], gap: int, to_left: list[bool]) -> list[str]:
    """The lines of one row of a table, as many as its tallest cell needs.

    >>> aligned(["a word", "2"], [4, 3], 1, [True, False])
    ['a      2', 'word']
    """
    texts = [
        [part for line in cell.split("\n") for part in wrapped(line, columns=width)]
        for cell, width in zip(cells, widths, strict=True)
    ]
    lines = []
    for parts in zip_longest(*texts, fillvalue=""):
        line = [
            part.ljust(width) if left else part.rjust(width)
            for part, width, left in zip(parts, widths, to_left, strict=True)
        ]
        lines.append((" " * gap).join(line).rstrip())
    return lines
