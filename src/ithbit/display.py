"""Results that print in readable form: on a terminal, as plain text, and in a notebook; and what
such text is made of."""

import io
import json
import math
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.measure import Measurement
    from rich.table import Table

COLUMNS = 80  # of a terminal
NO_BOUND = "none"  # what is printed of a bound that is none
# What a terminal or a page would obey and not show: control characters other than tab and line
# feed, marks of direction, invisible ones, line separators, tags, and halves of a pair.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\ud800-\udfff\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"
    "\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0100-\U000e01ef]"
)
_PAGE = '<pre style="line-height: 1.2; font-family: monospace">{code}</pre>'


class Printable:
    """A result shown by its `parts`: plain lines, and objects that rich fits to the width.

    >>> class Greeting(Printable):
    ...     def render(self):
    ...         yield "hello"
    >>> Greeting()
    hello
    >>> "hello" in Greeting()._repr_html_()
    True
    """

    def render(self) -> Iterable[Any]:
        """The parts in order. A `str` keeps its lines, and a `Paragraph` is wrapped to the width;
        anything else is laid out by rich."""
        raise NotImplementedError

    def __str__(self) -> str:
        console = _console(file=io.StringIO())
        _print(console, self.render())
        assert isinstance(console.file, io.StringIO)
        return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        console = _console(file=io.StringIO(), record=True, width=100)
        _print(console, self.render())
        return console.export_html(inline_styles=True, code_format=_PAGE)


def show(result: Printable) -> None:
    """Print a result to standard output, in colour on a terminal."""
    _print(_console(), result.render())


def say(*lines: object, file: TextIO | None = None, end: str = "\n") -> None:
    """Print lines of text, `printable`, to standard output or another file."""
    print(*(printable(str(line)) for line in lines), sep="\n", file=file, end=end, flush=True)


def printable(text: str) -> str:
    """The text with escapes such as \\x1b for what a terminal would obey and not show; for text
    that comes from a file. Tabs and line feeds stay.

    >>> print(printable("a \\x1b[31mred\\x07 name\\u202e"))
    a \\x1b[31mred\\x07 name\\u202e
    """
    return _UNSAFE.sub(lambda found: ascii(found[0])[1:-1], text)


def in_one_line(text: str) -> str:
    """Like `printable`, with its lines joined: a stored text cannot make up a line of its own.

    >>> in_one_line("failed\\n  proved")
    'failed proved'
    """
    return re.sub(r"[ \t]*\n\s*", " ", printable(text))


def json_text(data: Any) -> str:
    """Data as JSON in readable form; what is not `printable` is escaped, so that the data read
    back are the same."""
    text = json.dumps(data, indent=1, ensure_ascii=False)
    return _UNSAFE.sub(lambda found: json.dumps(found[0])[1:-1], text)


def _console(**settings: Any) -> "Console":
    from rich.console import Console

    # In a notebook rich would display what it prints, even when it prints to a file.
    return Console(highlight=False, markup=False, emoji=False, force_jupyter=False, **settings)


def _print(console: "Console", parts: Iterable[Any]) -> None:
    for part in parts:
        if isinstance(part, Paragraph):
            lines = wrapped(part.text, part.first, part.then, min(console.width, COLUMNS))
            console.print(printable("\n".join(lines)), soft_wrap=True, style=part.style)
        elif isinstance(part, str):
            console.print(printable(part), soft_wrap=True)
        else:
            console.print(_Printable(part))


@dataclass(frozen=True)
class Paragraph:
    """A text that is wrapped where it is printed: to the width there, and to 80 columns at most.

    A word longer than a line, such as a path, is neither broken nor cut.
    """

    text: str
    first: str = ""  # what the first line begins with
    then: str = ""  # and the others
    style: str = ""


@dataclass(frozen=True)
class _Printable:
    """An object laid out by rich, whose text is then made `printable`."""

    part: Any

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> Iterator[Any]:
        from rich.segment import Segment

        for text, style, control in console.render(self.part, options):
            yield Segment(text if control else printable(text), style, control)

    def __rich_measure__(self, console: "Console", options: "ConsoleOptions") -> "Measurement":
        from rich.measure import Measurement

        return Measurement.get(console, options, self.part)


