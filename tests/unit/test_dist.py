"""The checks of the wheel and the source distribution, and the README as a package index shows it."""

import doctest
import importlib.util
import io
import re
import tarfile
import zipfile

import tensorflowonspark
from tests.support.paths import ROOT

_SPEC = importlib.util.spec_from_file_location("dist", ROOT / "tools" / "dist.py")
dist = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(dist)

PACKAGE = "src/tensorflowonspark"
STATIC = f"{PACKAGE}/driver/dashboard/static"
TRACKED = [
    *("CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "NOTICE", "README.md", "pyproject.toml", "docs/a.md"),
    *(f"{PACKAGE}/__init__.py", f"{PACKAGE}/py.typed", f"{STATIC}/uPlot.LICENSE", f"{STATIC}/uPlot.min.css"),
    "tests/conftest.py",
]
INFO = "tensorflowonspark-3.dist-info"


def distributions(folder, without=(), more=(), description=""):
    """Write a wheel and a source distribution that have these files and no others."""
    files = [name for name in TRACKED if name not in without and not name.startswith("tests/")]
    wheel, sources = folder / "a.whl", folder / "a.tar.gz"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in files:
            if name.startswith("src/"):
                archive.writestr(name.removeprefix("src/"), "")
            if name in dist._LICENSES:
                archive.writestr(f"{INFO}/licenses/{name}", "")
        for name in more:
            archive.writestr(name, "")
        archive.writestr(f"{INFO}/METADATA", f"Name: tensorflowonspark\n\n{description}")
    with tarfile.open(sources, "w:gz") as archive:
        for name in [*files, *more, "PKG-INFO", "src/tensorflowonspark.egg-info/SOURCES.txt"]:
            archive.addfile(tarfile.TarInfo(f"tensorflowonspark-3/{name}"), io.BytesIO())
    return wheel, sources


def test_complete_distributions_have_no_problem(tmp_path):
    assert dist.problems(*distributions(tmp_path), TRACKED) == []


def test_what_is_missing_is_named(tmp_path):
    found = dist.problems(*distributions(tmp_path, without=["NOTICE", f"{PACKAGE}/py.typed"]), TRACKED)
    assert [line.partition(":")[0] for line in found] == [
        "a.whl lacks tensorflowonspark/py.typed",
        "a.whl lacks the licence file NOTICE",
        "a.tar.gz lacks NOTICE",
        f"a.tar.gz lacks {PACKAGE}/py.typed",
    ]


def test_files_that_are_not_of_the_package_are_named(tmp_path):
    more = ["tests/test_a.py", "tensorflowonspark/__pycache__/a.pyc"]
    found = dist.problems(*distributions(tmp_path, more=more), TRACKED)
    assert [line.partition(",")[0] for line in found] == [
        *(f"a.whl has {name}" for name in sorted(more)),
        *(f"a.tar.gz has {name}" for name in sorted(more)),
    ]


def test_code_of_others_needs_its_licence(tmp_path):
    tracked = [*TRACKED, f"{STATIC}/other.min.js"]
    wheel, _ = distributions(tmp_path, more=["tensorflowonspark/driver/dashboard/static/other.min.js"])
    (problem,) = dist._problems_of_wheel(wheel, tracked)
    assert "other.min.js of somebody else without its licence" in problem


def test_relative_links_in_the_description_are_a_problem(tmp_path):
    given = distributions(tmp_path, description="See [a page](docs/a.md), [another](https://example.org/b).")
    assert dist.problems(*given, TRACKED) == ["the description of a.whl has the relative link [a page](docs/a.md)"]


def test_the_readme_without_relative_links():
    readme = (ROOT / "README.md").read_text()
    for url in (None, "https://example.org/o/n/blob/v3"):
        text = dist.description(readme, url)
        assert not dist._LINK.search(text)
        assert text.count("```") == readme.count("```")
        assert ("(https://example.org/o/n/blob/v3/docs/images/digits.png?raw=true)" in text) == bool(url)


def test_the_version_is_the_same_wherever_it_stands():
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert re.search(r"^## (\S+)", changelog, re.MULTILINE)[1] == tensorflowonspark.__version__
    page = (ROOT / "docs/deploy/databricks.md").read_text()
    assert set(re.findall(r"tensorflowonspark-(.+?)-py3", page)) == {tensorflowonspark.__version__}


def test_examples():
    assert not doctest.testmod(dist).failed
