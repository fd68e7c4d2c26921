"""The checks of the wheel and the source distribution, the project's addresses, and what the conda recipe repeats."""

import doctest
import io
import re
import tarfile
import zipfile

import pytest
import yaml

import tensorflowonspark
from tests.support.paths import ROOT
from tools import address, dist

PACKAGE = "src/tensorflowonspark"
STATIC = f"{PACKAGE}/driver/dashboard/static"
TRACKED = [
    *(
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "LICENSE",
        "NOTICE",
        "README.md",
        "SECURITY.md",
        "pyproject.toml",
        "docs/a.md",
    ),
    *(f"{PACKAGE}/__init__.py", f"{PACKAGE}/py.typed", f"{STATIC}/uPlot.LICENSE", f"{STATIC}/uPlot.min.css"),
    "tests/conftest.py",
]
INFO = "tensorflowonspark-3.dist-info"
RECIPE = yaml.safe_load((ROOT / "deploy/conda/recipe.yaml").read_text())


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
        for name in [*files, *more, "PKG-INFO"]:
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


KNOWN = {"Repository": "https://example.org/o/n"}


@pytest.mark.parametrize("page", address.PAGES)
def test_a_page_has_the_addresses_of_the_project_and_no_others(page):
    text = (ROOT / page).read_text()
    assert text == address.with_addresses(text, address.addresses()), "run `make address`"
    known = address.with_addresses(text, KNOWN)
    assert known.count("https://example.org/o/n") == 1
    assert address.with_addresses(known, {}) == address.with_addresses(text, {})


def test_an_address_that_is_not_known_is_linked_nowhere():
    assert "http" not in address.with_addresses((ROOT / "SECURITY.md").read_text(), {})
    form = address.with_addresses((ROOT / "SECURITY.md").read_text(), {**KNOWN, "Security": "https://example.org/form"})
    assert "Report it in private at <https://example.org/form>, not in an issue." in form
    assert "example.org/o/n" not in form


def test_the_description_links_to_the_files_of_its_version(tmp_path):
    (tmp_path / PACKAGE).mkdir(parents=True)
    (tmp_path / PACKAGE / "__init__.py").write_text('__version__ = "3.1.0"\n')
    for table, files in (("", None), ('Repository = "https://h/o/n"\n', "https://h/o/n/blob/v3.1.0")):
        (tmp_path / "pyproject.toml").write_text(f"[project]\n\n# R\n[project.urls]\n{table}\n[tool.a]\nb = 'c'\n")
        assert dist._files_of_version(tmp_path) == files


def test_the_version_is_the_same_wherever_it_stands():
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert re.search(r"^## (\S+)", changelog, re.MULTILINE)[1] == tensorflowonspark.__version__
    page = (ROOT / "docs/deploy/databricks.md").read_text()
    assert set(re.findall(r"tensorflowonspark-(.+?)-py3", page)) == {tensorflowonspark.__version__}
    assert RECIPE["context"]["version"] == tensorflowonspark.__version__


def test_the_conda_package_needs_what_the_wheel_needs():
    project = (ROOT / "pyproject.toml").read_text()
    python = re.search(r'requires-python = "(.+)"', project)[1]
    needed = re.findall(r'^  "(.+?)"', re.search(r"^dependencies = \[\n(.*?)^\]", project, re.M | re.S)[1], re.M)
    assert [each.replace(" ", "") for each in RECIPE["requirements"]["run"]] == [f"python{python}", *needed]
    build = re.search(r'^requires = \["(.+?)"\]', project, re.M)[1].replace("_", "-")
    assert [each.replace(" ", "") for each in RECIPE["requirements"]["host"]] == [f"python{python}", "pip", build]
    assert RECIPE["build"]["python"]["entry_points"] == ["tfos = tensorflowonspark.cli:main"]


@pytest.mark.parametrize("module", [address, dist])
def test_its_examples(module):
    assert not doctest.testmod(module).failed
