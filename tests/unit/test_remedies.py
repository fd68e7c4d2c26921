"""What a message tells to pass can be passed."""

import ast
import re

import pytest

from tensorflowonspark.errors import SpecError
from tensorflowonspark.feed_messages import CacheConfig
from tests.support.paths import ROOT

_TRIED = re.compile(r"\bcache=('\w*'|\"\w*\"|None)")


def _advised():
    """Return the values of `cache` that texts of this package name, with the file of each."""
    for path in sorted(ROOT.joinpath("src/tensorflowonspark").rglob("*.py")):
        if not _TRIED.search(source := path.read_text()):
            continue
        texts = (
            node.value
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        )
        found = {value for text in texts if "Traceback" not in text for value in _TRIED.findall(text)}
        for value in sorted(found):
            yield pytest.param(ast.literal_eval(value), id=f"{path.stem}-{value}")


@pytest.mark.parametrize("value", list(_advised()))
def test_a_cache_that_a_text_names_is_one(value):
    CacheConfig.parse(value, None)


def test_another_is_refused():
    with pytest.raises(SpecError, match="cache='none': expected 'disk', 'memory', or None"):
        CacheConfig.parse("none", None)
