"""Sentences cut into the lines of a terminal of eighty columns, for all that is printed as text."""

import textwrap

COLUMNS = 80


def wrapped(text: str, first: str = "", then: str = "", columns: int = COLUMNS) -> list[str]:
    """The lines of a text, indented; what is longer than a line, such as a path, stays whole.

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
