"""HTML files that contain all they need: the report, the explorable page, and short pages (a
probe's and the capacity card).

Text from records reaches a page in two ways, both safe: through the template, which escapes it, and
as JSON in a data block, which the script puts into the page as text nodes. A content security
policy allows no script but the page's own, and no request.
"""

import base64
import hashlib
import json
from collections.abc import Iterable
from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup

from ithbit import __version__

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


def template_part(package: str, name: str) -> str:
    """The text of a file in a package's template folder."""
    return files(package).joinpath("template", name).read_text(encoding="utf-8")


def script_hash(script: str) -> str:
    """The hash by which the page's security policy admits its one script."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def safe_json(data: Any) -> Markup:
    """JSON that is safe inside a script element.

    >>> print(safe_json("</script>"))
    "\\u003c/script\\u003e"
    """
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    # Inside a script element only these can end it or open a comment.
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


def scripted_page(package: str, scripts: Iterable[str], data: Any, **values: Any) -> str:
    """The page in a package's template folder: `page.html` with `page.css`, these scripts as one,
    and the data they read."""
    script = "\n".join(template_part(package, name) for name in scripts)
    return _filled(
        template_part(package, "page.html"),
        style=Markup(template_part(package, "page.css")),  # our own file
        script=Markup(script),  # our own files
        script_hash=script_hash(script),
        data=safe_json(data),
        **values,
    )


def short_page(title: str, style: str, body: str, **values: Any) -> str:
    """A page of a screen or two without a script: `body` is a Jinja template of these values,
    `style` its own CSS."""
    page = f"{_HEAD}{style}</style></head><body>\n{body}{_FOOT}"
    return _filled(page, page_title=title, **values)


def _filled(template: str, **values: Any) -> str:
    """The template with its values, all of them escaped; an undefined one raises."""
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    return environment.from_string(template).render(version=__version__, **values)
