"""Files of a checkpoint as whoever can write to its directory may have written them: what is wrong is an error."""

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tensorflowonspark.errors import CheckpointError, ClusterError

__all__ = ["open_archive", "parsed"]


@contextmanager
def parsed(source: str) -> Iterator[None]:
    """Raise `CheckpointError` with the name of a file if a block can't read what is in it."""
    try:
        yield
    except ClusterError:
        raise
    except Exception as error:  # of zip archives, JSON, NumPy, or the use of their values
        raise CheckpointError(
            f"{source} is damaged, or was written by another kind of program: remove the checkpoint, and training "
            f"resumes from the one before ({type(error).__name__}: {error})"
        ) from error


@contextmanager
def open_archive(directory: str, name: str, source: str) -> Iterator[zipfile.ZipFile]:
    """Open a zip archive in a local directory, whose entries are as long as they are in the file.

    Parameters
    ----------
    directory : str
        The directory.
    name : str
        The archive's name in it.
    source : str
        Path of the checkpoint, for errors.

    Raises
    ------
    CheckpointError
        If an entry is compressed, so that a few bytes may stand for any number; or the block can't read an entry.
    """
    with parsed(f"{source}/{name}"), zipfile.ZipFile(Path(directory, name)) as archive:
        for each in archive.infolist():
            if each.compress_type != zipfile.ZIP_STORED:
                raise ValueError(f"its entry {each.filename!r} is compressed")
        yield archive
