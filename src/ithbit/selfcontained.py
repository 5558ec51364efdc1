"""HTML files that contain all they need: what the report and the other pages share."""

import base64
import hashlib
import json
from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup


def template_part(package: str, name: str) -> str:
    """The text of a file in a package's template folder."""
    return files(package).joinpath("template", name).read_text(encoding="utf-8")


def environment() -> jinja2.Environment:
    """Jinja environment that escapes all values and raises on undefined ones."""
    return jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )


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
