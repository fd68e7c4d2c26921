"""Models that workers save to a path: each file there is whole, and of one worker.

A worker can't know whether the others save too, or where: a program may save on one worker, each may have a path of its
own, and the disks may be those of hosts. So nobody waits. Each worker writes in a directory of its own beside the path,
and then moves its files to their places, which replaces each as a whole. The last one stays, as if the workers had
saved one after another; of those that save at the same time, the chief's.

Where files can't be changed in their midst (`storage.takes_random_writes`), the directory is one of this machine.
"""

import inspect
import logging
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from tensorflowonspark import storage
from tensorflowonspark.keras.hooks import wrap
from tensorflowonspark.keras.repairs import SAVES
from tensorflowonspark.keras.workers import roles

_log = logging.getLogger(__name__)
_FUNCTIONS = {
    "keras": SAVES,
    "tensorflow": ("saved_model.save",),
    "tf_keras.src.saving.saving_api": ("save_model", "save_weights"),
}
_OPENED_FIRST = ("checkpoint", "saved_model.pb")  # what readers open first is moved last
_began = time.time()
_own: dict[Path, tuple[float, ...]] = {}  # when this process wrote the files of a path
_logged: set[Path] = set()  # paths with a line in the log


def save_whole(module: ModuleType) -> None:
    """Have the workers of a node move what they save into its place (called after the import of a saving module)."""

    def save(wrapped: Any, _: Any, /, *args: Any, **kwargs: Any) -> Any:
        bound = inspect.signature(wrapped).bind(*args, **kwargs).arguments
        name = "export_dir" if "export_dir" in bound else "filepath"
        path = bound.get(name)
        if not isinstance(path, (str, os.PathLike)) or "://" in os.fspath(path) or not bound.get("overwrite", True):
            return wrapped(*args, **kwargs)  # an open file, a file system of objects, or a question to the user
        own, workers = roles()
        target = Path(os.path.realpath(path))
        beside = storage.takes_random_writes(target.parent)
        if len(workers) < 2 and beside:  # noqa: PLR2004 - nobody else
            return wrapped(*args, **kwargs)
        options = {**bound.pop("kwargs", {}), **bound}
        worker = "" if own in workers[:1] or not workers else own
        return _moved(target, worker, beside, lambda place: wrapped(**{**options, name: place}))

    for each in _FUNCTIONS[module.__name__]:
        wrap(module, each, save)


def _moved(path: Path, worker: str, beside: bool, write: Callable[[str], Any]) -> Any:
    """Write to a path of this worker's own, `beside` the places of the files or elsewhere, and move them there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    before = _times(path)
    with tempfile.TemporaryDirectory(prefix=".tfos-", dir=path.parent if beside else None) as own:
        ahead = Path(own).stat().st_mtime - time.time()  # the file server's clock, of this one
        result = write(str(Path(own, path.name)))
        now = _times(path)
        is_new = max(now, default=0.0) >= _began + ahead
        if worker and now != _own.get(path, ()) and is_new and path not in _logged:
            _logged.add(path)
            _log.warning(
                "%s and another worker save to %s: the last one's stays, or the chief's if they save at the same time. "
                "Save on one worker (if ctx.is_chief), or call ctx.export on all",
                worker,
                path,
            )
        if not worker or now == before:
            _move(Path(own), path.parent)
            _own[path] = _times(path)
    return result


def _move(source: Path, target: Path) -> None:
    """Move all files to another directory, those last that readers open first."""
    for each in sorted(source.rglob("*"), key=lambda each: (each.name in _OPENED_FIRST, each)):
        place = target / each.relative_to(source)
        if each.is_dir():
            place.mkdir(exist_ok=True)
        elif each.stat().st_dev == target.stat().st_dev:
            each.replace(place)
        else:
            storage.publish(str(place), partial(os.symlink, each))


def _times(path: Path) -> tuple[float, ...]:
    """Return when the files that show a whole model were written: of a file, a SavedModel, or a checkpoint."""
    shown = (path, path / "saved_model.pb", path.with_name(f"{path.name}.index"))
    return tuple(each.stat().st_mtime for each in shown if each.is_file())
