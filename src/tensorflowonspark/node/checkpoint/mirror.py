"""A local directory whose files are copied to any file system, for writers that need a local path."""

import os
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from tensorflowonspark import storage
from tensorflowonspark.errors import SpecError
from tensorflowonspark.node.checkpoint.store import CheckpointStore, fetch_first


class Mirror:
    """A local directory and its copy. Files are copied one by one, each as a whole; a directory like a checkpoint.

    The mirrored files are in `scratch`, and are removed when this process ends.

    Examples
    --------
    >>> mirror = Mirror("memory://models/mirrored", None)
    >>> note = mirror.path("note.txt")
    >>> _ = Path(note).write_text("best so far")
    >>> mirror.update()
    >>> again = Mirror("memory://models/mirrored", None)
    >>> Path(again.path("note.txt")).read_text()
    'best so far'
    """

    def __init__(self, directory: str, scratch: str | None) -> None:
        self._directory = directory.rstrip("/")
        self._scratch = scratch
        self._local = TemporaryDirectory(prefix="tfos-", dir=scratch)  # removed at the process's end
        self._copied: dict[str, frozenset[tuple[str, int, int]]] = {}

    def path(self, name: str) -> str:
        """Return the local path of a file or directory, after fetching what was mirrored under this name before."""
        if not name or "/" in name or name in (".", ".."):
            raise SpecError(f"path({name!r}): expected the name of a file or a directory, as in 'best.keras'")
        local = Path(self._local.name, name)
        if name not in self._copied:
            store = self._store(name)
            if fetch_first(str(local), lambda: (store, saved) if (saved := store.newest()) else None) is None:
                storage.fetch(f"{self._directory}/{name}", str(local))
            self._copied[name] = _fingerprint(local)
        return str(local)

    def update(self) -> None:
        """Copy the files that have changed, and remove those that were deleted."""
        existing = {path.name for path in Path(self._local.name).iterdir()}
        for name in sorted(existing | set(self._copied)):
            local = Path(self._local.name, name)
            current = _fingerprint(local)
            if current != self._copied.get(name, frozenset()):
                self._copy(name, local)
                self._copied[name] = current

    def _copy(self, name: str, local: Path) -> None:
        target = f"{self._directory}/{name}"
        if local.is_dir():
            self._store(name).add(str(local), 0)
        elif local.exists():
            storage.publish(target, partial(os.symlink, local), self._scratch)
        else:
            self._store(name).clear()
            storage.remove(target)

    def _store(self, name: str) -> CheckpointStore:
        return CheckpointStore(f"{self._directory}/{name}", keep=1, or_file=True)


def _fingerprint(path: Path) -> frozenset[tuple[str, int, int]]:
    """Return the name, time and size of each file, which differ after a write."""
    files = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]
    return frozenset((str(each), each.stat().st_mtime_ns, each.stat().st_size) for each in files)
