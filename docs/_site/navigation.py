"""Names of the site's pages, its navigation, and the gallery of examples, from the files of the repository.

A page keeps the name of its file without ``docs/``; a ``README.md`` is the first page of its folder. The navigation is
made from the links in the tables of `INDEXES`, so that each page is listed once, in a table that code hosts show too.
"""

import posixpath
import re
from pathlib import Path

__all__ = ["INDEXES", "cards", "children", "index_of", "page_name"]

# The pages whose tables list the pages of a folder; the first page of the site lists the others.
INDEXES = {
    "architecture/": "architecture",
    "benchmarks/": "benchmarks/index",
    "deploy/": "deploy/index",
    "examples/": "examples/index",
    "reference/": "reference/index",
    "troubleshooting/": "troubleshooting/index",
}
_POLICY = "security-policy"  # of SECURITY.md, since docs/security.md is another page
_LINK = re.compile(r"\]\(([^)#\s]+\.md)(?:#[^)\s]*)?\)")
_EXAMPLE = re.compile(r"\[[^\]]+\]\(([\w-]+/README\.md)\)")
_PICTURE = re.compile(r"!\[([^\]]*)\]\(([^)\s]+\.(?:png|svg))\)")


def page_name(name: str) -> str:
    """Return the site's name of a page, from that of its file without the suffix.

    Examples
    --------
    >>> [page_name(name) for name in ("docs/README", "docs/tune", "examples/mnist/README", "README", "CHANGELOG")]
    ['index', 'tune', 'examples/mnist/index', 'readme', 'changelog']
    >>> page_name("SECURITY"), page_name("docs/security")
    ('security-policy', 'security')
    """
    if "/" not in name:
        return _POLICY if name == "SECURITY" else name.lower()
    name = name.removeprefix("docs/")
    return re.sub(r"(^|/)README$", r"\1index", name)


def children(name: str, file: str, text: str) -> list[tuple[str, list[str]]]:
    """Return the sections of an index page, each with the pages that its tables list first.

    Parameters
    ----------
    name, file, text : str
        The page's name, its path within the repository, and its Markdown.
    """
    found: list[tuple[str, list[str]]] = []
    listed = {name}
    for part in re.split(r"^## ", text, flags=re.MULTILINE):
        heading, _, body = part.partition("\n")
        rows = "\n".join(line for line in body.splitlines() if line.startswith("|"))
        pages = []
        for target in _LINK.findall(rows):
            path = posixpath.normpath(posixpath.join(posixpath.dirname(file), target))
            page = page_name(path.removesuffix(".md"))
            if page not in listed and index_of(page) == name:
                listed.add(page)
                pages.append(page)
        if pages:
            found.append((heading.strip(), pages))
    return found


def index_of(page: str) -> str:
    """Return the index page that lists a page."""
    folders = [folder for folder, index in INDEXES.items() if page.startswith(folder) and page != index]
    return INDEXES[folders[0]] if folders else "index"


def cards(text: str, folder: Path) -> str:
    """Return Markdown in which each table of examples is a grid of cards in MyST; other tables stay.

    A row of such a table begins with a link to an example's README. Its card has the README's title and first picture,
    and the row's second cell.

    Parameters
    ----------
    text : str
        The index of the examples.
    folder : pathlib.Path
        Its folder.
    """
    return re.sub(r"(?:^\|.*\n)+", lambda found: _grid(found[0], folder), text, flags=re.MULTILINE)


def _grid(table: str, folder: Path) -> str:
    rows = [[cell.strip() for cell in line.strip().strip("|").split(" | ")] for line in table.splitlines()[2:]]
    links = [_EXAMPLE.match(row[0]) for row in rows]
    if not all(link and (folder / link[1]).exists() for link in links):
        return table
    made = [_card(folder / link[1], row[1]) for link, row in zip(links, rows, strict=True)]
    return "\n".join([":::::{grid} 1 2 2 3", ":gutter: 3", "", *made, ":::::", ""])


def _card(readme: Path, description: str) -> str:
    heading, _, text = readme.read_text().partition("\n")
    name = readme.parent.name
    lines = [f"::::{{grid-item-card}} {heading.lstrip('# ')}", f":link: {name}/index", ":link-type: doc"]
    picture = _PICTURE.search(text)
    if picture:
        lines.append(f":img-top: {posixpath.normpath(posixpath.join(name, picture[2]))}")
        lines.append(f":img-alt: {' '.join(picture[1].split())}")
    return "\n".join([*lines, "", description, "::::", ""])
