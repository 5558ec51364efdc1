"""Pages of a screen or two, with one figure: the probe's and the capacity card."""

from typing import Any

from ithbit import __version__
from ithbit.selfcontained import environment

_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>ithbit {{ page_title }}</title>
<style>
:root { color-scheme: light dark;
  --ink: #1a1b1c; --card: #fdfdfe; --line: #c8c9ca; --box: #f2f3f4; --s0: #eef3f7; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8ecf0; --card: #1c2126; --line: #39424b; --box: #14181c; --s0: #232a31; }
}
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
  color: var(--ink); background: var(--card); }
table { border-collapse: collapse; } th, td { padding: .25rem .6rem; }
figure, .scroll { overflow-x: auto; margin: 1rem 0; } figure svg { min-width: 560px; height: auto; }
"""
_FOOT = """<p>Written by ithbit {{ version }}.</p>
</body></html>
"""


def short_page(title: str, style: str, body: str, **values: Any) -> str:
    """A page as HTML: `body` is a Jinja template of these values, `style` its own CSS."""
    page = f"{_HEAD}{style}</style></head><body>\n{body}{_FOOT}"
    return environment().from_string(page).render(page_title=title, version=__version__, **values)
