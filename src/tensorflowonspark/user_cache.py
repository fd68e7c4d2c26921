"""The user's directory for what can be found out, or written, again."""

import os
from pathlib import Path


def user_cache(part: str) -> Path:
    """Return the directory of one part of this package, which may not exist yet.

    It is below ``$XDG_CACHE_HOME``, or else below ``~/.cache``
    (https://specifications.freedesktop.org/basedir-spec/latest/).

    Parameters
    ----------
    part : str
        The directory's name.

    Raises
    ------
    RuntimeError
        If the user has no home.
    """
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "tensorflowonspark", part)
