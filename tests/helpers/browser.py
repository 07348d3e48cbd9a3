"""Open pages in Debian's Chromium; tests skip with a reason where it is missing."""

import os
import shutil
from contextlib import contextmanager

import pytest


def chromium_path():
    """Path of Chromium, from $CHROMIUM or the command of that name."""
    return os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")


@contextmanager
def open_browser():
    """Start Chromium without a window; skip where it or Playwright is missing."""
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed.")
    path = chromium_path()
    if path is None:
        pytest.skip("Chromium is not installed; on Debian: apt-get install chromium.")
    with playwright.sync_playwright() as driver:
        # Chromium refuses its sandbox to root, as in most containers; the pages are ours.
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()
