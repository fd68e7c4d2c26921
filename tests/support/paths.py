"""Folders of this checkout, and files that this process has open."""

import os
from contextlib import suppress
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent
DOCS = ROOT / "docs"
SUPPORT = TESTS / "support"
DOWNLOADS = ROOT / ".venvs"  # what tests fetch once for a checkout


def open_files(beginning):
    """Return the files that this process has open and whose paths begin so; other threads may open and close others."""
    found = []
    for each in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # one that another thread has closed meanwhile
            found.append(os.readlink(f"/proc/self/fd/{each}"))
    return sorted(each for each in found if each.startswith(str(beginning)))
