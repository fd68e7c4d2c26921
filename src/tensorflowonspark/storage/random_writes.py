"""Which directories take writes in the midst of a file.

A disk does. Volumes of Databricks, DBFS and mounts of object stores take files as a whole: they refuse to seek in a
file that is written, and to append to one that is there. Zip and HDF5 files, in which Keras saves, need both.
"""

import os
import uuid
from contextlib import suppress
from pathlib import Path

_found: dict[int, bool] = {}  # by the device of a file system


def takes_random_writes(directory: str | os.PathLike[str]) -> bool:
    """Return whether files in a local directory, which need not exist, can be changed and extended.

    This is tried, once for each file system. Where nothing can be written the answer is yes: the write itself will
    say why it can't be done.

    Parameters
    ----------
    directory : str or path
        A local path, of which the nearest folder that exists is tried.

    Returns
    -------
    bool
        False on a volume of Databricks, DBFS, or a mount of an object store.

    Examples
    --------
    >>> import tempfile
    >>> takes_random_writes(tempfile.gettempdir())
    True
    """
    path = Path(directory).absolute()
    existing = next(each for each in (path, *path.parents) if each.is_dir())
    device = existing.stat().st_dev
    if device not in _found:
        probe = existing / f".tfos-{uuid.uuid4().hex}"
        try:
            probe.write_bytes(b"one")
        except OSError:
            return True
        try:
            with probe.open("r+b", buffering=0) as file:
                file.seek(1)
                file.write(b"t")
            _found[device] = True
        except OSError:
            _found[device] = False
        finally:
            with suppress(OSError):
                probe.unlink()
    return _found[device]
