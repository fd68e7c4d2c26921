"""The user's directory for what can be found out again: used only if nobody else can have put anything there."""

import os
import stat
from pathlib import Path

from tensorflowonspark.processes import open_private


def user_cache(part: str) -> Path:
    """Return the directory of one part of this package, which is made if there is none.

    It is below ``$XDG_CACHE_HOME``, or else below ``~/.cache``
    (https://specifications.freedesktop.org/basedir-spec/latest/). Raises OSError if it can't be made, or it, or the one
    around it, is a link, another user's, or one where others can write. One that others can only read becomes private.
    Raises RuntimeError if the user has no home.
    """
    own = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "tensorflowonspark")
    own.parent.mkdir(parents=True, exist_ok=True)
    for directory in (own, own / part):
        if not os.path.lexists(directory):
            directory.mkdir(mode=0o700, exist_ok=True)
        found = directory.lstat()
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022:
            directory.chmod(0o700)
        os.close(open_private(directory))
    return own / part


def read_own(path: Path) -> bytes:
    """Return the contents of a file that this user has written, and which is no link.

    Raises OSError if it is missing, a link, or another user's.
    """
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:  # noqa: PTH123 - of a descriptor
        if os.fstat(file.fileno()).st_uid != os.geteuid():
            raise PermissionError(f"{path} belongs to another user")
        return file.read()
