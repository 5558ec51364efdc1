"""The package as `import ithbit` shows it."""

import re
import runpy
import subprocess
import sys
import tomllib

from tests.support.paths import ROOT

import ithbit


def test_every_public_name_is_offered_and_there() -> None:
    assert {"train", "construct", "certify", "verdict", "probe", "Protocol"} <= set(dir(ithbit))
    for name in ithbit.__all__:
        assert name in dir(ithbit)
        assert getattr(ithbit, name) is not None
    others = {name for name in dir(ithbit) if not name.startswith("__")} - set(ithbit.__all__)
    assert others == set()  # such as what the module imports for itself


def test_to_offer_names_is_not_to_import_them() -> None:
    program = "import sys, ithbit; dir(ithbit); print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"


def test_readme_on_an_index_has_no_dead_pictures_or_links() -> None:
    made = runpy.run_path(str(ROOT / "setup.py"), run_name="read")["for_an_index"]
    readme = (ROOT / "README.md").read_text()
    relative = re.compile(r"\]\((?!https?:|#)")
    assert relative.search(readme)  # so that there is something to do
    assert not relative.search(made(readme, ""))
    there = made(readme, "https://example.org/ithbit/")
    assert not relative.search(there)
    assert "](https://example.org/ithbit/docs/images/everywhere.png)" in there


def test_version_is_written_in_one_place() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" in project["project"]["dynamic"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "ithbit.__version__"}


def test_the_citation_is_of_this_version() -> None:
    assert f"\nversion: {ithbit.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## {ithbit.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_the_hooks_lint_with_the_pinned_ruff() -> None:
    (pinned,) = re.findall(r"^ruff==\S+", (ROOT / "constraints.txt").read_text(), re.M)
    hooks = re.findall(r"ruff==[^\"]+", (ROOT / ".pre-commit-config.yaml").read_text())
    assert len(hooks) == 2
    assert set(hooks) == {pinned}
