"""Wrapping of text output to the lines of an eighty-column terminal."""

import textwrap

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
