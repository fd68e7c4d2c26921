"""Environments of cells, made by `uv`: interpreters, resolved versions and their installation; and Java."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from threading import Lock

from tools.matrix.cells import ROOT, Cell

__all__ = ["NoJava", "NoPython", "NoRelease", "find_java", "find_python", "install", "newest", "resolve", "versions_of"]

_JAVAS = Path("/usr/lib/jvm")
_UV = ROOT / ".venvs" / "uv"
_WHEELS = ROOT / ".venvs" / "wheels"
_building = Lock()
# Versions of NumPy and pyarrow that don't work with each other, which pyarrow's metadata does not state.
_OLD_NUMPY, _PYARROW_REFUSES, _OLDER_PYARROW = "1.", 26, "pyarrow<26"


class NoPython(Exception):
    """There is no interpreter of a version, and it can't be downloaded."""


class NoJava(Exception):
    """There is no Java of a version."""


class NoRelease(Exception):
    """The packages exclude a combination; the text is the resolver's reason."""


@cache
def _uv() -> str:
    """Return the command `uv`: the installed one, or one from the package index in an environment of its own."""
    found = shutil.which("uv")
    if found:
        return found
    if not (_UV / "bin" / "uv").exists():
        subprocess.run([sys.executable, "-m", "venv", _UV], check=True)
        subprocess.run([_UV / "bin" / "python", "-m", "pip", "install", "--quiet", "uv"], check=True)
    return str(_UV / "bin" / "uv")


