"""Build and check the wheel and the source distribution.

``python tools/dist.py`` writes them to ``dist/`` (``make dist``). They are built from a copy of the files that git
tracks, so that nothing else of the working tree gets into them. ``--url`` is the address under which the files of the
repository can be read, such as ``https://HOST/OWNER/NAME/blob/v3.0.0``.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from email import message_from_bytes
from pathlib import Path

__all__ = ["build", "description", "problems", "tracked_files"]

ROOT = Path(__file__).parent.parent
_PACKAGE = "src/tensorflowonspark"
_LICENSES = ["LICENSE", "NOTICE", f"{_PACKAGE}/driver/dashboard/static/uPlot.LICENSE"]
_OF_SOURCES = [*_LICENSES, "CHANGELOG.md", "CONTRIBUTING.md", "README.md", "pyproject.toml"]
_LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<target>(?![a-z]+:|#)[^)\s]+)\)")
_WITHOUT_URL = "Pages and programs named below, such as `docs/README.md`, are in the source distribution.\n\n"


def description(readme: str, url: str | None = None) -> str:
    r"""Return the README as it is shown on a package index, where relative links lead nowhere.

    Parameters
    ----------
    readme : str
        Markdown with relative links.
    url : str, optional
        The address of the repository's files. Relative links and images become absolute ones; without it a link
        becomes its text and the name of its file, and images are left out.

    Returns
    -------
    str
        Markdown without relative links.

    Examples
    --------
    >>> description("It has [limits](docs/limits.md), as [docs/a.md](docs/a.md#b) explains.", "https://h/o/n/blob/v1")
    'It has [limits](https://h/o/n/blob/v1/docs/limits.md), as [docs/a.md](https://h/o/n/blob/v1/docs/a.md#b) explains.'
    >>> print(description("# Title\n\nIt has [limits](docs/limits.md), as [docs/a.md](docs/a.md#b) explains."))
    # Title
    <BLANKLINE>
    Pages and programs named below, such as `docs/README.md`, are in the source distribution.
    <BLANKLINE>
    It has limits (docs/limits.md), as docs/a.md explains.
    """

    def on_index(link: re.Match[str]) -> str:
        image, text, target = link["image"], link["text"], link["target"]
        if url:
            raw = "?raw=true" if image else ""
            return f"{image}[{text}]({url.rstrip('/')}/{target}{raw})"
        if image:
            return ""
        page = target.partition("#")[0]
        return text if text in (page, target) else f"{text} ({page})"

    shown = _LINK.sub(on_index, readme)
    return shown if url else re.sub(r"\A(# .*\n\n)", rf"\1{_WITHOUT_URL}", shown)


def tracked_files(root: Path = ROOT) -> list[str]:
    """Return the files of a clone that git tracks and that exist, relative to its root.

    Parameters
    ----------
    root : pathlib.Path
        The clone.
    """
    return sorted(name for name in _git(root, "ls-files", "-z").split("\0") if name and (root / name).is_file())


def _git(root: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=root, check=True, capture_output=True, text=True).stdout  # noqa: S607


def build(output: Path, url: str | None = None, root: Path = ROOT) -> tuple[Path, Path]:
    """Build the wheel and the source distribution.

    Parameters
    ----------
    output : pathlib.Path
        The folder for both; earlier distributions in it are removed.
    url : str, optional
        As for `description`.
    root : pathlib.Path
        The clone.

    Returns
    -------
    tuple of pathlib.Path
        The wheel and the source distribution.

    Raises
    ------
    RuntimeError
        If the build fails, with its output.
    """
    output.mkdir(parents=True, exist_ok=True)
    for old in [*output.glob("tensorflowonspark-*.whl"), *output.glob("tensorflowonspark-*.tar.gz")]:
        old.unlink()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "tensorflowonspark"
        for name in tracked_files(root):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, copy / name)
        readme = copy / "README.md"
        readme.write_text(description(readme.read_text(), url))
        command = [sys.executable, "-m", "build", "--outdir", str(output.resolve()), str(copy)]
        environment = {**os.environ, "SOURCE_DATE_EPOCH": _commit_time(root)}
        built = subprocess.run(command, check=False, cwd=folder, env=environment, capture_output=True, text=True)
        if built.returncode:
            raise RuntimeError(f"{' '.join(command)} ended with {built.returncode}:\n{built.stdout}\n{built.stderr}")
    (wheel,), (sources,) = output.glob("tensorflowonspark-*.whl"), output.glob("tensorflowonspark-*.tar.gz")
    return wheel, sources


def _commit_time(root: Path) -> str:
    """Return the time of the last commit, which the files of the wheel get, so that equal sources give equal wheels."""
    return _git(root, "log", "-1", "--format=%ct").strip()


def problems(wheel: Path, sources: Path, tracked: Sequence[str]) -> list[str]:
    """Return a line for each fault of the distributions' contents.

    Parameters
    ----------
    wheel, sources : pathlib.Path
        The wheel and the source distribution.
    tracked : sequence of str
        The files of the clone.
    """
    return [*_problems_of_wheel(wheel, tracked), *_problems_of_sources(sources, tracked)]


def _problems_of_wheel(wheel: Path, tracked: Sequence[str]) -> Iterator[str]:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        about = message_from_bytes(archive.read(metadata))
    info = metadata.removesuffix("/METADATA")
    package = {name.removeprefix("src/") for name in tracked if name.startswith(f"{_PACKAGE}/")}
    yield from _differences(wheel.name, package, {name for name in names if not name.startswith(info)})
    for name in _LICENSES:
        if f"{info}/licenses/{name}" not in names:
            yield f"{wheel.name} lacks the licence file {name}: add it to license-files in pyproject.toml"
    for name in package:
        if ".min." in name and f"{name.partition('.')[0]}.LICENSE" not in package:
            yield f"{wheel.name} has {name} of somebody else without its licence: put NAME.LICENSE beside it"
    if link := _LINK.search(str(about.get_payload())):
        yield f"the description of {wheel.name} has the relative link {link[0]}"


def _problems_of_sources(sources: Path, tracked: Sequence[str]) -> Iterator[str]:
    with tarfile.open(sources) as archive:
        names = {name.partition("/")[2] for name in archive.getnames() if not archive.getmember(name).isdir()}
    expected = {name for name in tracked if name in _OF_SOURCES or name.split("/")[0] in ("docs", "examples", "src")}
    made = {"MANIFEST.in", "PKG-INFO", "setup.cfg"}
    found = {name for name in names - made if ".egg-info/" not in name}
    yield from _differences(sources.name, expected, found)


def _differences(archive: str, expected: set[str], found: set[str]) -> Iterator[str]:
    for name in sorted(expected - found):
        yield f"{archive} lacks {name}: see package-data in pyproject.toml, and MANIFEST.in"
    for name in sorted(found - expected):
        yield f"{archive} has {name}, which is no file of the package: see pyproject.toml and MANIFEST.in"


def main() -> None:
    """Build both into ``dist/``, and end with an error that lists the faults."""
    parser = argparse.ArgumentParser(description="Build and check the wheel and the source distribution.")
    parser.add_argument("--output", type=Path, default=ROOT / "dist", help="the folder for both (dist/)")
    parser.add_argument("--url", help="where the repository's files can be read, for the links of the description")
    options = parser.parse_args()
    made = build(options.output, options.url)
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *made], check=True)
    if faults := problems(*made, tracked_files()):
        sys.exit("\n".join(faults))
    sys.stdout.writelines(f"{each} ({each.stat().st_size >> 10} KiB)\n" for each in made)


if __name__ == "__main__":
    main()
