"""A feed as the chief of a ``ParameterServerStrategy`` sees it: the rows stay on the workers."""

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import pyarrow as pa

from tensorflowonspark.declarations import takes
from tensorflowonspark.errors import FeedError
from tensorflowonspark.feed_messages import FeedBegins, FeedComplete, FeedId, FileFeed, Split, SplitManifest
from tensorflowonspark.node.feed.feed import Feed, describe_rows
from tensorflowonspark.node.feed.plan import shares_of
from tensorflowonspark.node.feed.selection import FeatureOptions, Selection, check_shuffle
from tensorflowonspark.node.feed.source import Source
from tensorflowonspark.run_manifest import Record

if TYPE_CHECKING:
    import tensorflow as tf
    from typing_extensions import Unpack

    from tensorflowonspark.keywords import FeatureKeywords


class CoordinatedFeed(Feed):
    """The rows of one ``cluster.train(df)``, or of files, on all workers together: a `Feed` without rows of its own.

    A step gets them by `per_worker`; ``dataset`` and ``batches`` are a `FeedError` here.

    Parameters
    ----------
    complete : FeedBegins or FeedComplete
        The feed's rows and columns.
    passes : callable
        Returns the number of passes over a split of a feed that all workers have ended.
    split : Split
        The split of the feed.
    source : Source, optional
        The files that the workers read, in the place of rows that they were fed.

    Attributes
    ----------
    validation : CoordinatedFeed or None
        The rows that came with ``cluster.train(..., validation=...)``.

    Examples
    --------
    Each row once in each of three epochs, over all workers together::

        feed = ctx.feed()
        dataset = coordinator.create_per_worker_dataset(feed.per_worker(64))
        for epoch in range(3):
            rows = iter(dataset)
            while feed.passes_ended <= epoch:
                for _ in range(100):
                    coordinator.schedule(step, args=(rows,))
                coordinator.join()

    ``step`` takes a batch by ``rows.get_next_as_optional()``: a worker may be out of rows while others have some.
    """

    def __init__(
        self,
        complete: FeedBegins | FeedComplete,
        passes: Callable[[FeedId, Split], int],
        split: Split = Split.TRAIN,
        source: Source | None = None,
    ) -> None:
        self._feed = complete.feed
        self._source = source
        self._count_passes = passes
        self._split = split
        self._seed: int | None = None  # of the order of the rows that a program has asked for last
        self._streams = isinstance(complete, FeedBegins) and split is Split.TRAIN
        manifest = complete.train if split is Split.TRAIN else complete.validation
        self._manifest: SplitManifest = manifest or SplitManifest({})
        validates = split is Split.TRAIN and complete.validation is not None
        self.validation = CoordinatedFeed(complete, passes, Split.VALIDATION) if validates else None

    @property
    def rows(self) -> int:
        """Number of rows of this node: none."""
        return 0

    @property
    def total_rows(self) -> int | None:
        """Number of rows of all workers together; None for a stream, and for TFRecord files."""
        return None if self._is_uncounted else sum(self._manifest.rows.values())

    @property
    def _is_uncounted(self) -> bool:
        return self._streams or not self._manifest.rows

    @property
    def columns(self) -> list[str]:
        """Names of the columns; a field of a struct is a column named ``struct.field``."""
        schema = self._manifest.schema
        return list(pa.ipc.read_schema(pa.py_buffer(schema)).names) if schema else []

    @property
    def passes_ended(self) -> int:
        """Number of iterators that every surviving worker has exhausted.

        A worker's iterator ends when a step requests a batch after the last one, so that all steps with rows have been
        taken. This does not hold if the program appends a transformation that reads ahead, such as ``prefetch``.
        """
        return self._count_passes(self._feed, self._split)

    def steps(self, batch_size: int) -> int | None:
        """Return the number of batches of all workers in an epoch.

        Parameters
        ----------
        batch_size : int
            Rows of one worker's batch.

        Returns
        -------
        int or None
            None for a stream, and for TFRecord files, whose number of batches is unknown.

        Examples
        --------
        >>> coordinated.total_rows, coordinated.steps(batch_size=4)
        (6, 2)
        """
        if self._is_uncounted:
            return None
        return sum(-(-rows // batch_size) for rows in self._manifest.rows.values())

    @takes(FeatureOptions)
    def per_worker(
        self,
        batch_size: int,
        *,
        epochs: int | None = 1,
        shuffle: bool = True,
        seed: int = 0,
        **options: "Unpack[FeatureKeywords]",
    ) -> Callable[..., "tf.data.Dataset"]:
        """Return a function that creates, on each worker, the dataset of the rows that this worker was fed.

        Pass it to ``ClusterCoordinator.create_per_worker_dataset``, or to the ``fit`` of tf_keras in a
        ``DatasetCreator``. The rows of a lost worker that it had not yet trained on are lost.

        Batches are not padded, with one exception: a worker that waits for rows of a stream while others have some
        receives a batch of weight zero after a second, so that a coordinator that waits for all its steps continues.

        Parameters
        ----------
        batch_size : int
            Rows of one worker's batch.
        epochs : int or None
            Number of passes of an iterator over the rows, each in another order; None for an endless iterator, as
            ``fit`` needs. A stream is read once, by one iterator.
        shuffle, seed
            As for `Feed.dataset`.
        **options
            As for `Feed.dataset`.

        Returns
        -------
        callable
            Of an optional input context; returns a ``tf.data.Dataset`` with the elements of `Feed.dataset`.

        Raises
        ------
        FeedError
            If a column does not exist, or its values do not fit; the error names the row.
        SpecError
            If `batch_size` is below 1.

        Examples
        --------
        The elements of a worker's dataset, as the coordinator sees them:

        >>> create = coordinated.per_worker(4, features="x", label="label")
        >>> [spec.shape.as_list() for spec in create().element_spec]
        [[None, 2], [None], [None]]
        """
        if not self._manifest.schema:
            raise FeedError("the data has no rows: there is nothing to train on")
        selection = Selection(self._manifest, FeatureOptions(**options))
        self._seed = seed if check_shuffle(shuffle) else None
        request = {
            "feed": self._feed.number if isinstance(self._feed, FileFeed) else self._feed,
            "source": self._source and self._source.to_json(),
            "split": self._split.value,
            "batch_size": shares_of(batch_size, 1, 0).most,
            "epochs": 1 if self._streams else epochs,
            "seed": self._seed,
            "options": options,
        }
        text = json.dumps(request, default=_to_json)
        from tensorflowonspark.node.ps.remote_dataset import remote_dataset

        return lambda _context=None: remote_dataset(text, selection)

    def _describe(self, workers: int) -> Record:  # noqa: ARG002 - of all
        return describe_rows(self._manifest, self.total_rows, self._seed)

    @property
    def _share(self) -> NoReturn:  # type: ignore[override]
        raise FeedError("the chief has no rows of its own, the workers have them: use ctx.feed().per_worker")


def _to_json(value: Any) -> Any:
    """Return a JSON-serialisable form of a NumPy dtype or scalar."""
    if isinstance(value, np.generic):
        return value.item()
    try:
        return np.dtype(value).name
    except TypeError:
        raise FeedError(f"{value!r} can't be sent to the workers: use numbers, strings and names of dtypes") from None
