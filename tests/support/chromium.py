"""A headless Chromium for tests of pages, by Selenium."""

import shutil
import tempfile
from contextlib import contextmanager

_ARGUMENTS = (
    "--headless",
    "--no-sandbox",  # tests may run as root
    "--disable-gpu",
    "--disable-dev-shm-usage",
    # Without these it looks up hosts of its maker at every start.
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)


def what_is_missing():
    """Return what a browser needs and this machine has not, for the user to install; or ""."""
    missing = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    if missing:
        return f"there is no {' and no '.join(missing)}: install it (Debian: apt install chromium chromium-driver)"
    try:
        import selenium  # noqa: F401
    except ImportError:
        return "the browser is driven by Selenium: pip install tensorflowonspark[test]"
    return ""


@contextmanager
def chromium(width=1280, height=900, *, dark=False):
    """Yield a browser that keeps the console's messages and the requests of its pages.

    Parameters
    ----------
    width, height : int
        The size of its window.
    dark : bool
        Whether its system prefers dark pages.
    """
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium")
        for argument in (*_ARGUMENTS, f"--user-data-dir={profile}", f"--window-size={width},{height}"):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        browser = webdriver.Chrome(options, Service(shutil.which("chromedriver")))
        try:
            set_media(browser, dark=dark)
            yield browser
        finally:
            browser.quit()


def set_media(browser, *, dark):
    """Have the browser's system prefer dark pages, or light ones."""
    features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def set_size(browser, width, height):
    """Give the page a size in pixels."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
