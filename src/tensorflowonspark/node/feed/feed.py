"""A feed as the user's program sees it: this worker's share of the rows of one ``cluster.train``."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from tensorflowonspark.declarations import takes
from tensorflowonspark.errors import FeedError, SpecError
from tensorflowonspark.feed_messages import SplitManifest
from tensorflowonspark.node.feed.batches import Batches
from tensorflowonspark.node.feed.bucketing import BucketedSelection
from tensorflowonspark.node.feed.pace import Measure
from tensorflowonspark.node.feed.packing import PackedSelection
from tensorflowonspark.node.feed.passes import Passes
from tensorflowonspark.node.feed.row_windows import WindowSelection
from tensorflowonspark.node.feed.selection import ComposedOptions, DatasetOptions, FeatureOptions, Selection
from tensorflowonspark.node.feed.share import Share
from tensorflowonspark.run_manifest import Record

if TYPE_CHECKING:
    import tensorflow as tf
    from typing_extensions import Unpack

    from tensorflowonspark.keywords import ComposedKeywords, DatasetKeywords

__all__ = ["Feed"]

# By the option that asks for them.
_COMPOSED: dict[str, Callable[[SplitManifest, ComposedOptions], Selection]] = {
    "pack": PackedSelection,
    "bucket": BucketedSelection,
    "window": WindowSelection,
}


def describe_rows(manifest: SplitManifest, rows: int | None, seed: int | None) -> Record:
    """Return what a run's manifest has of the rows of a feed: so many, in an order of this seed."""
    schema = pa.ipc.read_schema(pa.py_buffer(manifest.schema)) if manifest.schema else ()
    checksum = f"{manifest.fingerprint:x}" if manifest.fingerprint else None
    columns = {each.name: str(each.type) for each in schema}
    own_seed = None if seed is None else int(seed)  # a program may give one of NumPy, which JSON does not have
    mixed = {} if manifest.mixture is None or rows is None else {"sources": manifest.mixture.rows_of_sources(rows)}
    return {"rows": rows, "checksum": checksum, "columns": columns, "seed": own_seed, **mixed}


