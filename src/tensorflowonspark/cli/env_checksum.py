"""The checksums of packed environments: an archive that others could have put there is no Python of the executors."""

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any, BinaryIO

from tensorflowonspark import storage
from tensorflowonspark.errors import SpecError, StorageError
from tensorflowonspark.storage.ownership import why_replaceable
from tensorflowonspark.user_cache import read_own, user_cache

_READ_BYTES = 1 << 22
_REMEDY = "remove it, so that it is packed again, or name another directory with --env-cache URL"


def digest_of(file: BinaryIO | Any) -> str:
    """Return the SHA-256 of what is left of a file."""
    digest = hashlib.sha256()
    while block := file.read(_READ_BYTES):
        digest.update(block)
    return digest.hexdigest()


def _remember(url: str, checksum: str) -> None:
    """Keep the checksum of an archive that this user has written, for later runs on this machine."""
    try:
        place = _place(url)
        written = place.with_suffix(".new")
        written.write_text(json.dumps({"url": url, "sha256": checksum}))
        written.replace(place)
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home
        print(f"the checksum of {url} is not kept for later runs: {error}", file=sys.stderr)


def check_archive(url: str, checksum: str = "") -> None:
    """Refuse an archive that is not what this user has packed, as far as that is known.

    One that was packed on another machine is taken if nobody else could have put it there; from then on its checksum
    is known. On an object store the bucket's rules alone decide that.

    The checksum is its SHA-256, if that is known. Another archive, or one that others can replace, is refused
    (`SpecError`); one that can't be read is a `StorageError`.
    """
    if problem := why_replaceable(url):
        raise SpecError(f"{url} would be the executors' Python: {problem}. Take a directory that only you can write to")
    known = checksum or _known(url)
    files, within = storage.file_system(url)
    try:
        with files.open(within, "rb") as file:
            found = digest_of(file)
    except OSError as error:
        raise StorageError(f"{url}: {error}") from error
    if known and found != known:
        raise SpecError(f"{url} has the checksum {found[:16]}…, and what was packed has {known[:16]}…: {_REMEDY}")
    if not known:
        owner = _other_owner(files, within)
        if owner:
            raise SpecError(f"{url} belongs to {owner}, and would be the executors' Python: {_REMEDY}")
        _remember(url, found)


def _other_owner(files: Any, within: str) -> str:
    """Return the owner of a file, if it is known and another user."""
    if storage.is_local(files):
        user = Path(within).stat().st_uid
        return "" if user == os.geteuid() else f"user {user}"
    owner = str(files.info(within).get("owner") or "")
    return owner if owner and owner != storage.hadoop_user() else ""


def _known(url: str) -> str:
    try:
        return str(json.loads(read_own(_place(url)))["sha256"])
    except (KeyError, OSError, RuntimeError, TypeError, ValueError):
        return ""


def _place(url: str) -> Path:
    return user_cache("environments") / f"{hashlib.sha256(url.encode()).hexdigest()[:32]}.json"
