"""Tables that a notebook shows."""

from collections.abc import Iterable
from html import escape

_CELL = "text-align:left;padding:0.2em 1em 0.2em 0;border-bottom:1px solid currentColor"


def html_table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table: its titles are texts, its cells HTML."""
    lines = [_row("th", map(escape, head)), *(_row("td", row) for row in rows)]
    return "".join(['<table style="border-collapse:collapse;background:none">', *lines, "</table>"])


def _row(tag: str, cells: Iterable[str]) -> str:
    return "<tr>" + "".join(f'<{tag} style="{_CELL}">{cell}</{tag}>' for cell in cells) + "</tr>"
