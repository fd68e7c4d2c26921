"""Links on the documentation's pages, and the names of modules and classes on those about the architecture."""

import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
ARCHITECTURE = [page for page in PAGES if re.search("architecture|glossary", str(page.relative_to(ROOT)))]
PACKAGE = ROOT / "src" / "tensorflowonspark"
_CODE = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)


def _anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub derives them."""
    headings = re.findall(r"^#+ (.+)$", _CODE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_lead_somewhere(page):
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", _CODE.sub("", page.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        if not linked.exists() or (anchor and anchor not in _anchors(linked)):
            broken.append(target)
    assert not broken


@pytest.mark.parametrize("page", ARCHITECTURE, ids=lambda page: page.name)
def test_modules_and_classes_on_the_architecture_pages_exist(page):
    text = page.read_text()
    modules = set(re.findall(r"`((?:\w+/)*\w+\.py|(?:\w+/)+)`", text))
    places = [ROOT, ROOT / "src", PACKAGE]
    assert not {name for name in modules if not any((place / name).exists() for place in places)}
    words = set(re.findall(r"\w+", "\n".join(module.read_text() for module in PACKAGE.rglob("*.py"))))
    assert not set(re.findall(r"`([A-Z][a-z]+(?:[A-Z][a-z]+)+)\b", text)) - words


def test_what_is_proved_is_where_the_page_on_security_says():
    """Each row of its last table names functions, and a test that fails without them."""
    page = (ROOT / "docs" / "security.md").read_text()
    rows = [line.split(" | ") for line in page.split("## What is believed")[1].splitlines() if line.startswith("| ")][
        1:
    ]
    assert len(rows) > 25
    for what, _, _, where, test in rows:
        for file, names in re.findall(r"`((?:\w+/)*\w+\.py|\w+/)`((?:[:,] `\w+`)*)", where):
            place = PACKAGE / file if (PACKAGE / file).exists() else ROOT / file
            assert place.exists(), (what, file)
            for name in re.findall(r"\w+", names):
                assert re.search(rf"(def|class) {name}\b", place.read_text()), (what, file, name)
        tests = re.findall(r"`([\w/]+\.py)`", test)
        assert tests or where in ("Spark", "TensorFlow"), what
        assert not [each for each in tests if not (ROOT / "tests" / each).exists()], what


def _lines(block: str) -> list[str]:
    return [line.strip() for line in block.splitlines() if line.strip()]


def test_as_many_lines_change_as_the_page_for_other_frameworks_says():
    """Of each program, beside the one for this package."""
    text = (ROOT / "docs" / "from-others.md").read_text()
    here = _lines(re.search(r"^Here:\n\n```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)[1])
    for other in ("Horovod", "Ray Train", "TorchDistributor"):
        there = _lines(re.search(rf"^With {other}:\n\n```text\n(.*?)^```", text, re.MULTILINE | re.DOTALL)[1])
        same = (Counter(there) & Counter(here)).total()
        counts = [len(there), same, len(there) - same, len(here) - same]
        assert f"| from {other} | {' | '.join(map(str, counts))} |" in text, counts
