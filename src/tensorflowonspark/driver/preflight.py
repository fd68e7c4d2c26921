"""Preflight checks: Python, Java, pyspark, TensorFlow and pyarrow versions."""

import os
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, packages_distributions
from importlib.metadata import version as distribution_version
from importlib.util import find_spec
from pathlib import Path

from tensorflowonspark.errors import EnvironmentNotReady

__all__ = ["check_environment"]

_PYTHON = (3, 10)
_JAVA_SECONDS = 30


def check_environment() -> dict[str, str]:
    """Look whether this machine can run a Spark driver with nodes on it.

    Returns
    -------
    dict
        The versions found, by name.

    Raises
    ------
    EnvironmentNotReady
        If something is missing or too old; a line for each, with what to do.
    """
    problems: list[str] = []
    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    if sys.version_info[:2] < _PYTHON:
        problems.append(f"Python {found['python']} is too old: use Python 3.10 or newer")
    for module in ("pyspark", "tensorflow"):
        if version := _version(module):
            found[module] = version
        else:
            problems.append(f'{module} can\'t be imported: pip install "tensorflowonspark[local]"')
    java, problem = _java(needed=17 if found.get("pyspark", "4").split(".")[0] >= "4" else 8)
    found.update({"java": java} if java else {})
    problems.extend([problem] if problem else [])
    if problems:
        raise EnvironmentNotReady("\n".join(problems))
    return found


def _version(module: str) -> str:
    """Return the version of a module; empty if it can't be found where Python looks for modules.

    A distribution has another name than its module (tensorflow-cpu, tf-nightly), or there is none: pyspark may be on
    the path only, as under spark-submit.
    """
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):
        return ""
    if spec is None or spec.origin is None:  # a directory of that name, without a package in it
        return ""
    home = Path(spec.origin).parent
    for file in (home / "version.py", home / "__init__.py"):
        match = re.search(r'^__version__(?:: str)? = "([^"]+)"', _text(file), re.MULTILINE)
        if match:
            return match[1]
    for distribution in sorted(packages_distributions().get(module, ())):
        with suppress(PackageNotFoundError):
            return distribution_version(distribution)
    return "(of unknown version)"


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""


def _java(needed: int) -> tuple[str, str]:
    """Return the version of the Java that Spark would take, and what is wrong with it."""
    advice = f"install a Java runtime, version {max(needed, 17)} (Debian: apt install openjdk-17-jre-headless)"
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None:
        return "", f"there is no java on the PATH and no JAVA_HOME, which Spark needs: {advice}"
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=_JAVA_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        where = f"JAVA_HOME={home}" if home else java
        return "", f"{where} holds no Java that runs ({error}): {advice}"
    match = re.search(r'version "((?:1\.)?(\d+)[^"]*)"', told.stderr)
    if match is None:
        return "", f"{java} is no Java that says its version: {advice}"
    if int(match[2]) < needed:
        return match[1], f"Java {match[1]} ({java}) is too old for the installed Spark: {advice}, or set JAVA_HOME"
    return match[1], ""
