"""Where the files of the repository are."""

import atexit
import shutil
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
SUPPORT = TESTS / "support"
RESULTS = ROOT / "results"
TOY_LAYERS = SUPPORT / "toy_layers.py"
BAD_LAYERS = SUPPORT / "bad_layers.py"


def _unpacked(folder: Path) -> Path:
    """The packed stores of a folder as folders that tests may look into, until this process ends;
    unpacked by other code than ours."""
    target = Path(tempfile.mkdtemp(prefix="weights-"))
    atexit.register(shutil.rmtree, target, ignore_errors=True)
    for file in sorted(folder.glob("*.zip")):
        shutil.unpack_archive(file, target / file.stem)
    return target


WEIGHTS = _unpacked(RESULTS / "weights")  # uniform/ mixed/ blocks/
