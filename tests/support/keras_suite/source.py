"""The tests of Keras: in the source distribution of the installed version, or in a checkout of its repository."""

import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

__all__ = ["FOLDERS", "files_with_tests", "keras_source"]

FOLDERS = ("trainers", "callbacks", "optimizers", "metrics", "models")


def keras_source(cache: Path) -> Path:
    """Return the directory ``keras/src`` of the source distribution, downloaded and unpacked if it is not there yet.

    That of ``keras-nightly`` has no tests: in its place is that of the newest Keras which is released. The variable
    ``TFOS_TEST_KERAS_SOURCE`` names a checkout of Keras's repository with the tests of another version.

    Parameters
    ----------
    cache : Path
        Where it is kept between runs.
    """
    if checkout := os.environ.get("TFOS_TEST_KERAS_SOURCE"):
        return Path(checkout).absolute() / "keras" / "src"
    name = f"keras-{_released()}"
    source = cache / name / "keras" / "src"
    if not source.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "keras"]
        subprocess.run([*pip, "--dest", cache, name.replace("-", "==")], check=True)
        with tarfile.open(cache / f"{name}.tar.gz") as archive:
            archive.extractall(cache, filter="data")
    return source


def _released() -> str:
    """Return the version of Keras that is installed, or else the newest that is released."""
    try:
        return version("keras")
    except PackageNotFoundError:
        command = [sys.executable, "-m", "pip", "index", "versions", "keras"]
        listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        return re.search(r"\((.+)\)", listed)[1]


def files_with_tests(source: Path, folders: Iterable[str]) -> list[str]:
    """Return the test files in some folders of Keras (or single files), relative to its ``keras/src``."""
    paths = (source / folder for folder in folders)
    found = (each for path in paths for each in (sorted(path.rglob("*_test.py")) if path.is_dir() else [path]))
    return [str(each.relative_to(source)) for each in found]
