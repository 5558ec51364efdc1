"""Where the files of the repository are."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
SUPPORT = TESTS / "support"
RESULTS = ROOT / "results"
WEIGHTS = RESULTS / "weights"
