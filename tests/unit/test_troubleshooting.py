"""The pages of messages: a section for each public error, and no message that the source does not have."""

import ast
import re
from functools import cache

import pytest

import tensorflowonspark
from tests.support.paths import DOCS, ROOT

PAGES = sorted(DOCS.joinpath("troubleshooting").glob("*.md"))
ERRORS = sorted(
    name
    for name in tensorflowonspark.__all__
    if isinstance(each := getattr(tensorflowonspark, name), type) and issubclass(each, Exception)
)
_HOLE = "…"


def _sections():
    """Return the text of each section that is about an error, by the error's name."""
    found = {}
    for page in PAGES:
        for part in re.split(r"^## ", page.read_text(), flags=re.MULTILINE)[1:]:
            heading, _, body = part.partition("\n")
            if name := re.fullmatch(r"`(\w+)`", heading.strip()):
                assert name[1] not in found
                found[name[1]] = body
    return found


SECTIONS = _sections()


def _messages(section):
    """Return what the first column of a section's tables quotes."""
    rows = [line for line in section.splitlines() if line.startswith("| ") and not line.startswith("| message ")]
    return [quoted for row in rows for quoted in re.findall(r"`([^`]+)`", row.split(" | ")[0])]


def _text(node):
    """Return the text of a string in the source, with a hole for each value that is put in."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(value) or _HOLE for value in node.values)
    return ""


@cache
def _strings():
    """Return the strings of the package: where each is, its text, and whether it is a docstring.

    No syntax tree is kept: every later collection of garbage would go through the nodes of all.
    """
    found = []
    for module in sorted((ROOT / "src" / "tensorflowonspark").rglob("*.py")):
        nodes = list(ast.walk(ast.parse(module.read_text())))
        bodies = [node.body for node in nodes if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))]
        docstrings = {id(body[0].value) for body in bodies if body and isinstance(body[0], ast.Expr)}
        found += [
            (f"{module.name}:{node.lineno}", text, id(node) in docstrings) for node in nodes if (text := _text(node))
        ]
    return found


@cache
def _source():
    """Return all strings of the package, one a line."""
    # Places of logging's and of str.format are holes, too.
    return "\n".join(re.sub(r"%[sdg]|\{\w*\}", _HOLE, text) for _, text, _ in _strings() if " " in text)


@pytest.mark.parametrize("name", ERRORS)
def test_each_public_error_has_a_section_with_messages(name):
    assert len(_messages(SECTIONS[name])) > 3


def test_the_fixed_words_of_each_message_are_in_the_source():
    assert set(SECTIONS) <= set(ERRORS)
    messages = [message for section in SECTIONS.values() for message in _messages(section)]
    pieces = [(message, piece.strip()) for message in messages for piece in message.split(_HOLE)]
    assert [message for message, piece in pieces if piece not in _source()] == []


def test_no_message_names_a_page_that_an_installation_does_not_have():
    """The pages are in the repository; docstrings, which are read there too, may name them."""
    found = [place for place, text, is_docstring in _strings() if not is_docstring and re.search(r"docs/\S+\.md", text)]
    assert not found
