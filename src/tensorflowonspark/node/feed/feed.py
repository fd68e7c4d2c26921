"""A feed as the user's program sees it: this worker's share of the rows of one ``cluster.train``."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from numbers import Integral
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import pyarrow as pa

from tensorflowonspark.columns import Ragged
from tensorflowonspark.errors import FeedError, SpecError
from tensorflowonspark.feed_messages import SplitManifest
from tensorflowonspark.keras.feed_tracking import row_counts, state_pass
from tensorflowonspark.keras.provenance import report_read
from tensorflowonspark.messages import Progress
from tensorflowonspark.node.feed.epochs import Epochs, batch_shares, plan_epoch
from tensorflowonspark.node.feed.selection import Batch, Options, Selection, real_part
from tensorflowonspark.node.feed.shard import Shard
from tensorflowonspark.node.feed.stream import Stream

if TYPE_CHECKING:
    import tensorflow as tf

__all__ = ["Batches", "Feed"]


class Feed:
    """The rows of one ``cluster.train(df)`` on this worker.

    Parameters
    ----------
    contents : Contents
        What all workers have together.
    rows : Shard or Stream
        This worker's rows.
    numbers : sequence of int
        The node numbers of all workers that are fed, in their order.
    number : int
        This node's.
    report : callable
        Takes a `Progress` before each batch.
    validation : Feed, optional
        The rows to validate on.

    Attributes
    ----------
    validation : Feed or None
        The rows that came with ``cluster.train(..., validation=...)``.
    """

    def __init__(
        self,
        contents: SplitManifest,
        rows: Shard | Stream,
        numbers: Sequence[int],
        number: int,
        report: Callable[[Progress], None],
        validation: "Feed | None" = None,
    ) -> None:
        self._contents = contents
        self._source = rows
        self._rows = [contents.rows.get(each, 0) for each in numbers]
        self._index = list(numbers).index(number)
        if isinstance(rows, Shard) and rows.rows != contents.rows[number]:
            raise FeedError(f"this node has {rows.rows} rows of the feed, and should have {contents.rows[number]}")
        self._report = report
        self.validation = validation
        self._trained_on = True
        if validation is not None:
            validation._trained_on = False
        self._made: WeakSet[Epochs] = WeakSet()  # since the last begin_at

    @property
    def rows(self) -> int | None:
        """How many rows this worker has; None for a stream, of which that is not known."""
        return self._source.rows if isinstance(self._source, Shard) else None

    @property
    def total_rows(self) -> int | None:
        """How many rows all workers have together; None for a stream."""
        return sum(self._rows) if isinstance(self._source, Shard) else None

    @property
    def columns(self) -> list[str]:
        """The names of the columns; a field of a struct is a column named ``struct.field``."""
        schema = self._contents.schema
        return list(pa.ipc.read_schema(pa.py_buffer(schema)).names) if schema else []

    def steps(self, batch_size: int) -> int | None:
        """Return the number of steps in an epoch, the same on all workers, for so many rows per step over all.

        None for a stream: its steps are as many as all its rows need.
        """
        if isinstance(self._source, Stream):
            return None
        return plan_epoch(self._rows, batch_size, self._index).steps

    def dataset(  # noqa: PLR0913 - what the elements are, named at the call
        self,
        batch_size: int,
        *,
        features: str | Sequence[str] | None = None,
        label: str | Sequence[str] | None = None,
        weight: str | None = None,
        shapes: Mapping[str, Sequence[int | None]] | None = None,
        dtypes: Mapping[str, str] | None = None,
        fill: Mapping[str, Any] | None = None,
        shuffle: bool = True,
        seed: int = 0,
        first_step: int = 0,
        on_epoch_end: Callable[[int], None] | None = None,
    ) -> "tf.data.Dataset":
        """Return this worker's share as a ``tf.data.Dataset``; each pass over it is one epoch.

        All workers take the same number of steps, each row comes exactly once per epoch, and rows that fill up a
        worker's last batches have a weight of zero.

        Parameters
        ----------
        batch_size : int
            Rows of one step over all workers together, as in ``fit`` under a ``tf.distribute`` strategy.
        features : str or sequence of str, optional
            One column, which comes as a tensor, or several, which come as a dict by name; a struct's name stands for
            all its fields. By default the column ``features`` if there is one beside a label, or else all columns but
            label and weight.
        label : str or sequence of str, optional
            The label's column, or those of several outputs. If neither it nor `features` is given, the column
            ``label`` if there is one.
        weight : str, optional
            A column of weights.
        shapes : mapping, optional
            The shape of one row's value, by column, as in ``{"image": (28, 28, 1)}``: flat arrays, and the bytes of
            binary columns (as uint8; those in arrays only with a cast), are folded into it. ``(None,)`` makes a
            ``tf.RaggedTensor`` of arrays that differ in length. Without it all arrays of a column must have one
            length, which is its shape.
        dtypes : mapping, optional
            The dtype that is wanted, by column, as in ``{"image": "float32"}``.
        fill : mapping, optional
            What stands for a null, by column; a null array of a ragged column becomes empty. Without it a null is an
            error.
        shuffle : bool
            Whether each epoch has an order of its own: a full shuffle of this worker's rows; of a stream, of the rows
            of each partition.
        seed : int
            What the orders are drawn from.
        first_step : int
            How many steps were taken before, for a loop that goes on from a checkpoint (what ``restore`` returned, if
            each step takes one batch): the first pass is the rest of the epoch in which that was, with the order that
            the epoch has.
        on_epoch_end : callable, optional
            Called with the epoch's number, from 0, when an epoch's rows have all been handed out.

        Returns
        -------
        tf.data.Dataset
            Of ``(x, y, sample_weight)`` with a label: batches of shape ``(rows, *shape of a value)`` and a float32
            vector ``(rows,)``. Without one, of dicts by column name with one more key, ``"sample_weight"``. Dates are
            int32 (days since 1970), timestamps and intervals int64 (microseconds), times of day int64 (nanoseconds),
            decimals and the vectors of Spark ML float64.

        Raises
        ------
        FeedError
            If a column does not exist, or its values do not fit; it names the row.
        """
        from tensorflowonspark.node.feed.dataset import make_dataset

        options = Options(features=features, label=label, weight=weight, shapes=shapes, dtypes=dtypes, fill=fill)
        selection = self.select(options)
        passes = self._passes(selection, batch_size, seed if shuffle else None, first_step, on_epoch_end)
        rows = batch_shares(batch_size, len(self._rows))[self._index]
        steps = self.steps(batch_size)
        return make_dataset(passes, selection, rows, None if steps and first_step % steps else steps)

    def batches(
        self,
        batch_size: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        first_step: int = 0,
        on_epoch_end: Callable[[int], None] | None = None,
        **options: Any,
    ) -> "Batches":
        """Return batches of numpy arrays, without TensorFlow: each iteration over them is an epoch.

        For training loops of your own, with JAX, PyTorch or scikit-learn's ``partial_fit``. The elements are those of
        `dataset`, and so are all parameters; a ragged column is an object array with an array for each row. To call
        what is returned starts an epoch too, as ``tf.data.Dataset.from_generator`` does.

        Examples
        --------
        >>> def program(args, ctx):
        ...     batches = ctx.feed().batches(10, shuffle=False)
        ...     return [int(batch["id"].sum()) for _ in range(2) for batch in batches]
        >>> run(spark, program, data=spark.range(20))
        {'worker:0': [45, 145, 45, 145]}
        """
        selection = self.select(Options(**options))  # type: ignore[typeddict-item]
        passes = self._passes(selection, batch_size, seed if shuffle else None, first_step, on_epoch_end)
        return Batches(passes, selection)

    def partitions(self) -> Iterator[Iterator[pa.RecordBatch]]:
        """Yield the Arrow batches of one partition of a stream after the other, as Spark sent them.

        Each row comes to one worker, once; workers take no steps together. Take a partition's batches before the next.

        Raises
        ------
        FeedError
            If the rows are kept (``cluster.train`` without ``cache="none"``), or were passed over before.
        """
        if isinstance(self._source, Shard):
            raise FeedError("partitions() is for rows that come once: feed them with cache='none', or use batches()")
        return _reported(self._source.partitions())

    def begin_at(self, epoch: int, step: int) -> bool:
        """Have the passes that have not begun begin in the midst of an epoch; return whether there are any.

        Parameters
        ----------
        epoch, step : int
            How many epochs were complete, and how many steps of the next one were taken.
        """
        made, self._made = list(self._made), WeakSet()
        for each in made:
            each.begin_at(epoch, step)
        return bool(made)

    def select(self, options: Options) -> Selection:
        """Return the columns that a program asks for, if they can be had like that."""
        if not self._contents.schema:
            raise FeedError("the DataFrame that was fed has no rows: there is nothing to train on")
        return Selection(self._contents, options)

    def own_passes(self, selection: Selection, batch_rows: int, seed: int | None) -> Callable[[], Iterator[Batch]]:
        """Return what starts a pass over this worker's rows alone, whatever the others do: no batch is filled up."""
        if isinstance(self._source, Stream):
            return partial(self._source.batches, selection, batch_rows, seed, apart=True)
        plan = plan_epoch([self._source.rows], batch_rows, 0)
        return Epochs(self._source, selection, plan, self._report, seed)

    def _passes(
        self,
        selection: Selection,
        batch_size: int,
        seed: int | None,
        first_step: int,
        on_epoch_end: Callable[[int], None] | None,
    ) -> Callable[[], Iterator[Batch]]:
        if not isinstance(first_step, Integral) or first_step < 0:
            raise SpecError(f"first_step={first_step!r}: expected how many steps were taken before")
        if isinstance(self._source, Stream):
            if first_step:
                raise FeedError("first_step is for rows that are kept: a stream has no rows that came before")
            share = batch_shares(batch_size, len(self._rows))[self._index]
            return partial(self._source.batches, selection, share, seed, on_epoch_end)
        plan = plan_epoch(self._rows, batch_size, self._index)
        count = row_counts.add if self._trained_on else None
        epochs = Epochs(self._source, selection, plan, self._report, seed, on_epoch_end, count)
        epochs.begin_at(*divmod(int(first_step), max(1, plan.steps)))
        self._made.add(epochs)
        return epochs


def _reported(partitions: Iterator[Iterator[pa.RecordBatch]]) -> Iterator[Iterator[pa.RecordBatch]]:
    for batches in partitions:
        report_read()
        yield batches


class Batches:
    """Batches of numpy arrays; each iteration over them is an epoch.

    Parameters
    ----------
    passes : callable
        Starts a pass over the rows.
    selection : Selection
        The columns, and the structure of an element.
    """

    reads_feed = True  # known to `keras.provenance` without a look at an element

    def __init__(self, passes: Callable[[], Iterator[Batch]], selection: Selection) -> None:
        self._passes = passes
        self._selection = selection

    def __iter__(self) -> Iterator[Any]:
        """Start an epoch."""
        real_only = state_pass()
        for padded in self._passes():
            report_read()
            batch = real_part(padded) if real_only else padded
            values = {name: each.rows() if isinstance(each, Ragged) else each for name, each in batch[0].items()}
            yield self._selection.arrange(values, self._selection.weights(batch))

    __call__ = __iter__