@dataclass(frozen=True)
class Columns:
    """A table that leaves out its last columns where they do not fit, and names them: a number is
    shown whole or not at all. `rows` may be shorter than `heads`."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> Iterator[Any]:
        unlimited = options.update_width(10_000)
        for shown in range(len(self.heads), 0, -1):
            table = self._first(shown)
            # Without any wrapping: rich may cut a word short where it wraps another column.
            if console.measure(table, options=unlimited).maximum <= options.max_width or shown == 1:
                yield table
                return

    def _first(self, shown: int) -> "Table":
        from rich.table import Table

        left_out = ", ".join(self.heads[shown:])
        table = Table(title=self.title, caption=f"no room for: {left_out}" if left_out else None)
        for head in self.heads[:shown]:
            table.add_column(head, justify="right")
        for row in self.rows:
            table.add_row(*row[:shown])
        return table


def lower_text(
    bound: float | Fraction | None, digits: int = 6, *, places: int | None = None
) -> str:
    """A lower bound in so many digits, rounded down: what is printed is a lower bound too.

    With `places`, so many digits after the point instead. No bound (None, NaN or infinite) is
    *none*.

    >>> lower_text(1.9977789), lower_text(0.9999999979, 9), lower_text(-2.0000001), lower_text(4100)
    ('1.99777', '0.999999997', '-2.00001', '4100')
    """
    return _rounded(bound, digits, places, ROUND_FLOOR)


def upper_text(
    bound: float | Fraction | None, digits: int = 6, *, places: int | None = None
) -> str:
    """An upper bound in so many digits, rounded up: what is printed is an upper bound too.

    >>> upper_text(0.00540309, 4), upper_text(1.2e-13, 1), upper_text(float("nan"))
    ('0.005404', '2e-13', 'none')
    >>> upper_text(0.4, places=3), upper_text(-0.0004, places=3)
    ('0.401', '0.000')
    """
    return _rounded(bound, digits, places, ROUND_CEILING)


def lower_percent(share: float, places: int = 2) -> str:
    """A share in percent, rounded down: 100 only if it is all.

    >>> lower_percent(0.9999999), lower_percent(1.0), lower_percent(0.123456)
    ('99.99%', '100.00%', '12.34%')
    """
    if not math.isfinite(share):
        return NO_BOUND
    return f"{lower_text(100 * Fraction(share), places=places)}%"


def share_text(share: float, places: int = 4) -> str:
    """A share to the nearest, but 1 only if it is all: one wrong answer of 2,000 stays visible.

    >>> share_text(0.9995, 3), share_text(0.99996), share_text(1.0), share_text(0.9985)
    ('0.999', '0.9999', '1.0000', '0.9985')
    """
    text = f"{share:.{places}f}"
    return text if not share < 1 or float(text) < 1 else lower_text(share, places=places)


def _rounded(bound: float | Fraction | None, digits: int, places: int | None, rounding: str) -> str:
    """A number in so many digits at most, tiny and large ones in powers of ten; or with `places`
    digits after the point."""
    if isinstance(bound, Fraction | int):
        exact = Fraction(bound)
    elif bound is None or not math.isfinite(bound):
        return NO_BOUND
    else:
        exact = Fraction(float(bound))
    if places is not None:
        round_to = math.floor if rounding == ROUND_FLOOR else math.ceil
        return f"{Decimal(round_to(exact * 10**places)).scaleb(-places):f}"
    # Division is correctly rounded, in the given direction; a float is a fraction exactly.
    context = Context(prec=digits, rounding=rounding, Emin=-10_000, Emax=10_000)
    number = context.divide(Decimal(exact.numerator), Decimal(exact.denominator)).normalize()
    if not number:
        return "0"
    exponent = number.adjusted()
    if -5 <= exponent < max(digits, 6):
        return f"{number:f}"
    return f"{number.scaleb(-exponent):f}e{exponent:+03d}"


def pluralize(count: int, noun: str) -> str:
    """A number of things.

    >>> pluralize(1, "run"), pluralize(1200, "run")
    ('1 run', '1,200 runs')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def clock(seconds: float) -> str:
    """A duration in its two largest units.

    >>> clock(42), clock(150), clock(7300), clock(200_000)
    ('42 s', '2 min 30 s', '2 h 1 min', '2 d 7 h')
    """
    n = round(seconds)
    if n < 60:
        return f"{n} s"
    if n < 3600:
        return f"{n // 60} min {n % 60} s"
    if n < 86400:
        return f"{n // 3600} h {n % 3600 // 60} min"
    return f"{n // 86400} d {n % 86400 // 3600} h"


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
