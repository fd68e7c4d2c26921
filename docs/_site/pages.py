"""The pages of the site by the names that `navigation` gives them, with the navigation and the gallery added."""

from pathlib import Path

from navigation import INDEXES, cards, children, index_of, page_name
from sphinx.application import Sphinx
from sphinx.project import Project

__all__ = ["setup"]


class _Pages(Project):
    """The files that are pages, by the names that they have in the site."""

    def path2doc(self, filename):
        name = super().path2doc(filename)
        return name if name is None else page_name(name)


def _name_pages(app: Sphinx) -> None:
    app.project.__class__ = _Pages  # Sphinx makes this object itself, and shares it with its environment


def _read(app: Sphinx, name: str, source: list[str]) -> None:
    """Add the navigation to an index page, and the cards to that of the examples."""
    if name != "index" and name not in INDEXES.values():
        return
    file = str(app.project.doc2path(name, absolute=False))
    sections = children(name, file, source[0])
    if name == "examples/index":
        listed = {page for _, pages in sections for page in pages}
        rest = [page for page in app.project.docnames if index_of(page) == name and page not in listed]
        sections.append(("", sorted(rest)))
        source[0] = cards(source[0], Path(app.srcdir) / "examples")
    for heading, pages in sections:
        caption = f":caption: {heading}\n" if name == "index" else ""
        entries = "\n".join("Overview </readme>" if page == "readme" else f"/{page}" for page in pages)
        source[0] += f"\n\n```{{toctree}}\n:hidden:\n{caption}\n{entries}\n```\n"


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("builder-inited", _name_pages)
    app.connect("source-read", _read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
