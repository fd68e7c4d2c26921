"""A feed as the user's program sees it: the rows of one DataFrame, this worker's share of them."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tensorflowonspark import columns
from tensorflowonspark.errors import FeedError
from tensorflowonspark.messages import Progress, Seal
from tensorflowonspark.node.cache import Shard
from tensorflowonspark.node.steps import EpochPlan, plan_epoch

if TYPE_CHECKING:
    import tensorflow as tf

__all__ = ["WEIGHT", "Feed"]

WEIGHT = "sample_weight"  # Keras's name for it
# What is gathered at once: enough rows to make the cost per batch small, not so many bytes that memory shows it.
_BLOCK_ROWS = 4096
_BLOCK_BYTES = 32 << 20
_Batch = tuple[dict[str, columns.Array], npt.NDArray[np.float32]]


class Feed:
    """The rows of one ``cluster.train(df)`` on this worker.

    Parameters
    ----------
    seal : Seal
        What the whole feed holds.
    shard : Shard
        This worker's rows.
    numbers : sequence of int
        The node numbers of all workers that are fed, in their order.
    number : int
        This node's.
    report : callable
        Takes a `Progress` before each batch.
    """

    def __init__(
        self, seal: Seal, shard: Shard, numbers: Sequence[int], number: int, report: Callable[[Progress], None]
    ) -> None:
        self._seal = seal
        self._shard = shard
        self._rows = [seal.rows[each] for each in numbers]
        self._index = list(numbers).index(number)
        if shard.rows != seal.rows[number]:
            raise FeedError(f"this node has {shard.rows} rows of feed {seal.feed}, and should have {seal.rows[number]}")
        self._report = report
        self._schema = pa.ipc.read_schema(pa.py_buffer(seal.schema)) if seal.schema else pa.schema([])

    @property
    def rows(self) -> int:
        """How many rows this worker has."""
        return self._shard.rows

    @property
    def total_rows(self) -> int:
        """How many rows all workers have together."""
        return sum(self._rows)

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(self._schema.names)

    def steps(self, batch_size: int) -> int:
        """Return the number of steps in an epoch, the same on all workers, for so many rows per step over all."""
        return plan_epoch(self._rows, batch_size, self._index).steps

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
        """Return this worker's share as a ``tf.data.Dataset``; each pass over it is one epoch.

        All workers take the same number of steps, each row comes exactly once per epoch, and rows that fill up a
        worker's last batches have a weight of zero.

        Parameters
        ----------
        batch_size : int
            Rows of one step over all workers together, as in ``fit`` under a ``tf.distribute`` strategy.
        features : str or sequence of str, optional
            One column, which comes as a tensor, or several, which come as a dict by name. By default the column
            ``features`` if there is one beside a label, or else all columns but label and weight.
        label : str, optional
            The label's column. If neither it nor `features` is given, the column ``label`` if there is one.
        weight : str, optional
            A column of weights; they are multiplied with those of the padding.
        shuffle : bool
            Whether each epoch has an order of its own: a full shuffle of this worker's rows.
        seed : int
            What the orders are drawn from.

        Returns
        -------
        tf.data.Dataset
            Of ``(x, y, sample_weight)`` with a label: batches of shape ``(rows, *shape of a value)`` and a float32
            vector ``(rows,)``. Without one, of dicts by column name with one more key, ``"sample_weight"``.

        Raises
        ------
        FeedError
            If a column does not exist, holds nulls, or arrays of several lengths.
        """
        from tensorflowonspark.node.dataset import make_dataset

        plan = plan_epoch(self._rows, batch_size, self._index)
        if not plan.steps:
            raise FeedError("the DataFrame that was fed has no rows: there is nothing to train on")
        if features is None and label is None and "label" in self.columns:
            label = "label"
        names = self._feature_names(features, label, weight)
        used = [*names, *(name for name in (label, weight) if name)]
        kinds = {name: self._kind(name) for name in used}
        epochs = Epochs(self._shard, plan, kinds, self._report, int(seed or 0) if shuffle else None)
        single = isinstance(features, str) or (features is None and names == ["features"])
        return make_dataset(epochs, kinds, label=label, weight=weight, single=names[0] if single and label else None)

    def _feature_names(self, features: str | Sequence[str] | None, label: str | None, weight: str | None) -> list[str]:
        if isinstance(features, str):
            return [features]
        if features is not None:
            return list(features)
        if "features" in self.columns and label:
            return ["features"]
        return [name for name in self.columns if name not in (label, weight)]

    def _kind(self, name: str) -> tuple[np.dtype[np.generic], tuple[int, ...]]:
        """Return dtype and shape of one row's value in a column."""
        if name not in self.columns:
            raise FeedError(f"there is no column {name!r} in the DataFrame that was fed; it has {self.columns}")
        shape = columns.row_shape(name, self._seal.columns[name])
        return columns.row_dtype(self._schema.field(name).type), shape


class Epochs:
    """Makes the batches of one epoch after the other; each call starts a new pass."""

    def __init__(
        self,
        shard: Shard,
        plan: EpochPlan,
        kinds: dict[str, tuple[np.dtype[np.generic], tuple[int, ...]]],
        report: Callable[[Progress], None],
        seed: int | None,
    ) -> None:
        self.plan = plan
        self._shard = shard
        self._kinds = kinds
        self._report = report
        self._seed = seed
        self._done = 0  # epochs whose last batch was handed out; passes that were given up don't count

    def __call__(self) -> Iterator[_Batch]:
        """Yield the columns and the weights of each batch."""
        plan, epoch = self.plan, self._done
        order = self._order(epoch)
        rows_per_block = min(_BLOCK_ROWS, _BLOCK_BYTES / max(1.0, self._shard.bytes_per_row(list(self._kinds))))
        steps_per_block = max(1, int(rows_per_block) // plan.batch_rows)
        for first in range(0, plan.steps, steps_per_block):
            steps = range(first, min(first + steps_per_block, plan.steps))
            block = self._gather(order, steps)
            start = 0
            for step in steps:
                rows, padding = plan.real_rows(step), plan.padding(step)
                stop = start + rows + padding
                weights = np.repeat(np.array([1, 0], np.float32), [rows, padding])
                seen = min(plan.rows, step * plan.batch_rows + rows)
                self._report(Progress(epoch, step + 1, plan.steps, seen))
                if step == plan.steps - 1:
                    self._done = epoch + 1
                yield {name: values[start:stop] for name, values in block.items()}, weights
                start = stop

    def _order(self, epoch: int) -> npt.NDArray[np.int64]:
        if self._seed is None:
            return np.arange(self.plan.rows)
        return np.random.default_rng([self._seed, epoch]).permutation(self.plan.rows)

    def _gather(self, order: npt.NDArray[np.int64], steps: range) -> dict[str, columns.Array]:
        """Return the rows of some steps, padding included, as one array for each column.

        Padding repeats real rows, so that batch statistics stay those of real data; a worker without any row has
        nothing but zeros to offer.
        """
        plan = self.plan
        size = sum(plan.real_rows(step) + plan.padding(step) for step in steps)
        if not len(order):
            return {name: columns.zeros(size, *kind) for name, kind in self._kinds.items()}
        start = steps.start * plan.batch_rows
        batch = self._shard.take(order[np.arange(start, start + size) % len(order)], list(self._kinds))
        return {name: columns.to_numpy(batch.column(name), shape) for name, (_, shape) in self._kinds.items()}
