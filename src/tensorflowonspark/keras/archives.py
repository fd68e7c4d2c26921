"""Archives of arrays in checkpoints: a zip file of JSON, and of an entry for each array, by its number.

Whoever can write to the directory of a checkpoint may have written them: what is wrong in one is an error.
"""

import json
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from tensorflowonspark.errors import CheckpointError, ClusterError


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

    An entry that is compressed, so that a few bytes may stand for any number, is a `CheckpointError`; so is one that
    the block can't read. `source` is the checkpoint's path, for these errors.
    """
    with parsed(f"{source}/{name}"), zipfile.ZipFile(Path(directory, name)) as archive:
        for each in archive.infolist():
            if each.compress_type != zipfile.ZIP_STORED:
                raise ValueError(f"its entry {each.filename!r} is compressed")
        yield archive


def write_archive(
    path: Path, name: str, described: Any, arrays: Iterable[Any], write: Callable[[IO[bytes], Any], object]
) -> None:
    """Write an archive, one array after the other, which may be made one by one.

    The entry `name` has `described` as JSON; `write` writes an array to the file of its entry.
    """
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        archive.writestr(name, json.dumps(described))
        for number, each in enumerate(arrays):
            with archive.open(str(number), "w", force_zip64=True) as entry:
                write(entry, each)
