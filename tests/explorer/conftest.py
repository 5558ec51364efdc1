"""One Chromium for all tests of the explorable page."""

from collections.abc import Iterator

import pytest
from tests.support.chromium import CHROMIUM, Browser


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("needs Chromium (Debian's package chromium)")
    made = Browser()
    yield made
    made.close()
