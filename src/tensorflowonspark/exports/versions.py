"""Numbered directories of a model, as TensorFlow Serving and Triton watch them: ``model/1``, ``model/2``.

No file system that fsspec knows has one way to make a name exclusively. So who takes a number writes a file with a name
of its own, and then lists the directory: the number is taken by whoever sees no other's file for it. That needs a file
system whose listing has what was written before, as all current ones are.
"""

import random
import re
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import PurePosixPath
from typing import Literal

from fsspec import AbstractFileSystem

from tensorflowonspark import storage
from tensorflowonspark.errors import SpecError

_CLAIM = re.compile(r"\.version-(\d+)-[0-9a-f]{32}")  # the name of a file that takes a number
_PAUSE_SECONDS = 0.2  # at most, after another one has tried to take the same number
_MAX_TRIES = 100


@contextmanager
def numbered(path: str, version: "int | Literal['next']") -> Iterator[str]:
    """Take the number of a version below a path for the duration of a block, and return its directory.

    ``"next"`` is one more than the highest that is there, or that another training takes now. Raises SpecError if the
    version exists, or is taken.
    """
    base = path.rstrip("/")
    if version != "next" and (not isinstance(version, int) or isinstance(version, bool) or version < 0):
        raise SpecError(f"version={version!r}: expected 'next', or a number from 0 on")
    files, within = storage.file_system(base)
    files.makedirs(within, exist_ok=True)
    number, claim = _take(files, within, version, base)
    try:
        yield f"{base}/{number}"
    finally:
        with suppress(FileNotFoundError):
            files.rm_file(claim)


def _take(files: AbstractFileSystem, within: str, version: "int | Literal['next']", base: str) -> tuple[int, str]:
    for _ in range(_MAX_TRIES):
        there = _numbers(files, within)
        number = max(there, default=0) + 1 if version == "next" else version
        if number in there:
            raise SpecError(f"{base}/{number} exists already, or another training writes it: version='next' takes the "
                            "number after the highest")  # fmt: skip
        claim = f"{within}/.version-{number}-{uuid.uuid4().hex}"
        files.pipe_file(claim, b"")
        if _numbers(files, within).count(number) == 1:
            return number, claim
        files.rm_file(claim)
        time.sleep(random.uniform(0, _PAUSE_SECONDS))  # noqa: S311 - two that meet are to part
    raise SpecError(f"{base}: other trainings have taken each number that was tried ({_MAX_TRIES} times)")


def _numbers(files: AbstractFileSystem, within: str) -> list[int]:
    """Return the numbers of the versions that are there, and of those that are taken, each as often as it is."""
    files.invalidate_cache(within)
    names = [PurePosixPath(each.rstrip("/")).name for each in files.ls(within, detail=False)]
    claims = [int(found[1]) for name in names if (found := _CLAIM.fullmatch(name))]
    return [*claims, *(int(name) for name in names if name.isascii() and name.isdigit())]