class Feed:
    """The rows of one ``cluster.train(df)``, or of files, on this worker.

    The methods of a `Context` that return rows return this, or on the chief of a ``ParameterServerStrategy`` a
    `CoordinatedFeed`, which is one without rows of its own.

    Parameters
    ----------
    share : Share
        This worker's rows, and what all workers have.
    validation : Feed, optional
        The validation rows.
    measure : callable, optional
        Measures the passes (`pace.Measure`).

    Attributes
    ----------
    validation : Feed or None
        The rows that came with ``cluster.train(..., validation=...)``.

    Examples
    --------
    >>> feed = ctx.feed()
    >>> feed.columns, feed.rows, feed.total_rows, feed.steps(batch_size=4)
    (['x', 'id', 'label'], 6, 6, 2)
    """

    def __init__(self, share: Share, validation: "Feed | None" = None, measure: Measure | None = None) -> None:
        self._share = share
        self._measure = measure
        self.validation = validation
        if validation is not None:
            validation._share.is_training = False

    @property
    def rows(self) -> int | None:
        """Number of rows of this worker; None for a stream, and as long as rows arrive."""
        counts = self._share.counts
        return None if counts is None else counts[self._share.index]

    @property
    def total_rows(self) -> int | None:
        """Number of rows of all workers together; None for a stream, and as long as rows arrive."""
        counts = self._share.counts
        return None if counts is None else sum(counts)

    @property
    def columns(self) -> list[str]:
        """Names of the columns; a field of a struct is a column named ``struct.field``."""
        schema, mixture = self._share.manifest.schema, self._share.manifest.mixture
        names = pa.ipc.read_schema(pa.py_buffer(schema)).names if schema else []
        return [name for name in names if mixture is None or name != mixture.column]

    def steps(self, batch_size: int) -> int | None:
        """Return the number of steps in an epoch, which is the same on all workers.

        Parameters
        ----------
        batch_size : int
            Rows of one step over all workers together.

        Returns
        -------
        int or None
            None for a stream, whose number of steps is unknown, and as long as rows arrive.

        Raises
        ------
        SpecError
            If `batch_size` is less than the number of workers.

        Examples
        --------
        >>> ctx.feed().steps(batch_size=4)
        2
        """
        counts = self._share.counts
        return None if counts is None else self._share.plan(counts, batch_size).steps

    @takes(DatasetOptions)
    def dataset(self, batch_size: int, **options: "Unpack[DatasetKeywords]") -> "tf.data.Dataset":
        """Return this worker's share as a ``tf.data.Dataset``; each pass over it is one epoch.

        All workers take the same number of steps, each row comes exactly once per epoch, and the padding rows of a
        worker's last batches have a weight of zero.

        Parameters
        ----------
        batch_size : int
            Rows of one step over all workers together, as in ``fit`` under a ``tf.distribute`` strategy.
        **options
            Those of `DatasetOptions`.

        Returns
        -------
        tf.data.Dataset
            With a label, of ``(x, y, sample_weight)``: batches of shape ``(rows, *shape of a value)`` and
            weights of shape ``(rows,)``, or ``(rows, *shape of a weight)``. Without a label, of dicts by column name
            with one more key, ``"sample_weight"``. Dates are int32 (days since 1970), timestamps and intervals int64
            (microseconds), times of day int64 (nanoseconds), decimals and the vectors of Spark ML float64.

        Raises
        ------
        FeedError
            If a column does not exist, or its values do not fit; the error names the row.
        SpecError
            If `batch_size` is less than the number of workers, or `first_step` is negative.

        Examples
        --------
        >>> for batch in ctx.feed().dataset(4, features=["x", "id"], shuffle=False):
        ...     print(batch["x"].shape, batch["id"].numpy(), batch["sample_weight"].numpy())
        (4, 2) [0 1 2 3] [1. 1. 1. 1.]
        (2, 2) [4 5] [1. 1.]
        """
        from tensorflowonspark.node.feed.dataset import make_dataset

        return make_dataset(self._passes(batch_size, options), self._measure)

    @takes(DatasetOptions)
    def batches(self, batch_size: int, **options: "Unpack[DatasetKeywords]") -> Batches:
        """Return batches of NumPy arrays, without TensorFlow; each iteration over them is one epoch.

        For custom training loops, with JAX, PyTorch or scikit-learn's ``partial_fit``.

        Parameters
        ----------
        batch_size : int
            Rows of one step over all workers together.
        **options
            As for `dataset`.

        Returns
        -------
        Batches
            An iterable that can be iterated again for the next epoch, with the elements of `dataset` as arrays. A
            ragged column is an object array with an array for each row.

        Raises
        ------
        FeedError, SpecError
            As for `dataset`.

        Examples
        --------
        >>> batches = ctx.feed().batches(4, shuffle=False)
        >>> for epoch in range(2):
        ...     for x, y, sample_weight in batches:
        ...         print(epoch, x["id"], y)
        0 [0 1 2 3] [0. 1. 0. 1.]
        0 [4 5] [0. 1.]
        1 [0 1 2 3] [0. 1. 0. 1.]
        1 [4 5] [0. 1.]
        """
        return Batches(self._passes(batch_size, options), self._measure)

    @takes(ComposedOptions)
    def validation_dataset(self, batch_size: int, **options: "Unpack[ComposedKeywords]") -> "tf.data.Dataset":
        """Return this worker's share of the validation rows, in their own order.

        Parameters
        ----------
        batch_size : int
            Rows of one step over all workers together.
        **options
            As for `dataset`.

        Returns
        -------
        tf.data.Dataset
            Elements as of `dataset`.

        Raises
        ------
        FeedError
            If the feed has no validation rows, or as for `dataset`.

        Examples
        --------
        >>> for batch in ctx.feed().validation_dataset(4, features="id"):
        ...     print(batch["id"].numpy())
        [0 1]
        """
        return self._validation().dataset(batch_size, **options, shuffle=False)

    @takes(ComposedOptions)
    def validation_batches(self, batch_size: int, **options: "Unpack[ComposedKeywords]") -> Batches:
        """Return batches of NumPy arrays of this worker's share of the validation rows, in their own order.

        Parameters
        ----------
        batch_size : int
            Rows of one step over all workers together.
        **options
            As for `dataset`.

        Returns
        -------
        Batches
            As of `batches`.

        Raises
        ------
        FeedError
            If the feed has no validation rows, or as for `dataset`.

        Examples
        --------
        >>> [batch["id"].tolist() for batch in ctx.feed().validation_batches(4, features=["id"])]
        [[0, 1]]
        """
        return self._validation().batches(batch_size, **options, shuffle=False)

    def _describe(self, workers: int) -> Record:
        """Return what a manifest has of the rows at present; their number only if it is that of so many workers."""
        share, latest = self._share, self._share.latest
        rows = self.total_rows if len(share.numbers) == workers else None
        return describe_rows(
            share.manifest_of_all or share.manifest, rows, None if latest is None else latest.order.seed
        )

    def _validation(self) -> "Feed":
        if self.validation is None:
            raise FeedError("the feed has no validation rows: pass them with cluster.train(df, validation=...)")
        return self.validation

    def partitions(self) -> Iterator[Iterator[pa.RecordBatch]]:
        """Yield the Arrow batches of one partition of a stream after the other, as Spark sent them.

        Each row comes to one worker, once; workers take no steps together. Take a partition's batches before the next.

        Returns
        -------
        iterator of iterators of pa.RecordBatch
            One for each partition.

        Raises
        ------
        FeedError
            If the rows are cached (``cluster.train`` with a `cache`), or were read before.

        Examples
        --------
        In the function of a cluster that is fed by ``cluster.train(df, cache=None)``::

            for partition in ctx.feed().partitions():
                table = pa.Table.from_batches(partition)
        """
        if self._share.is_kept or self._share.parts is None:
            raise FeedError("partitions() is for rows that come once: feed them with cache=None, or use batches()")
        return self._noted(self._share.parts.partitions())

    def _passes(self, batch_size: int, options: "DatasetKeywords") -> Passes:
        wanted = DatasetOptions(**options)
        selection = self._select(wanted)
        return self._share.passes(selection, batch_size, wanted.order_seed, wanted.first_step, wanted.on_epoch_end)

    def _select(self, options: FeatureOptions) -> Selection:
        if not self._share.manifest.schema:
            raise FeedError("the data has no rows: there is nothing to train on")
        if isinstance(options, ComposedOptions):
            wanted = [name for name in _COMPOSED if getattr(options, name) is not None]
            if len(wanted) > 1:
                raise SpecError(f"{' and '.join(wanted)} both say what a row is: give one of them")
            if wanted:
                return _COMPOSED[wanted[0]](self._share.manifest, options)
        return Selection(self._share.manifest, options)

    def _noted(self, partitions: Iterator[Iterator[pa.RecordBatch]]) -> Iterator[Iterator[pa.RecordBatch]]:
        for batches in partitions:
            self._share.observer.note_read()
            yield batches
