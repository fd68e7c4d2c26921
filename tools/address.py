"""The addresses of the project in the documentation: ``make address`` writes them from ``[project.urls]``.

That table of ``pyproject.toml`` is the only place where they are written by hand. As long as it is empty, the pages say
how to find the address, and link to nothing.
"""

import re
import textwrap
from pathlib import Path

__all__ = ["PAGES", "addresses", "with_addresses"]

ROOT = Path(__file__).parent.parent
PAGES = ["README.md", "SECURITY.md", "docs/install.md"]
_CLONE = re.compile(r"git clone \S+ tensorflowonspark && cd tensorflowonspark.*")
_REPORT = re.compile(r"(?<=<!-- address: begin -->\n).*?(?=\n<!-- address: end -->)", re.DOTALL)
_FORM = "Report it in private: *Security*, *Report a vulnerability* on"
_NO_FORM = "Where there is no such form, open an issue that asks for a private way and tells nothing of the fault."


def addresses(root: Path = ROOT) -> dict[str, str]:
    """Return ``[project.urls]`` of a clone.

    Parameters
    ----------
    root : pathlib.Path
        The clone.
    """
    _, _, table = (root / "pyproject.toml").read_text().partition("\n[project.urls]\n")
    return dict(re.findall(r'^(\w+) = "(.+?)"', table.partition("\n[")[0], re.MULTILINE))


def with_addresses(page: str, known: dict[str, str]) -> str:
    r"""Return the text of a page with these addresses, in place of those that it has.

    Examples
    --------
    >>> text = "git clone URL tensorflowonspark && cd tensorflowonspark    # URL: ...\n"
    >>> with_addresses(text, {"Repository": "https://h/o/n"})
    'git clone https://h/o/n tensorflowonspark && cd tensorflowonspark\n'
    """
    repository = known.get("Repository", "")
    hint = "" if repository else "    # URL: what Code on this repository's page shows"
    report = f"{_FORM} <{repository}>." if repository else f"{_FORM} this repository's page. {_NO_FORM}"
    if "Security" in known:
        report = f"Report it in private at <{known['Security']}>, not in an issue."
    page = _CLONE.sub(f"git clone {repository or 'URL'} tensorflowonspark && cd tensorflowonspark{hint}", page)
    return _REPORT.sub(textwrap.fill(report, 120), page)


if __name__ == "__main__":
    for each in PAGES:
        (ROOT / each).write_text(with_addresses((ROOT / each).read_text(), addresses()))
