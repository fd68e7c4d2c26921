"""One browser for all tests of the page."""

import pytest

from tests.support import ladder
from tests.support.chromium import chromium, set_media, set_size, what_is_missing


@pytest.fixture(scope="session")
def shared_browser():
    problem = what_is_missing()
    if problem:
        ladder.skip(problem)
    with chromium() as browser:
        yield browser


@pytest.fixture
def browser(shared_browser):
    """A headless Chromium, which the test leaves without an error in its console or a request of another host."""
    set_size(shared_browser, 1280, 900)
    set_media(shared_browser, dark=False)
    for log in ("browser", "performance"):
        shared_browser.get_log(log)  # of the test before
    yield shared_browser
    shared_browser.get("about:blank")
