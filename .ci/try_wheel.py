"""Install a wheel in an environment that has what it declares and nothing else, and try it.

The environment is new, but its dependencies are links to those of the Python that runs this, so it
takes seconds: the wheel's requirements without extras, theirs, and so on. Everything runs in a
temporary folder, far from the checkout. The demo goes on from runs/demo of the checkout if `make
demo` has been there; otherwise it trains for minutes.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import zipfile
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]

TRAINED = "runs"
TRIED = [
    "ithbit --version",
    f"ithbit train rhi softmax-full --n 4 --seeds 0-1 --max-epochs 3 --workers 2 --store {TRAINED}",
    f"ithbit verify --all --store {TRAINED}",
    f"ithbit explore rhi_n4_softmax-full_L1d16h2_polynomial_s0 --store {TRAINED} -o explore.html",
    "ithbit demo --store demo --report demo.html",
    "ithbit report --store demo --settings any -o report.html",
    f"ithbit table main --store {TRAINED} --settings any --show both",
    f"ithbit plot successes --store {TRAINED} --settings any -o successes.png",
    "ithbit certify rhi softmax-full --n 16 -o certificate.json",
    "ithbit check-certificate certificate.json",
    "ithbit sweep paper --dry-run --n 8",
]


def missing_files(wheel: Path) -> set[str]:
    """The files of the source tree that a wheel lacks."""
    source = ROOT / "src"
    wanted = {
        str(path.relative_to(source))
        for path in (source / "ithbit").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    return wanted - set(zipfile.ZipFile(wheel).namelist())


def requirements(name: str) -> list[str]:
    """What a package needs on this machine, without extras."""
    needed = map(Requirement, distribution(name).requires or [])
    return [each.name for each in needed if not each.marker or each.marker.evaluate({"extra": ""})]


def link_dependencies(wheel_needs: list[str], site: Path) -> None:
    """Link packages and all that they need into an environment, from this Python's own."""
    waiting, seen = list(wheel_needs), set()
    while waiting:
        name = waiting.pop().lower().replace("_", "-")
        if name in seen:
            continue
        seen.add(name)
        waiting += requirements(name)
        found = distribution(name)
        for top in {file.parts[0] for file in found.files or []} - {"..", "__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to(Path(str(found.locate_file(top))))


def main() -> None:
    (wheel,) = Path(sys.argv[1]).resolve().glob("*.whl")
    if left_out := missing_files(wheel):
        sys.exit(f"{wheel.name} lacks {', '.join(sorted(left_out))}")
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", home / "venv"], check=True)
        python = home / "venv" / "bin" / "python"
        pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps"]
        subprocess.run([*pip, "--no-index", "--disable-pip-version-check", wheel], check=True)
        site = home / "venv" / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)
        (metadata,) = site.glob("ithbit-*.dist-info/METADATA")
        lines = metadata.read_text().partition("\n\n")[0].splitlines()
        needs = [Requirement(x.split(": ", 1)[1]) for x in lines if x.startswith("Requires-Dist: ")]
        plain = [x.name for x in needs if not x.marker or x.marker.evaluate({"extra": ""})]
        link_dependencies(plain, site)

        away = home / "away"
        away.mkdir()
        if (ROOT / "runs" / "demo").is_dir():
            shutil.copytree(ROOT / "runs" / "demo", away / "demo")
        environment = {
            k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")
        }
        environment["PATH"] = f"{python.parent}:{environment['PATH']}"
        imported = [python, "-c", "import ithbit; print(ithbit.__file__)"]
        where = subprocess.run(
            imported, cwd=away, env=environment, check=True, capture_output=True, text=True
        ).stdout
        assert where.startswith(str(site)), f"ithbit was imported from {where}"
        for command in TRIED:
            start = time.monotonic()
            done = subprocess.run(
                command.split(), cwd=away, env=environment, capture_output=True, text=True
            )
            print(f"{time.monotonic() - start:6.1f} s  {command}", flush=True)
            if done.returncode:
                print(done.stdout[-3000:], done.stderr[-3000:], sep="\n")
                sys.exit(f"{wheel.name} does not do this where it is installed: {command}")
        for written in ("demo.html", "report.html", "successes.png"):
            assert (away / written).stat().st_size > 10_000, written


if __name__ == "__main__":
    main()
