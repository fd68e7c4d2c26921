"""Keras's source distribution of the installed version, which has its tests."""

import subprocess
import sys
import tarfile
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path

__all__ = ["FOLDERS", "files_with_tests", "keras_source"]

FOLDERS = ("trainers", "callbacks", "optimizers", "metrics", "models")


def keras_source(cache: Path) -> Path:
    """Return the directory ``keras/src`` of the source distribution, downloaded and unpacked if it is not there yet.

    Parameters
    ----------
    cache : Path
        Where it is kept between runs.
    """
    name = f"keras-{version('keras')}"
    source = cache / name / "keras" / "src"
    if not source.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "keras"]
        subprocess.run([*pip, "--dest", cache, name.replace("-", "==")], check=True)
        with tarfile.open(cache / f"{name}.tar.gz") as archive:
            archive.extractall(cache, filter="data")
    return source


def files_with_tests(source: Path, folders: Iterable[str]) -> list[str]:
    """Return the test files in some folders of Keras (or single files), relative to its ``keras/src``."""
    paths = (source / folder for folder in folders)
    found = (each for path in paths for each in (sorted(path.rglob("*_test.py")) if path.is_dir() else [path]))
    return [str(each.relative_to(source)) for each in found]
