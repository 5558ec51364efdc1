"""The package as `import ithbit` shows it."""

import subprocess
import sys

import ithbit


def test_every_public_name_is_offered_and_there() -> None:
    assert {"train", "construct", "certify", "verdict", "probe", "Protocol"} <= set(dir(ithbit))
    for name in ithbit.__all__:
        assert name in dir(ithbit)
        assert getattr(ithbit, name) is not None


def test_to_offer_names_is_not_to_import_them() -> None:
    program = "import sys, ithbit; dir(ithbit); print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"
