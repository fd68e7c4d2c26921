"""The gallery of examples: what each README holds, and that the index leads to all of them."""

import re
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
FOLDERS = sorted(each for each in EXAMPLES.iterdir() if each.is_dir() and each.name not in ("notebooks", "v2"))
FOLDERS = [each for each in FOLDERS if list(each.glob("*.py"))]
SECTIONS = ["Run", "Output", "On a cluster, with your data"]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
class TestEachExample:
    def test_its_readme_has_all_sections(self, folder):
        text = (folder / "README.md").read_text()
        assert re.match(r"# \w.*\n\n\w", text)  # a title, and a paragraph about the purpose
        assert [each for each in SECTIONS if f"\n## {each}\n" not in text] == []
        assert re.search(r"\d+ seconds on two cores", text)

    def test_its_readme_has_the_command_of_each_program(self, folder):
        text = (folder / "README.md").read_text()
        assert [each.name for each in folder.glob("*.py") if f"examples/{folder.name}/{each.name}" not in text] == []

    def test_its_pictures_are_small_and_shown(self, folder):
        text = (folder / "README.md").read_text()
        assert {each.name for each in folder.glob("*.png")} <= set(re.findall(r"!\[[^\]]+\]\((.*)\)", text))
        assert [each.name for each in folder.glob("*.png") if each.stat().st_size > 150_000] == []

    def test_the_links_of_its_readme_lead_somewhere(self, folder):
        links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", (folder / "README.md").read_text())
        assert [each for each in links if ":" not in each and not (folder / each).exists()] == []

    def test_the_index_links_it(self, folder):
        assert f"]({folder.name}/README.md)" in (EXAMPLES / "README.md").read_text()
