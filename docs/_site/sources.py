"""Pages for the files and folders of the repository to which pages link: programs, notebooks, settings, folders."""

import html
import json
import os
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

from docutils import nodes
from markdown_it import MarkdownIt
from pygments.lexers import get_lexer_for_filename
from pygments.util import ClassNotFound
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util.osutil import relative_uri

__all__ = ["setup"]

_KEY = "site_sources"  # of a page's metadata: the files and folders to which it links
_SHOWN = 400_000  # bytes of a file


def _link(app: Sphinx, doctree: nodes.document) -> None:
    """Turn links to files and folders that are no pages of Markdown into links to their pages in the site."""
    name = app.env.docname
    linked = []
    for node in [*doctree.findall(addnodes.download_reference), *doctree.findall(addnodes.pending_xref)]:
        if node.get("reftype") != "myst" or node.get("refdomain"):
            continue
        path = _path(app, name, node["reftarget"])
        if path is None:
            continue
        if path.is_dir() and (path / "README.md").exists():
            page = app.env.path2doc(str(path / "README.md"))
            node["refdomain"], node["reftarget"], node["reftargetid"] = "doc", page, None
            continue
        linked.append(str(path.relative_to(app.srcdir)))
        uri = app.builder.get_relative_uri(name, _page(path, app))
        node.replace_self(nodes.reference("", "", *node.children, internal=True, refuri=uri))
    if linked:
        app.env.metadata[name][_KEY] = linked


def _path(app: Sphinx, name: str, target: str) -> Path | None:
    """Return the file or folder that a link of a page leads to, if the repository has it."""
    if not target or target.startswith("#"):
        return None
    file = app.project.doc2path(name, absolute=False)
    path = Path(os.path.normpath(Path(app.srcdir) / posixpath.dirname(str(file)) / target.partition("#")[0]))
    return path if path.exists() and path.is_relative_to(app.srcdir) else None


def _page(path: Path, app: Sphinx) -> str:
    name = f"source/{path.relative_to(app.srcdir)}"
    return f"{name}/index" if path.is_dir() else name


def _collect(app: Sphinx) -> Iterator[tuple[str, dict[str, object], str]]:
    """Yield a page for each file and folder that a page of the site links to."""
    todo = {Path(app.srcdir) / each for metadata in app.env.metadata.values() for each in metadata.get(_KEY, ())}
    for folder in [path for path in todo if path.is_dir()]:
        todo |= set(_entries(folder))
    for path in sorted(todo):
        title = str(path.relative_to(app.srcdir))
        heading = "" if path.suffix == ".ipynb" else f"<h1>{html.escape(title)}</h1>"  # notebooks begin with theirs
        body = heading + (_listing(path, app) if path.is_dir() else _text(path, app))
        yield _page(path, app), {"title": title, "parents": [], "body": body}, "page.html"


def _entries(folder: Path) -> list[Path]:
    return sorted(
        path for path in folder.iterdir() if path.is_file() and path.suffix in {".py", ".ipynb", ".md", ".yaml"}
    )


def _listing(folder: Path, app: Sphinx) -> str:
    here = _page(folder, app)
    items = [
        f'<li><a class="reference internal" href="{relative_uri(f"{here}.html", f"{_page(path, app)}.html")}">'
        f"{html.escape(path.name)}</a></li>"
        for path in _entries(folder)
    ]
    return f"<ul>{''.join(items)}</ul>"


def _text(path: Path, app: Sphinx) -> str:
    text = path.read_bytes()[:_SHOWN].decode(errors="replace")
    if path.suffix == ".ipynb":
        return "".join(_cell(cell, path, app) for cell in json.loads(path.read_text())["cells"])
    try:
        language = get_lexer_for_filename(path.name).aliases[0]
    except ClassNotFound:
        language = "text"
    return _code(text, language, app)


def _code(text: str, language: str, app: Sphinx) -> str:
    marked = app.builder.highlighter.highlight_block(text, language, force=True)
    return f'<div class="highlight-{language} notranslate">{marked}</div>'


def _cell(cell: dict, path: Path, app: Sphinx) -> str:
    """Return a notebook's cell with its output in HTML."""

    def to_page(link: re.Match[str]) -> str:
        page = app.env.path2doc(os.path.normpath(path.parent / link[1]))
        return f'href="{relative_uri(f"{_page(path, app)}.html", f"{page}.html")}"'

    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return re.sub(r'href="([^":]+\.md)"', to_page, MarkdownIt().enable("table").render(source))
    parts = [_code(source, "python", app)]
    for output in cell.get("outputs", ()):
        data = output.get("data", {})
        if "image/png" in data:
            parts.append(
                f'<img alt="output of the cell above" src="data:image/png;base64,{data["image/png"].strip()}">'
            )
        elif "text/plain" in data or "text" in output:
            parts.append(_code("".join(data.get("text/plain", output.get("text", ""))), "text", app))
    return "".join(parts)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("doctree-read", _link, priority=400)  # before Sphinx copies what is linked as a download
    app.connect("html-collect-pages", _collect)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
