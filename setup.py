"""The README as a package index shows it; everything else is in pyproject.toml.

An index knows nothing of the files beside the README, so a relative picture or link is dead there.
With ITHBIT_README_BASE set to an address where the repository's files can be read, they become
absolute. Without it a picture is left out, but for its caption, and a link is its text.
"""

import os
import re
from pathlib import Path

from setuptools import setup

RELATIVE = re.compile(r"(!?)\[([^\]]+)\]\((?!https?:|#)([^)\s]+)\)")


def for_an_index(text: str, base: str) -> str:
    """A README without relative pictures and links."""

    def instead(found: re.Match[str]) -> str:
        picture, words, path = found.groups()
        if base:
            return f"{picture}[{words}]({base.rstrip('/')}/{path})"
        return f"*({words}: {path})*" if picture else words

    return RELATIVE.sub(instead, text)


if __name__ == "__main__":
    readme = (Path(__file__).parent / "README.md").read_text(encoding="utf-8")
    setup(
        long_description=for_an_index(readme, os.environ.get("ITHBIT_README_BASE", "")),
        long_description_content_type="text/markdown",
    )
