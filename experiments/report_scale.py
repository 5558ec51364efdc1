"""Time the reporting commands on a synthetic store of about ten thousand runs.

    python experiments/report_scale.py [--folder FOLDER]

Writes about 480 MB of synthetic records (no model is trained) into the folder, a temporary one by
default, and prints the wall-clock seconds of each command, start-up included, and the page's size.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "report"))

from tests.support.synthetic_store import paper_plans, write_store


def timed(*arguments: str) -> float:
    """Wall-clock seconds of one command."""
    start = time.perf_counter()
    command = [sys.executable, "-m", "ithbit", *arguments]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
    if done.returncode > 1:  # 1 means that `compare` found a difference
        sys.exit(f"{' '.join(command)} ended with {done.returncode}")
    return time.perf_counter() - start


def main(folder: Path) -> None:
    store, page = folder / "store", folder / "report.html"
    if not store.exists():
        write_store(store, paper_plans(range(93)))
    print(f"{sum(1 for _ in store.iterdir())} runs")
    for arguments in (
        ("status",),
        ("status", "paper"),
        ("table", "main"),
        ("table", "accuracy"),
        ("compare",),
        ("plot", "epochs", "-o", str(folder / "epochs.png")),
        ("report", "-o", str(page)),
        ("export", "-o", str(folder / "export")),
    ):
        print(f"{' '.join(arguments[:2]):16} {timed(*arguments, '--store', str(store)):6.2f} s")
    print(f"page {page.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, help="where to keep the 480 MB; default: temporary")
    folder = parser.parse_args().folder
    with tempfile.TemporaryDirectory() as made:
        main(folder or Path(made))
