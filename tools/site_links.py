"""Check the links of the built documentation site: files and anchors of internal ones, the form of external ones.

``python tools/site_links.py build/site`` lists each broken link with its page, and exits with 1 if there is any.
"""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

__all__ = ["broken_links"]

_HOST = re.compile(r"([a-z0-9-]+\.)+[a-z]{2,}", re.IGNORECASE)


class _Page(HTMLParser):
    """The anchors of a page, its links, and the files that a browser loads with it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: set[str] = set()
        self.loaded: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.add(values["href"])
        elif tag == "link" and values.get("rel") in {"stylesheet", "icon", "preload"}:
            self.loaded.add(values["href"])
        elif tag in {"script", "img", "source", "iframe"} and "src" in values:
            self.loaded.add(values["src"])


def broken_links(site: Path) -> list[str]:
    """Return a line for each link of a page that leads nowhere, and for each file that a page loads from elsewhere.

    Parameters
    ----------
    site : pathlib.Path
        The folder of the built site.
    """
    pages = {path.resolve(): _Page(path.read_text()) for path in sorted(site.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        name = path.relative_to(site.resolve())
        found += [f"{name}: {link}: {fault}" for link in sorted(page.links) if (fault := _fault(link, path, pages))]
        for link in sorted(page.loaded):
            if urlsplit(link).netloc:
                found.append(f"{name}: {link}: a page may load nothing from another host")
            elif not link.startswith("data:") and (fault := _fault(link, path, pages)):
                found.append(f"{name}: {link}: {fault}")
    return found


def _fault(link: str, path: Path, pages: dict[Path, _Page]) -> str:
    """Return what is wrong with a link of the page at `path`, or an empty text."""
    if not link.isascii() or any(sign.isspace() for sign in link):
        return "it contains characters that an address must encode"
    parts = urlsplit(link)
    if parts.scheme == "mailto":
        return ""
    if parts.scheme or parts.netloc:
        right = parts.scheme in {"http", "https"} and _HOST.fullmatch(parts.hostname or "")
        return "" if right and not link.endswith((".", ",", ")")) else "it is no address as https://host.name/path"
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if not target.is_file():
        return "there is no such file"
    if parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
        return "the page has no such anchor"
    return ""


if __name__ == "__main__":
    faults = broken_links(Path(sys.argv[1]))
    print("\n".join(faults))
    sys.exit(f"{len(faults)} broken links" if faults else 0)
