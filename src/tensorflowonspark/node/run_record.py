"""The manifests that the chief writes: what the driver knows of the run, the versions here, and the rows that it read.

Each that is written is sent to the driver as well, for the report and MLflow.
"""

import logging
import platform
import sys
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from tensorflowonspark.feed_messages import FeedId
from tensorflowonspark.keras.hooks import keras_backend
from tensorflowonspark.messages import RunDescribed
from tensorflowonspark.node.feed.feed import Feed
from tensorflowonspark.node.setup import NodeSetup
from tensorflowonspark.run_manifest import FILE, Record, differences, later_version, parse_manifest, write_manifest

_log = logging.getLogger(__name__)
_LIBRARIES = ("numpy", "pyarrow", "tensorflow", "keras", "tf_keras", "jax", "torch")  # as far as they are imported
_SEEDS = "keras.src.utils.rng_utils"
_FEEDS = 100  # that are over: the last ones


class RunRecord:
    """What a node knows of its run, which only the chief's program writes."""

    def __init__(self, setup: NodeSetup, send: Callable[[RunDescribed], object]) -> None:
        self._setup = setup
        self._send = send
        self._is_chief = setup.role == setup.spec.chief_role
        self._over: dict[str, Record] = {}  # feeds that are over, by number
        self._feeds: dict[str, tuple[Record, Feed]] = {}  # the others, by number, or by the call that reads files

    def note_feed(self, feed: Feed, source: str, of_feed: Record, number: FeedId | None = None) -> None:
        """Note rows that the program receives; of those from Spark, which have numbers, the ones before are over."""
        if not self._is_chief:
            return
        if number is not None:
            over = {name: self._feeds.pop(name) for name in list(self._feeds) if name.isdigit()}
            done = {name: self._describe(*each) for name, each in over.items()}
            self._over = dict([*self._over.items(), *done.items()][-_FEEDS:])
        name = str(number) if number is not None else source
        self._feeds[f"{name} {len(self._feeds)}" if name in self._feeds else name] = {"source": source, **of_feed}, feed
        self.manifest()

    def _describe(self, of_feed: Record, feed: Feed) -> Record:
        workers, validation = len(self._setup.spec.fed), feed.validation
        described = None if validation is None else validation._describe(workers)
        return {**of_feed, **feed._describe(workers), "validation": described}

    def manifest(self, **parts: Any) -> Record:
        """Return the manifest of this moment, and send it to the driver."""
        config, spec = self._setup.config, self._setup.spec
        known = {name: getattr(sys.modules.get(name), "__version__", None) for name in _LIBRARIES}
        versions = {name: str(version) for name, version in known.items() if version is not None}
        seed = getattr(sys.modules.get(_SEEDS), "get_random_seed", lambda: None)
        found = {
            **config.manifest,
            "written": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "versions": {**config.manifest.get("versions", {}), "python": platform.python_version(), **versions},
            "backend": keras_backend() if "keras" in versions else "tensorflow" if "tensorflow" in versions else None,
            "workers": len(spec.trainers),
            "nodes": str(spec),
            "restarts": config.attempt,
            "seed": seed(),
            "data": {**self._over, **{name: self._describe(*each) for name, each in self._feeds.items()}},
            **parts,
        }
        if self._is_chief:
            self._send(RunDescribed(found))
        return found

    def write(self, path: str, **parts: Any) -> None:
        """Write the manifest to a file of this machine."""
        write_manifest(self.manifest(**parts), path)

    def compare(self, directory: str, step: int) -> None:
        """Warn if this run is another one than that which wrote a checkpoint, whose files are in a directory."""
        path, config = Path(directory, FILE), self._setup.config
        if not self._is_chief or not path.exists():  # of an earlier version of this package
            return
        try:
            before = parse_manifest(path.read_bytes())
        except ValueError as error:
            _log.warning("resumed from step %d, whose manifest can't be read: %s", step, error)
            return
        if config.attempt:  # which is not fed again what was complete
            was = {name: each for name, each in before.get("data", {}).items() if name.isdigit()}
            self._over = {**{name: each for name, each in was.items() if int(name) < config.first_feed}, **self._over}
        changes = list(differences(before, self.manifest()))
        if later := later_version(before):
            changes.append(later)
        if changes:
            _log.warning("resumed from step %d, and since it was written: %s", step, "; ".join(changes))
