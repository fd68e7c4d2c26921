"""Who else can change a file or a directory: what others can replace is not this user's, whatever it was before."""

import grp
import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from tensorflowonspark.storage.file_systems import file_system, is_local, is_object_store

_OTHERS_WRITE = stat.S_IWOTH | stat.S_IWGRP


def why_not_ours(path: Path) -> str:
    """Return why others could change a local file, or put modules beside it; empty if only this user and root can.

    Raises OSError if it is missing.
    """
    real = path.resolve()
    for each in {*path.absolute().parents, path.absolute(), *real.parents, real}:
        found = each.lstat()
        if found.st_uid not in (0, os.getuid()):
            return f"{each} belongs to another user"
        if not stat.S_ISLNK(found.st_mode) and _lets_others_write(each, found, each not in (path.absolute(), real)):
            return f"other users can write to {each}"
    return ""


def why_replaceable(path: str) -> str:
    """Return why others could replace a file or directory by another one; empty if none can, or on an object store.

    That is so if others can write to a directory above it, unless it is sticky, as ``/tmp``. It need not exist.
    """
    files, within = file_system(path)
    if is_object_store(files):
        return ""
    for directory in PurePosixPath(within).parents:
        for name, others_write in _directories(files, str(directory)):
            if others_write:
                return f"other users can write to {name}, and replace what is in it"
    return ""


def _directories(files: Any, directory: str) -> Iterator[tuple[str, bool]]:
    """Yield a directory, and where its links lead, with whether others can write there; nothing if it is missing."""
    if is_local(files):
        given = Path(directory)
        real = given.resolve()
        for each in {given, real, *(real.parents if given.is_symlink() else ())}:
            if each.exists():
                yield str(each), _lets_others_write(each, each.stat(), True)
    elif files.exists(directory):
        mode = int(files.info(directory).get("permission") or 0)
        yield directory, bool(mode & _OTHERS_WRITE) and not mode & stat.S_ISVTX


def _lets_others_write(path: Path, found: os.stat_result, may_be_sticky: bool) -> bool:
    # In a sticky directory, as /tmp, others can make files, and can't replace what is there.
    if (found.st_mode & stat.S_ISVTX and may_be_sticky) or not found.st_mode & _OTHERS_WRITE:
        return False
    return bool(found.st_mode & stat.S_IWOTH) or not _is_own_group(path, found.st_gid)


def _is_own_group(path: Path, group: int) -> bool:
    """Return whether a group has this user alone, as many systems make one for each; no list adds others."""
    try:
        user, found = pwd.getpwuid(os.getuid()), grp.getgrgid(group)
    except KeyError:  # a container's user without an entry in its table
        return False
    if user.pw_gid != group or found.gr_name != user.pw_name:
        return False
    members = {*found.gr_mem, *(each.pw_name for each in pwd.getpwall() if each.pw_gid == group)}
    lists = os.listxattr(path) if hasattr(os, "listxattr") else []
    return members <= {user.pw_name} and "system.posix_acl_access" not in lists
