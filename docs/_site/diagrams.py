"""Diagrams: Mermaid, drawn in the browser by a copy of its library in the site, and SVG in the colours of the page."""

import html
import re
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

__all__ = ["setup"]

LIBRARY = Path("build/npm/mermaid.min.js")


class _Mermaid(SphinxDirective):
    """A fenced block of Mermaid; without JavaScript the page shows its text."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        text = html.escape("\n".join(self.content))
        return [nodes.raw("", f'<pre class="mermaid">{text}</pre>', format="html", classes=["mermaid"])]


def _inline(app: Sphinx, doctree: nodes.document) -> None:
    """Put SVG pictures into the page itself, without their own colours: those of the page's theme hold."""
    for image in list(doctree.findall(nodes.image)):
        if not image["uri"].endswith(".svg"):
            continue
        _, path = app.env.relfn2path(image["uri"], app.env.docname)
        app.env.note_dependency(path)
        svg = re.sub(r"<style>.*?</style>", "", Path(path).read_text(), flags=re.DOTALL)
        image.replace_self(nodes.raw("", f'<div class="drawing">{svg}</div>', format="html"))


def _scripts(app: Sphinx, name: str, template: str, context: dict, doctree: nodes.document | None) -> None:
    if doctree is not None and any("mermaid" in node["classes"] for node in doctree.findall(nodes.raw)):
        app.add_js_file("mermaid.min.js")
        app.add_js_file("mermaid-theme.js")


def setup(app: Sphinx) -> dict[str, bool]:
    library = Path(app.srcdir) / LIBRARY
    if not library.exists():
        raise FileNotFoundError(f"{LIBRARY} is missing, which draws diagrams: run `make docs`, which fetches it by npm")
    app.config.html_static_path.append(str(library))
    app.add_directive("mermaid", _Mermaid)
    app.connect("doctree-read", _inline, priority=400)
    app.connect("html-page-context", _scripts)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
