"""A feed as the chief of a ``ParameterServerStrategy`` sees it: the rows stay on the workers."""

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tensorflowonspark.errors import FeedError
from tensorflowonspark.feed_messages import FeedComplete, Split, SplitManifest
from tensorflowonspark.node.feed.epochs import batch_shares
from tensorflowonspark.node.feed.selection import Options, Selection

if TYPE_CHECKING:
    import tensorflow as tf

__all__ = ["CoordinatedFeed"]


class CoordinatedFeed:
    """The rows of one ``cluster.train(df)``, on all workers together.

    Parameters
    ----------
    seal : Seal
        What was fed.
    passes : callable
        Returns how many passes over a split of a feed all workers have ended.
    split : Split
        Which rows of it.

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

    def __init__(self, seal: FeedComplete, passes: Callable[[int, Split], int], split: Split = Split.TRAIN) -> None:
        self._feed = seal.feed
        self._passes = passes
        self._split = split
        self._streams = seal.streams and split is Split.TRAIN
        contents = seal.train if split is Split.TRAIN else seal.validation
        self._contents: SplitManifest = contents or SplitManifest({})
        more = split is Split.TRAIN and seal.validation is not None
        self.validation = CoordinatedFeed(seal, passes, Split.VALIDATION) if more else None

    @property
    def total_rows(self) -> int | None:
        """How many rows all workers have together; None for a stream."""
        return None if self._streams else sum(self._contents.rows.values())

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        schema = self._contents.schema
        return list(pa.ipc.read_schema(pa.py_buffer(schema)).names) if schema else []

    @property
    def passes_ended(self) -> int:
        """How many iterators every worker has come to the end of, but for workers that died.

        A worker's iterator has ended when a step asked it for more than there is: the steps before have been made. That
        is so unless the program itself adds to the data set what reads ahead, as ``prefetch`` does.
        """
        return self._passes(self._feed, self._split)

    def steps(self, batch_size: int) -> int | None:
        """Return how many batches all workers have in an epoch, for so many rows in each; None for a stream."""
        if self._streams:
            return None
        return sum(-(-rows // batch_size) for rows in self._contents.rows.values())

    def per_worker(
        self, batch_size: int, *, epochs: int | None = 1, shuffle: bool = True, seed: int = 0, **options: Any
    ) -> Callable[..., "tf.data.Dataset"]:
        """Return what makes, on each worker, the data set of the rows that this worker was fed.

        Give it to ``ClusterCoordinator.create_per_worker_dataset``, or to the ``fit`` of tf_keras in a
        ``DatasetCreator``. A worker that dies takes the rows that it had not yet trained on with it.

        No batch is filled up, with one exception: where a worker waits for rows of a stream while others have some,
        it gets rows of weight zero after a second, so that a coordinator which waits for all its steps goes on.

        Parameters
        ----------
        batch_size : int
            Rows of one worker's batch.
        epochs : int or None
            How often an iterator passes over the rows; None for ever, as ``fit`` needs it. In each epoch their order
            is another. A stream is passed over once, by one iterator.
        shuffle, seed
            As for `Feed.dataset`.
        **options
            ``features``, ``label``, ``sample_weight``, ``shapes``, ``dtypes`` and ``fill``, as for `Feed.dataset`.

        Returns
        -------
        callable
            Of an optional input context; returns a ``tf.data.Dataset`` of the elements that `Feed.dataset` has.

        Raises
        ------
        FeedError
            If a column does not exist, or its values do not fit; it names the row.
        """
        if not self._contents.schema:
            raise FeedError("the DataFrame that was fed has no rows: there is nothing to train on")
        selection = Selection(self._contents, Options(**options))  # type: ignore[typeddict-item]
        request = {
            "feed": self._feed,
            "split": self._split.value,
            "batch_size": batch_shares(batch_size, 1)[0],
            "epochs": 1 if self._streams else epochs,
            "seed": seed if shuffle else None,
            "options": options,
        }
        text = json.dumps(request, default=_plain)
        from tensorflowonspark.node.ps.remote_dataset import remote_dataset

        return lambda _context=None: remote_dataset(text, selection)


def _plain(value: Any) -> Any:
    """Return what stands in JSON, in which the workers are asked, for a dtype or a number of numpy's."""
    if isinstance(value, np.generic):
        return value.item()
    try:
        return np.dtype(value).name
    except TypeError:
        raise FeedError(f"{value!r} can't be sent to the workers: use numbers, strings and names of dtypes") from None
