"""Parts of published pages: tables in Markdown, and the versions that a result was measured with."""

import sys
from datetime import date
from importlib.metadata import version


def table(head, rows):
    """Return a table in Markdown."""
    lines = [f"| {' | '.join(line)} |" for line in (head, *rows)]
    lines.insert(1, "|---" * len(head) + "|")
    return "\n".join(lines)


def versions(*packages):
    """Return the date and the versions that a result was measured with."""
    found = ", ".join(f"{package} {version(package)}" for package in packages)
    return f"{date.today().isoformat()}, Python {sys.version.split()[0]}, {found}"
