"""What the user's function is given: where it is, and the rows it was fed."""

import time
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import PurePosixPath
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from tensorflowonspark import storage
from tensorflowonspark.errors import FeedError
from tensorflowonspark.messages import FeedWanted, Member, Progress, Serving
from tensorflowonspark.node.feed import Feed
from tensorflowonspark.node.link import Link
from tensorflowonspark.node.receive import Receiver
from tensorflowonspark.node.setup import NodeSetup
from tensorflowonspark.spec import ClusterSpec, Job, Role

if TYPE_CHECKING:
    import tensorflow as tf

__all__ = ["Context"]

_PROGRESS_SECONDS = 0.2  # between two reports: often enough for a bar, too seldom to cost anything


class Context:
    """A node, as the function that runs in it sees it.

    Attributes
    ----------
    role : Role
        Job and index, as in ``worker:1``.
    spec : ClusterSpec
        How many nodes of each job there are.
    cluster : dict
        ``host:port`` of each node's TensorFlow server, by job, as in ``TF_CONFIG``.
    host : str
        The address of this node's executor.
    """

    def __init__(self, setup: NodeSetup, members: tuple[Member, ...], link: Link, receiver: Receiver | None) -> None:
        self.role: Role = setup.role
        self.spec: ClusterSpec = setup.spec
        self.host: str = setup.host
        self.cluster: dict[str, list[str]] = {}
        for member in members:
            self.cluster.setdefault(str(member.role.job), []).append(member.address)
        self._number = setup.number
        self._scratch = setup.local_directory
        self._link = link
        self._receiver = receiver
        self._current: Feed | None = None
        self._asked = 0
        self._reported = 0.0

    @property
    def job(self) -> str:
        """The node's job: ``chief``, ``worker``, ``ps`` or ``evaluator``."""
        return str(self.role.job)

    @property
    def index(self) -> int:
        """The node's number within its job."""
        return self.role.index

    @property
    def num_workers(self) -> int:
        """How many nodes train: workers and chief."""
        return len(self.spec.trainers)

    @property
    def is_chief(self) -> bool:
        """Whether this node has the chief's duties: it is the chief, or worker 0 where there is none."""
        return self.role == self.spec.chief_role

    def feeds(self) -> Iterator[Feed]:
        """Yield one feed after the other, for each ``cluster.train(df)``, until the cluster shuts down."""
        while True:
            feed = self._next_feed()
            if feed is None:
                return
            yield feed

    def feed(self) -> Feed:
        """Return the current feed; wait for the first if there was none yet.

        Raises
        ------
        FeedError
            If the cluster shuts down without having fed this node.
        """
        if self._current is None and self._next_feed() is None:
            raise FeedError(
                "the program waits for rows, but the cluster was shut down without cluster.train(df): call it inside "
                "the with block, or read the data in the program itself"
            )
        assert self._current is not None
        return self._current

    def dataset(
        self,
        batch_size: int,
        *,
        features: str | Sequence[str] | None = None,
        label: str | None = None,
        weight: str | None = None,
        shuffle: bool = True,
        seed: int = 0,
    ) -> "tf.data.Dataset":
        """Return the current feed as a ``tf.data.Dataset``: `Feed.dataset` says all about it."""
        return self.feed().dataset(
            batch_size, features=features, label=label, weight=weight, shuffle=shuffle, seed=seed
        )

    def export(self, model: Any, path: str) -> None:
        """Write a trained model to a directory or file, on any file system; the chief does, the others go on.

        Call it on all workers: to save a model that is not of Keras 3, TensorFlow reads some variables from all of
        them together.

        Parameters
        ----------
        model : keras.Model, tf_keras.Model or tf.Module
            What to write.
        path : str
            A path, or a URL of any file system that fsspec knows. With the ending ``.keras`` or ``.h5`` it becomes
            one file in Keras's own format, and else a SavedModel's directory. What stood there is replaced, when the
            new model is complete.
        """
        if self.is_chief:
            storage.publish(path, lambda local: _save(model, local), self._scratch)
        elif not _is_keras_3(model):
            with TemporaryDirectory(prefix="tfos-", dir=self._scratch) as unused:
                _save(model, str(PurePosixPath(unused) / PurePosixPath(path).name))

    def join_server(self) -> None:
        """Serve this node's part to a ``ParameterServerStrategy``, until the cluster shuts down.

        For the ``ps`` and ``worker`` nodes of asynchronous training; the chief runs the coordinator.
        """
        import tensorflow as tf

        self._link.send(Serving())
        tf.distribute.Server(tf.train.ClusterSpec(self._training_cluster()), self.job, self.index).join()

    def _training_cluster(self) -> dict[str, list[str]]:
        return {job: addresses for job, addresses in self.cluster.items() if job != Job.EVALUATOR.value}

    def _next_feed(self) -> Feed | None:
        if self._receiver is None:
            raise FeedError(f"{self.role} is not fed: rows go to {', '.join(map(str, self.spec.fed))}")
        if self._current is not None:
            self._receiver.cache.drop(self._asked - 1)
        number, self._asked = self._asked, self._asked + 1
        self._link.send(FeedWanted(number))
        seal = self._link.wait_for_seal(number)
        if seal is None:
            return None
        numbers = [self.spec.roles.index(role) for role in self.spec.fed]
        self._current = Feed(
            seal, self._receiver.cache.shard(number, seal.parts), numbers, self._number, self._report_progress
        )
        return self._current

    def _report_progress(self, progress: Progress) -> None:
        now = time.monotonic()
        if now - self._reported > _PROGRESS_SECONDS or progress.step == progress.steps:
            self._reported = now
            self._link.send(progress)


def _is_keras_3(model: Any) -> bool:
    return any(kind.__module__.split(".")[0] == "keras" for kind in type(model).__mro__)


def _save(model: Any, path: str) -> None:
    if path.endswith((".keras", ".h5")):
        model.save(path)
    elif hasattr(model, "export"):
        with redirect_stdout(StringIO()):  # it tells of the scratch directory, which is no one's concern
            model.export(path)
    else:
        import tensorflow as tf

        tf.saved_model.save(model, path)
