"""The documentation site's own programs: names of pages, navigation, cards, drawings, and the check of links."""

import importlib.util

from tests.support.paths import DOCS, ROOT


def _load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


navigation = _load(DOCS / "_site" / "navigation.py")
diagrams = _load(ROOT / "tools" / "diagrams.py")
site_links = _load(ROOT / "tools" / "site_links.py")


def test_a_readme_is_the_first_page_of_its_folder():
    names = ["docs/README", "docs/deploy/yarn", "examples/mnist/README", "README", "CHANGELOG"]
    found = [navigation.page_name(name) for name in names]
    assert found == ["index", "deploy/yarn", "examples/mnist/index", "readme", "changelog"]
    assert [navigation.page_name(name) for name in found] == found


def test_the_navigation_lists_each_page_once_by_the_table_that_names_it_first():
    text = (
        "# Title\n\n[no](table.md)\n\n## One\n\n| a | b |\n|---|---|\n| [a](a.md) | [b](b.md#part) [c](deploy/c.md) |\n"
        "\n## Two\n\n| [a](a.md) | [deploy](deploy/README.md) [me](README.md) |\n"
    )
    assert navigation.children("index", "docs/README.md", text) == [("One", ["a", "b"]), ("Two", ["deploy/index"])]
    assert navigation.children("deploy/index", "docs/deploy/README.md", "# D\n| [y](yarn.md) [g](../gpus.md) |") == [
        ("# D", ["deploy/yarn"])
    ]


def test_every_page_is_in_the_navigation():
    names = {file.relative_to(ROOT).with_suffix("").as_posix(): file for file in DOCS.rglob("*.md")}
    names = {navigation.page_name(name): file for name, file in names.items()}
    listed = [
        page
        for index in ["index", *navigation.INDEXES.values()]
        if index in names
        for _, children in navigation.children(index, str(names[index].relative_to(ROOT)), names[index].read_text())
        for page in children
    ]
    assert len(listed) == len(set(listed))
    assert set(names) - set(listed) == {"index"}


def test_a_table_of_examples_is_a_grid_of_cards(tmp_path):
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "README.md").write_text("# Digits\n\nTrain.\n\n![them](out.png)\n")
    text = "# E\n\n| a | b | |\n|---|---|---|\n| [mnist](mnist/README.md) | four ways | <img src='x.png'> |\n\nEnd.\n"
    found = navigation.cards(text, tmp_path)
    assert "{grid-item-card} Digits\n:link: mnist/index\n:link-type: doc\n:img-top: mnist/out.png" in found
    assert "\n\nfour ways\n::::" in found
    assert "|" not in found
    assert found.endswith("End.\n")
    other = text.replace("mnist/README.md", "recommender.py")
    assert navigation.cards(other, tmp_path) == other


def test_the_drawings_are_those_of_their_program():
    for name, text in diagrams.pictures().items():
        assert (diagrams.FOLDER / name).read_text() == text, "run `make docs`"


def test_broken_links_of_a_site_are_found(tmp_path):
    (tmp_path / "a.html").write_text(
        '<p id="here"></p><a href="#here">1</a><a href="b.html#there">2</a><a href="https://name.org/x">3</a>'
        '<a href="#nowhere">4</a><a href="c.html">5</a><a href="b.html#gone">6</a><a href="https:/name">7</a>'
        '<img src="https://name.org/x.png"><a href="http://name.org/x).">8</a>'
    )
    (tmp_path / "b.html").write_text('<h1 id="there"></h1>')
    found = [line.split(": ")[1] for line in site_links.broken_links(tmp_path)]
    assert found == [
        "#nowhere",
        "b.html#gone",
        "c.html",
        "http://name.org/x).",
        "https:/name",
        "https://name.org/x.png",
    ]
