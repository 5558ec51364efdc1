"""HTML files that contain all they need: the report, the explorable page, and short pages (a
probe's and the capacity card).

Text from records reaches a page in two ways, both safe: through the template, which escapes it, and
as JSON in a data block, which the script puts into the page as text nodes. In both, control
characters and marks of direction are written as escapes (`printable`). A content security
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
from ithbit.display import printable


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
    text = json.dumps(_printable(data), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    # Inside a script element only these can end it or open a comment.
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


def _printable(data: Any) -> Any:
    """The data with every text in it printable."""
    match data:
        case str():
            return printable(data)
        case dict():
            return {_printable(key): _printable(value) for key, value in data.items()}
        case list() | tuple():
            return [_printable(each) for each in data]
    return data


def scripted_page(package: str, scripts: Iterable[str], data: Any, **values: Any) -> str:
    """The page in a package's template folder: `page.html` with `page.css`, these scripts as one,
    and the data they read."""
    script = "\n".join(template_part(package, name) for name in scripts)
    return filled_page(
        package,
        "page.html",
        style=Markup(template_part(package, "page.css")),  # our own file
        script=Markup(script),  # our own files
        script_hash=script_hash(script),
        data=safe_json(data),
        **values,
    )


def filled_page(package: str, name: str, **values: Any) -> str:
    """A Jinja template of a package with its values, all of them escaped; an undefined one raises.

    Short pages, without a script, extend `short.html` in our own template folder.
    """
    folders = [jinja2.PackageLoader(each, "template") for each in (package, "ithbit")]
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader(folders),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        # Not our own style and script, nor other markup, which is made printable where it is made.
        finalize=lambda value: printable(value) if type(value) is str else value,
    )
    return environment.get_template(name).render(version=__version__, **values)
