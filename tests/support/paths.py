"""Folders of this checkout."""

from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent
DOCS = ROOT / "docs"
SUPPORT = TESTS / "support"
DOWNLOADS = ROOT / ".venvs"  # what tests fetch once for a checkout
