"""Build and check the wheel and the source distribution, and list what an installation gets.

``make dist`` writes them to ``dist/``. They are built from a copy of the files that git tracks, so that nothing else of
the working tree gets into them, and have the time of the last commit, so that equal commits give equal bytes.
"""

import argparse
import hashlib
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
from email.message import Message
from pathlib import Path

from tools.address import addresses

__all__ = ["build", "description", "list_packages", "problems", "tracked_files"]

ROOT = Path(__file__).parent.parent
_PACKAGE = "src/tensorflowonspark"
_LICENSES = ["LICENSE", "NOTICE", f"{_PACKAGE}/driver/dashboard/static/uPlot.LICENSE"]
_OF_SOURCES = [*_LICENSES, "CHANGELOG.md", "CONTRIBUTING.md", "README.md", "SECURITY.md", "pyproject.toml"]
_OF_DEVELOPERS = {"dist", "docs", "lint", "test", "test-matrix", "test-oldest"}  # extras
_LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<target>(?![a-z]+:|#)[^)\s]+)\)")
_WITHOUT_URL = "Pages and programs named below, such as `docs/README.md`, are in the source distribution.\n\n"


def description(readme: str, url: str | None = None) -> str:
    r"""Return the README as it is shown on a package index, where relative links lead nowhere.

    Parameters
    ----------
    readme : str
        Markdown with relative links.
    url : str, optional
        The address of the files of this version. Relative links and images become absolute ones; without it a link
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
            return f"{image}[{text}]({url}/{target}{raw})"
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


def build(output: Path, root: Path = ROOT) -> tuple[Path, Path]:
    """Build the wheel and the source distribution.

    Parameters
    ----------
    output : pathlib.Path
        The folder for both; what is there of an earlier call is removed.
    root : pathlib.Path
        The clone. If it names the address of its repository, links of the description lead there.

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
    for old in output.glob("tensorflowonspark-*"):
        old.unlink()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "tensorflowonspark"
        for name in tracked_files(root):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, copy / name)
        readme = copy / "README.md"
        readme.write_text(description(readme.read_text(), _files_of_version(root)))
        _run(root, sys.executable, "-m", "build", "--outdir", str(output.resolve()), str(copy))
    (wheel,), (sources,) = output.glob("tensorflowonspark-*.whl"), output.glob("tensorflowonspark-*.tar.gz")
    return wheel, sources


def _files_of_version(root: Path) -> str | None:
    """Return the address under which the files of this version can be read, if the repository's is known."""
    version = re.search(r'^__version__ = "(.+)"', (root / _PACKAGE / "__init__.py").read_text(), re.MULTILINE)
    assert version
    repository = addresses(root).get("Repository")
    return repository and f"{repository}/blob/v{version[1]}"


def _run(root: Path, *command: str, stdin: str = "") -> str:
    """Run a command to which the present time is that of the last commit; return its output.

    Raises RuntimeError with its output if it fails.
    """
    environment = {**os.environ, "SOURCE_DATE_EPOCH": _git(root, "log", "-1", "--format=%ct").strip()}
    done = subprocess.run(command, check=False, cwd=root, env=environment, input=stdin, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return done.stdout


def list_packages(wheel: Path, root: Path = ROOT) -> Path:
    """Write the list of the packages that an installation gets with all extras for users, as an SBOM of CycloneDX.

    They are the newest that the package index has for this Python, so the list is of its day.

    Parameters
    ----------
    wheel : pathlib.Path
        The wheel, beside which the list is written.
    root : pathlib.Path
        The clone.

    Returns
    -------
    pathlib.Path
        The list, in JSON.

    Raises
    ------
    RuntimeError
        If there is no package index, for example.
    """
    _, about = _metadata(wheel)
    extras = sorted(set(about.get_all("Provides-Extra", [])) - _OF_DEVELOPERS)
    options = [f"--extra={extra}" for extra in extras]
    uv = (sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-annotate", "--no-header")
    packages = _run(root, *uv, "--python", sys.executable, *options, "pyproject.toml")
    written = wheel.with_name(f"{wheel.name.partition('-py3')[0]}.cdx.json")
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder) / "pyproject.toml"  # whose version is read from the source otherwise
        text = (root / "pyproject.toml").read_text()
        project.write_text(text.replace('dynamic = ["version"]', f'version = "{about["Version"]}"'))
        cyclonedx = (
            sys.executable,
            "-m",
            "cyclonedx_py",
            "requirements",
            "-",
            "--output-reproducible",
            "--mc-type=library",
        )
        _run(root, *cyclonedx, "--pyproject", str(project), "--output-file", str(written.resolve()), stdin=packages)
    return written


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
    names, about = _metadata(wheel)
    (info,) = (name.removesuffix("/METADATA") for name in names if name.endswith(".dist-info/METADATA"))
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


def _metadata(wheel: Path) -> tuple[set[str], Message]:
    """Return the names of a wheel's files, and its metadata."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        return names, message_from_bytes(archive.read(metadata))


def _problems_of_sources(sources: Path, tracked: Sequence[str]) -> Iterator[str]:
    with tarfile.open(sources) as archive:
        names = {name.partition("/")[2] for name in archive.getnames() if not archive.getmember(name).isdir()}
    expected = {name for name in tracked if name in _OF_SOURCES or name.split("/")[0] in ("docs", "examples", "src")}
    yield from _differences(sources.name, expected, names - {"PKG-INFO"})


def _differences(archive: str, expected: set[str], found: set[str]) -> Iterator[str]:
    for name in sorted(expected - found):
        yield f"{archive} lacks {name}: see [tool.flit.sdist] in pyproject.toml"
    for name in sorted(found - expected):
        yield f"{archive} has {name}, which is no file of the package: see [tool.flit.sdist] in pyproject.toml"


def main() -> None:
    """Build into ``dist/``, and end with an error that lists the faults."""
    parser = argparse.ArgumentParser(
        prog="make dist", description="Build and check the wheel and the source distribution; list what they install."
    )
    parser.add_argument("--output", type=Path, default=ROOT / "dist", help="the folder for them (dist/)")
    options = parser.parse_args()
    made = build(options.output)
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *made], check=True)
    if faults := problems(*made, tracked_files()):
        sys.exit("\n".join(faults))
    for each in (*made, list_packages(made[0])):
        digest = hashlib.sha256(each.read_bytes()).hexdigest()
        print(f"{digest}  {each} ({each.stat().st_size >> 10} KiB)")


if __name__ == "__main__":
    main()
