"""What programs of 2.x call on a node: paths, and the rows that Spark feeds."""

from collections import deque
from typing import Any

from tensorflowonspark import storage
from tensorflowonspark.errors import FeedError
from tensorflowonspark.keras.provenance import report_read

from ._inbox import END, END_OF_PARTITION, Block, Question
from ._inlet import Inlet
from ._old import gone

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
        Knows that file system (``ctx.defaultFS``) and the working directory (``ctx.working_dir``).
    path : str
        Absolute, or relative to the user's home on HDFS, and elsewhere to the working directory.

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
        Whether batches are filled up across partitions; without it each ends with its partition at the latest, so that
        the results are those of its rows.
    qname_in : str
        The queue, as in ``cluster.train(rdd, qname=...)``.
    qname_out : str
        Not used: results go back to the partition that they answer.
    input_mapping : dict, optional
        Names of tensors by column. Batches are then dicts of lists by tensor; values of a row belong to the columns in
        the order of their names.

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
        self._rows: deque[Any] = deque()  # of the block in hand
        self._question: Question | None = None
        self._open: deque[tuple[Question | None, int]] = deque()  # rows that were handed out and have no results

    def next_batch(self, batch_size: int) -> Any:
        """Return the next rows as they were fed; wait for them.

        Parameters
        ----------
        batch_size : int
            How many. There are fewer, or none, at the end of the feed; and at the end of a partition where the feed was
            made with ``train_mode=False``.

        Returns
        -------
        list or dict
            Rows; or, with `input_mapping`, lists of values by tensor.
        """
        report_read()
        rows: list[Any] = []
        while len(rows) < batch_size and not self.done_feeding:
            if not self._rows and not self._next_block(rows):
                break
            taken = min(batch_size - len(rows), len(self._rows))
            rows += [self._rows.popleft() for _ in range(taken)]
            self._note(taken)
        if not self.input_tensors:
            return rows
        tensors: dict[str, list[Any]] = {tensor: [] for tensor in self.input_tensors}
        for row in rows:
            for tensor, value in zip(self.input_tensors, row, strict=False):
                tensors[tensor].append(value)
        return tensors

    def _next_block(self, rows: list[Any]) -> bool:
        """Take what is next; return whether the batch goes on."""
        item = self._inbox.get()
        if isinstance(item, Block):
            self._rows.extend(item.rows)
            self._question = item.question
        elif item is END_OF_PARTITION:
            return self.train_mode or not rows
        else:
            self.done_feeding = True
            if item is not END:
                raise item
        return True

    def _note(self, taken: int) -> None:
        if self._question is not None:
            self._open.append((self._question, taken))
        if not self._rows:
            self._inbox.done()

    def should_stop(self) -> bool:
        """Whether the feed has ended: the cluster is being shut down, and all rows were handed out."""
        return self.done_feeding

    def batch_results(self, results: list[Any]) -> None:
        """Give the results of rows that were handed out, one for each, in their order.

        Raises
        ------
        FeedError
            If there are more than rows.
        """
        left = list(results)
        waiting = sum(rows for _, rows in self._open)
        if len(left) > waiting:
            raise FeedError(f"batch_results was given {len(left)} results, and {waiting} rows wait for one")
        while left:
            question, rows = self._open.popleft()
            if len(left) < rows:
                self._open.appendleft((question, rows - len(left)))
            if question is not None:
                question.answer(left[:rows])
            left = left[rows:]

    def terminate(self) -> None:
        """Let go all rows that are left and may still come; the jobs that feed end at once."""
        self.done_feeding = True
        self._rows.clear()
        self.mgr.terminate()


start_cluster_server = gone("TFNode.start_cluster_server", "a tf.distribute strategy, which reads TF_CONFIG,")
export_saved_model = gone("TFNode.export_saved_model", "compat.export_saved_model(model, export_dir, is_chief)")
next_batch = gone("TFNode.next_batch", "ctx.get_data_feed().next_batch(n)")
batch_results = gone("TFNode.batch_results", "ctx.get_data_feed(train_mode=False).batch_results(results)")
terminate = gone("TFNode.terminate", "ctx.get_data_feed().terminate()")