def _run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run `uv` outside of any environment, with the interpreters of pyenv on the path if there are any."""
    environment = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "UV_PYTHON")}
    pyenv = Path(environment.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    folders = [str(folder) for folder in sorted(pyenv.glob("3.*/bin"), reverse=True)]
    environment["PATH"] = os.pathsep.join([*folders, environment.get("PATH", os.defpath)])
    command = [_uv(), *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, env=environment, check=False, capture_output=True, text=True)


@cache
def find_python(version: str) -> str:
    """Return the path of an interpreter; it is downloaded if there is none.

    Raises
    ------
    NoPython
        If that fails too.
    """
    find = ("python", "find", "--system", version)
    found = _run(*find)
    if found.returncode:
        _run("python", "install", version)
        found = _run(*find)
    if found.returncode:
        raise NoPython(f"no Python {version} on this machine, and uv can't download it")
    return found.stdout.strip()


def find_java(version: str) -> tuple[Path, str]:
    """Return the directory of a Java below ``/usr/lib/jvm``, where Linux installs it, and its whole version.

    Raises
    ------
    NoJava
        If there is none.
    """
    for release in sorted(_JAVAS.glob("*/release")):
        found = re.search(rf'^JAVA_VERSION="({version}\b[^"]*)"', release.read_text(), re.MULTILINE)
        if found:
            return release.parent, found[1]
    raise NoJava(f"no Java {version} on this machine, in {_JAVAS}")


@cache
def _build_spark(cell: Cell) -> None:
    """Build Spark's wheel unless there is one; if that fails, `uv` tries it too, and reports why.

    The package index has Spark's source only. `uv` would build it for each environment anew, which takes a minute of a
    processor and a gigabyte of its cache.
    """
    folder = ("--find-links", _WHEELS, "--wheel-dir", _WHEELS)
    command = [find_python(cell.python), "-m", "pip", "wheel", "--quiet", "--no-deps", *folder, cell.requirements[0]]
    with _building:
        _WHEELS.mkdir(parents=True, exist_ok=True)
        subprocess.run(command, check=False, capture_output=True)


def newest(name: str, python: str) -> str:
    """Return the newest version of a package for a version of Python, which may be a pre-release.

    Raises
    ------
    NoPython
        If there is no interpreter.
    RuntimeError
        If there is none, or `uv` fails for another reason, as without a network.
    """
    with tempfile.TemporaryDirectory() as directory:
        wanted = Path(directory) / "requirements.txt"
        wanted.write_text(name)
        options = ("--quiet", "--no-annotate", "--no-header", "--no-deps", "--prerelease", "allow")
        done = _run("pip", "compile", *options, "--python", find_python(python), wanted)
    if done.returncode:
        raise RuntimeError(f"no version of {name}: {reason(done.stderr)}")
    return versions_of(done.stdout)[name]


def resolve(cell: Cell, extra: str, more: Sequence[str] = (), overrides: Sequence[str] = ()) -> str:
    """Return the versions of all packages of a cell, as the text of a file of requirements.

    Parameters
    ----------
    cell : Cell
        The versions.
    extra : str
        The extra of this package with what the tests need.
    more : sequence of str
        Further requirements.
    overrides : sequence of str
        Requirements in place of those that all packages have of the same ones.

    Raises
    ------
    NoPython
        If there is no interpreter.
    NoRelease
        If no versions satisfy all requirements.
    RuntimeError
        If `uv` fails for another reason, as without a network.
    """
    _build_spark(cell)
    with tempfile.TemporaryDirectory() as directory:
        wanted = Path(directory) / "requirements.txt"
        wanted.write_text("\n".join([*cell.requirements, *more]))
        replaced = Path(directory) / "overrides.txt"
        replaced.write_text("\n".join(overrides))
        options = ("--quiet", "--no-annotate", "--no-header", "--python", find_python(cell.python), "--extra", extra)
        options = (*options, "--find-links", str(_WHEELS), "--override", str(replaced))
        done = _run("pip", "compile", *options, "pyproject.toml", wanted)
    if done.returncode:
        if "No solution found" in done.stderr:
            raise NoRelease(reason(done.stderr))
        raise RuntimeError(f"uv pip compile: {done.stderr.strip()}")
    found = versions_of(done.stdout)
    clash = found["numpy"].startswith(_OLD_NUMPY) and int(found["pyarrow"].split(".")[0]) >= _PYARROW_REFUSES
    return resolve(cell, extra, [*more, _OLDER_PYARROW], overrides) if clash else done.stdout


def reason(errors: str) -> str:
    r"""Return the reason in the resolver's report, in one line: its hint, or else its deduction.

    Examples
    --------
    >>> reason("error: No solution found\n  Because a needs b,\n  a fails.\n\nhint: You need\n  c\n")
    'You need c'
    """
    hint = re.search(r"hint: (.*?)(?:\n\s*\n|\Z)", errors, re.DOTALL)
    because = re.search(r"Because .*", errors, re.DOTALL)
    found = hint[1] if hint else because[0] if because else errors
    return " ".join(found.split())


def versions_of(resolved: str) -> dict[str, str]:
    r"""Return the versions in a file of requirements, by the name of the package.

    Examples
    --------
    >>> versions_of("keras==3.12.4\ntf-keras==2.18.0\n")
    {'keras': '3.12.4', 'tf-keras': '2.18.0'}
    """
    return dict(re.findall(r"^([\w.-]+)==(\S+)", resolved, re.MULTILINE))


def install(cell: Cell, resolved: str, directory: Path) -> Path:
    """Make the environment of a cell, with this package as it is in the checkout; return its interpreter.

    Raises
    ------
    RuntimeError
        If `uv` fails; with its report.
    """
    python = directory / "bin" / "python"
    shutil.rmtree(directory, ignore_errors=True)
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        wanted = Path(temporary) / "requirements.txt"
        wanted.write_text(resolved)
        links = ("--find-links", _WHEELS)
        for arguments in (
            ("venv", "--quiet", "--python", find_python(cell.python), directory),
            ("pip", "install", "--quiet", "--no-deps", *links, "--python", python, "--requirement", wanted),
            ("pip", "install", "--quiet", "--python", python, "--no-deps", "--editable", ROOT),
        ):
            done = _run(*arguments)
            if done.returncode:
                raise RuntimeError(f"uv {' '.join(arguments[:2])}: {done.stderr.strip()}")
    return python
