"""Each public name is stable or provisional, by the reference; and pages use what is public and exists."""

import importlib
import re

import pytest

import tensorflowonspark as tfos
from tests.support.paths import DOCS, ROOT

REFERENCE = DOCS / "reference"
PACKAGES = ("", ".frames", ".keras", ".ml", ".ml.mlflow", ".storage")
MODULES = {package: importlib.import_module(f"tensorflowonspark{package}") for package in PACKAGES}
OF_2X = {path.stem for path in (ROOT / "src" / "tensorflowonspark" / "v2" / "names").glob("*.py")}
CONTEXT_OF_2X = [
    *("executor_id", "worker_num", "job_name", "task_index", "cluster_spec", "defaultFS", "mgr", "tmp_socket"),
    *("get_data_feed", "start_cluster_server", "export_saved_model"),
]
PAGES = sorted(
    [ROOT / "README.md", *DOCS.rglob("*.md")]
    + [each for suffix in ("py", "ipynb", "md") for each in (ROOT / "examples").rglob(f"*.{suffix}")]
)
_NAMED = re.compile(r"(?<![/\w])(Cluster|Context|Feed|CoordinatedFeed|Results|KerasModel|ctx|tfos)\.(?!py\b)([a-z]\w*)")
_CLASSES = {"ctx": "Context", "KerasModel": "ml.KerasModel"}


def public():
    for package, module in MODULES.items():
        for name in module.__all__:
            if not name.startswith("__"):
                yield f"{package}.{name}".lstrip(".")


def found(name):
    """Return a name's object, or None."""
    item = tfos
    for part in name.split("."):
        item = getattr(item, part, None)
    return item


def columns():
    """Return the stable and the provisional names of the reference's table."""
    rows = re.findall(r"^\| \[.*?\) \|(.*?)\|(.*?)\|$", (REFERENCE / "README.md").read_text(), re.MULTILINE)
    return tuple([name for row in rows for name in re.findall(r"`([\w.]+)`", row[side])] for side in (0, 1))


def test_each_public_name_is_stable_or_provisional():
    stable, provisional = columns()
    listed = [*stable, *provisional]
    assert sorted(listed) == sorted(set(listed)), "a name has two places"
    assert [name for name in listed if found(name) is None] == []
    methods = {name for name in listed if name.partition(".")[0] in tfos.__all__ and "." in name}
    assert set(listed) - methods == set(public())


def test_pages_of_the_reference_describe_each_name_once_and_no_other():
    text = "\n".join(page.read_text() for page in REFERENCE.glob("*.md"))
    described = re.findall(r"^\.\. auto\w+:: tensorflowonspark\.([\w.]+)$", text, re.MULTILINE)
    assert sorted(described) == sorted(public())


def _is_there(kind, name):
    owner = found(_CLASSES.get(kind, kind)) if kind != "tfos" else tfos
    annotated = {each for base in getattr(owner, "__mro__", ()) for each in getattr(base, "__annotations__", {})}
    entries = re.findall(r"^([\w, ]+) : ", getattr(owner, "__doc__", "") or "", re.MULTILINE)
    attributes = {each for entry in entries for each in re.findall(r"\w+", entry)}
    old = {"tfos": OF_2X, "ctx": CONTEXT_OF_2X}.get(kind, ())
    return hasattr(owner, name) or name in annotated | attributes or name in old


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_names_what_is_there_and_imports_what_is_public(page):
    text = page.read_text()
    assert [".".join(named) for named in _NAMED.findall(text) if not _is_there(*named)] == []
    modules = re.findall(r"^[\s\"]*(?:from|import) (tensorflowonspark[\w.]*)", text, re.MULTILINE)
    known = {f"tensorflowonspark{package}" for package in PACKAGES} | {f"tensorflowonspark.{each}" for each in OF_2X}
    assert set(modules) - known == set()
    names = re.findall(r"^\s*from tensorflowonspark import ([\w, ]+)", text, re.MULTILINE)
    packages = {package.strip(".") for package in PACKAGES}
    taken = {name.split()[0] for line in names for name in line.split(",")}
    assert taken - set(tfos.__all__) - packages - OF_2X == set()
