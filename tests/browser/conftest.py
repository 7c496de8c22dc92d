"""One browser for all pages: Playwright starts once in a process."""

import pytest
from browser_pages import chromium


@pytest.fixture(scope="session")
def browser():
    with chromium() as started:
        yield started
