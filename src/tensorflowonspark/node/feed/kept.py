"""What a node has found in files, kept for later runs: on the disk of its host, by path, size and time.

A data set's own directory is often read-only, so the user's directory for caches has it. Nothing depends on what is
kept: what is damaged, missing or can't be written is found out again, and so is what others could have written. It is
JSON, of which no code is loaded.
"""

import fcntl
import hashlib
import json
import logging
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tensorflowonspark.storage.listing import File
from tensorflowonspark.user_cache import read_own, user_cache

_FORMAT = 1  # part of the names: another version reads its own
_MOST_BYTES = 256 << 20  # of all files that are kept; the oldest go first
_SETTLED_SECONDS = 5  # a file younger than this may be written again with the same size and time
_OTHERS_KEPT = 4  # times as many entries as this read has: those of other reads of the same directory
_log = logging.getLogger(__name__)


def load(kind: str, files: Sequence[File]) -> dict[str, Any]:
    """Return what is known of some files, by their paths, unless they have changed since."""
    if not files:
        return {}
    try:
        found = _read(_place(kind, files))
    except (OSError, RuntimeError):  # there is none, or not this user's alone: `keep` logs that
        return {}
    known = {file.path: found.get(_key(file)) for file in files if file.modified}
    return {path: value for path, value in known.items() if value is not None}


def keep(kind: str, files: Sequence[File], values: Mapping[str, Any]) -> None:
    """Keep what was found in some files, by their paths; log a warning if that is impossible.

    The values are what JSON can hold.
    """
    if not files:
        return
    before = time.time() - _SETTLED_SECONDS
    own = {_key(file): values[file.path] for file in files if file.path in values and 0 < file.modified < before}
    try:
        place = _place(kind, files)
        with (place.parent / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # another node of this host may add what it has found
            others = _read(place)
            if len(others.keys() - own.keys()) > _OTHERS_KEPT * len(files):
                others = {}
            if any(others.get(key) != value for key, value in own.items()):
                written = place.with_suffix(".new")
                written.write_text(json.dumps(others | own))
                written.replace(place)
                _remove_oldest(place.parent)
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home
        _log.warning("what was found in %d files is not kept for later runs: %s", len(files), error)


def _place(kind: str, files: Sequence[File]) -> Path:
    common = os.path.commonprefix([files[0].path, files[-1].path]).rpartition("/")[0]  # noqa: RUF071 - of URLs, and cut at a slash
    return user_cache("files") / f"{_FORMAT}-{hashlib.sha256(f'{kind} {common}'.encode()).hexdigest()[:32]}.json"


def _key(file: File) -> str:
    return f"{file.path} {file.size} {file.modified!r}"


def _read(place: Path) -> dict[str, Any]:
    try:
        found = json.loads(read_own(place))
        if not isinstance(found, dict):
            raise ValueError(f"a {type(found).__name__}")
    except FileNotFoundError:
        return {}
    except (OSError, RuntimeError, ValueError) as error:
        _log.warning("%s, with what earlier runs have found in files, can't be read and is ignored: %s", place, error)
        return {}
    return found


def _remove_oldest(folder: Path) -> None:
    kept = sorted((each.stat().st_mtime, each.stat().st_size, each) for each in folder.glob("*.json"))
    total = sum(size for _, size, _ in kept)
    for _, size, each in kept[:-1]:
        if total > _MOST_BYTES:
            total -= size
            with suppress(OSError):
                each.unlink()
