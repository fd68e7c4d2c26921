"""Functions for programs on a node: paths, and the rows that Spark feeds."""

from collections import deque
from typing import Any

from tensorflowonspark import storage
from tensorflowonspark.errors import FeedError
from tensorflowonspark.keras.provenance import report_read
from tensorflowonspark.v2.deprecation import removed
from tensorflowonspark.v2.inlet import Inlet
from tensorflowonspark.v2.input_queue import END, END_OF_PARTITION, PartitionRows, PendingResults

__all__ = [
    "DataFeed",
    "batch_results",
    "export_saved_model",
    "hdfs_path",
    "next_batch",
    "release_port",
    "start_cluster_server",
    "terminate",
]


def hdfs_path(ctx: Any, path: str) -> str:
    """Return a path as a URL of Hadoop's default file system, unless it has a scheme already.

    Parameters
    ----------
    ctx : TFNodeContext
        Has that file system (``ctx.defaultFS``) and the working directory (``ctx.working_dir``).
    path : str
        Absolute; or relative to the user's home on HDFS, and to the working directory elsewhere.

    Examples
    --------
    >>> from tensorflowonspark.TFSparkNode import TFNodeContext
    >>> hdfs_path(TFNodeContext(defaultFS="hdfs://name:8020"), "/data/mnist")
    'hdfs://name:8020/data/mnist'
    """
    return storage.absolute_path(path, ctx.working_dir, ctx.defaultFS)


def release_port(ctx: Any) -> None:
    """Release the node's port: when this returns, the program or a child of it can bind it."""
    ctx.release_port()


class DataFeed:
    """The rows that Spark feeds to a node.

    Parameters
    ----------
    mgr : Inlet
        ``ctx.mgr``.
    train_mode : bool
        Whether a batch continues across partitions; otherwise it ends at the latest with its partition, so that its
        results belong to one partition.
    qname_in : str
        The queue, as in ``cluster.train(rdd, qname=...)``.
    qname_out : str
        Ignored: results return to the partition of their rows.
    input_mapping : dict, optional
        Tensor names by column. Batches are then dicts of lists by tensor; the values of a row belong to the columns
        sorted by name.

    Raises
    ------
    FeedError
        If Spark feeds nothing to this node.
    """

    def __init__(
        self,
        mgr: Any,
        train_mode: bool = True,
        qname_in: str = "input",
        qname_out: str = "output",
        input_mapping: dict[str, str] | None = None,
    ) -> None:
        if not isinstance(mgr, Inlet):
            raise FeedError(
                "Spark feeds no rows to this node: make the cluster with input_mode=InputMode.SPARK, and read rows in "
                "its workers (not in a ps or an evaluator)"
            )
        self.mgr = mgr
        self.train_mode = train_mode
        self.qname_in = qname_in
        self.qname_out = qname_out
        self.input_tensors = [tensor for _, tensor in sorted((input_mapping or {}).items())]
        self.done_feeding = False
        self._inbox = mgr.inbox(qname_in)
        self._rows: deque[Any] = deque()  # of the current block
        self._pending: PendingResults | None = None  # of the current block
        self._unanswered: deque[tuple[PendingResults, int]] = deque()  # numbers of rows without results, in order

    def next_batch(self, batch_size: int) -> Any:
        """Wait for the next rows and return them as they were fed.

        Parameters
        ----------
        batch_size : int
            Number of rows. The batch is smaller, or empty, at the end of the feed; and, with ``train_mode=False``, at
            the end of a partition.

        Returns
        -------
        list or dict
            Rows; or, with `input_mapping`, lists of values by tensor.

        Raises
        ------
        FeedError
            If the feed failed.
        """
        report_read()
        rows: list[Any] = []
        while len(rows) < batch_size and not self.done_feeding:
            if not self._rows and not self._next_block(rows):
                break
            taken = min(batch_size - len(rows), len(self._rows))
            rows += [self._rows.popleft() for _ in range(taken)]
            self._record(taken)
        if not self.input_tensors:
            return rows
        tensors: dict[str, list[Any]] = {tensor: [] for tensor in self.input_tensors}
        for row in rows:
            for tensor, value in zip(self.input_tensors, row, strict=False):
                tensors[tensor].append(value)
        return tensors

    def _next_block(self, rows: list[Any]) -> bool:
        """Take the next item of the queue; return whether the batch continues."""
        item = self._inbox.get()
        if isinstance(item, PartitionRows):
            self._rows.extend(item.rows)
            self._pending = item.pending
        elif item is END_OF_PARTITION:
            return self.train_mode or not rows
        else:
            self.done_feeding = True
            if item is not END:
                raise item
        return True

    def _record(self, taken: int) -> None:
        if self._pending is not None:
            self._unanswered.append((self._pending, taken))
        if not self._rows:
            self._inbox.done()

    def should_stop(self) -> bool:
        """Return whether the feed has ended: the cluster shuts down, and the program has all rows."""
        return self.done_feeding

    def batch_results(self, results: list[Any]) -> None:
        """Return results to Spark: one for each row of the batches so far, in their order.

        Parameters
        ----------
        results : list
            Results of the oldest rows that have none.

        Raises
        ------
        FeedError
            If there are more results than such rows.
        """
        left = list(results)
        waiting = sum(rows for _, rows in self._unanswered)
        if len(left) > waiting:
            raise FeedError(f"batch_results was given {len(left)} results, and {waiting} rows wait for one")
        while left:
            pending, rows = self._unanswered.popleft()
            if len(left) < rows:
                self._unanswered.appendleft((pending, rows - len(left)))
            pending.add(left[:rows])
            left = left[rows:]

    def terminate(self) -> None:
        """Drop all remaining and further rows; feeding jobs end at once."""
        self.done_feeding = True
        self._rows.clear()
        self.mgr.terminate()


start_cluster_server = removed("TFNode.start_cluster_server", "a tf.distribute strategy, which reads TF_CONFIG,")
export_saved_model = removed("TFNode.export_saved_model", "compat.export_saved_model(model, export_dir, is_chief)")
next_batch = removed("TFNode.next_batch", "ctx.get_data_feed().next_batch(n)")
batch_results = removed("TFNode.batch_results", "ctx.get_data_feed(train_mode=False).batch_results(results)")
terminate = removed("TFNode.terminate", "ctx.get_data_feed().terminate()")
