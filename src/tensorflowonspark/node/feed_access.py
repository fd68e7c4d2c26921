"""Access to rows from a node's program: feeds from Spark, and files that the nodes read."""

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from tensorflowonspark.declarations import takes
from tensorflowonspark.errors import FeedError
from tensorflowonspark.feed_messages import FeedId, FileFeed
from tensorflowonspark.keras import workers
from tensorflowonspark.keras.feed_tracking import row_counts, state_pass
from tensorflowonspark.keras.jax.jax_processes import keras_uses_jax
from tensorflowonspark.keras.provenance import report_read
from tensorflowonspark.keras.shards import of_feed
from tensorflowonspark.node.driver_link import Link
from tensorflowonspark.node.feed.batches import Batches
from tensorflowonspark.node.feed.feed import Feed
from tensorflowonspark.node.feed.feed_server import FeedServer
from tensorflowonspark.node.feed.feeds import Feeds
from tensorflowonspark.node.feed.files import FileReader
from tensorflowonspark.node.feed.footers import Combine
from tensorflowonspark.node.feed.observer import Observer
from tensorflowonspark.node.feed.selection import ComposedOptions, DatasetOptions
from tensorflowonspark.node.feed.source import Source
from tensorflowonspark.node.file_access import FileAccess
from tensorflowonspark.node.meter import TrainingMeter
from tensorflowonspark.node.ps.coordinator import CoordinatedFeed
from tensorflowonspark.node.run_record import RunRecord
from tensorflowonspark.node.setup import NodeSetup

if TYPE_CHECKING:
    import tensorflow as tf
    from typing_extensions import Unpack

    from tensorflowonspark.keywords import ComposedKeywords, DatasetKeywords

_NONE_HELD = "there are none: tfos.run(..., data=df) gives them (tfos run --data TABLE|PATH)"
_NONE_FED = "the cluster was shut down without cluster.train(df): call it inside the with block"

KERAS = Observer(
    adapts=state_pass,
    equal_batches=keras_uses_jax,
    note_read=report_read,
    note_padding=row_counts.note_padding,
    note_rows=row_counts.add,
    note_first=row_counts.note_first,
    of_feed=of_feed,
)


def _combine(call: str) -> Combine | None:
    return partial(workers.combine, call) if workers.are_several() else None


class FeedAccess(FileAccess):
    """The methods of a `Context` that return rows.

    Parameters
    ----------
    setup : NodeSetup
        Identity of the node.
    link : Link
        To the supervisor, and through it to the driver.
    server : FeedServer or None
        Receives the rows; None on a node that is not fed.
    """

    def __init__(self, setup: NodeSetup, link: Link, server: FeedServer | None) -> None:
        self._setup = setup
        self._link = link
        self._server = server
        self._meter = TrainingMeter(link.send, nodes=len(setup.spec.roles), alone=len(setup.spec.trainers) == 1)
        self._feeds = Feeds(setup, link, server, self._meter, KERAS, _combine)
        self._record = RunRecord(setup, link.send)
        cache = server.cache if server is not None else None
        super().__init__(setup, link, FileReader(setup, cache, link, self._feeds, _combine))
        self._current: Feed | None = None

    def feeds(self) -> Iterator[Feed]:
        """Yield a feed for each ``cluster.train(df)``, until the cluster shuts down.

        Returns
        -------
        iterator of Feed
            Under a ``ParameterServerStrategy`` the chief gets a `CoordinatedFeed` each time. The rows of a feed are
            dropped when the next one is requested.

        Raises
        ------
        FeedError
            If this node is not fed.

        Examples
        --------
        >>> [feed.total_rows for feed in ctx.feeds()]
        [6]
        """
        while (feed := self._next_feed()) is not None:
            yield feed

    def feed(self) -> Feed:
        """Return the current feed; wait for the first ``cluster.train(df)`` if there was none yet.

        Returns
        -------
        Feed
            A `CoordinatedFeed` on the chief of a ``ParameterServerStrategy``, since the rows are on the workers.

        Raises
        ------
        FeedError
            If this node is not fed, or the cluster shuts down without a feed.

        Examples
        --------
        >>> ctx.feed().columns, ctx.feed().rows
        (['x', 'id', 'label'], 6)
        """
        feed = self._current or self._next_feed()
        if feed is None:
            raise FeedError(
                f"the program waits for rows, but {_NONE_HELD if self._setup.config.hold else _NONE_FED}, or read the "
                "data in the program itself (ctx.read_parquet)"
            )
        return feed

    def _next_feed(self) -> Feed | None:
        complete = self._feeds.next()
        if complete is None:
            self._current = None
        elif self._server is None:
            self._current = CoordinatedFeed(complete, self._link.feeds.passes)
        else:
            self._current = self._feeds.open(complete)
        if self._current is not None and complete is not None:
            self._record.note_feed(self._current, "spark", complete.given, complete.feed)
        return self._current

    @takes(DatasetOptions)
    def dataset(self, batch_size: int, **options: "Unpack[DatasetKeywords]") -> "tf.data.Dataset":
        """Return this worker's share of the current feed as a ``tf.data.Dataset``; each pass over it is one epoch.

        Parameters
        ----------
        batch_size : int
            Rows of one step over all workers together, as in ``fit`` under a ``tf.distribute`` strategy.
        **options
            As for `Feed.dataset`.

        Returns
        -------
        tf.data.Dataset
            Batches of ``(x, y, sample_weight)``, or dicts by column name; shapes and dtypes as for `Feed.dataset`.

        Raises
        ------
        FeedError
            If there is no feed, a column does not exist, or its values do not fit.
        SpecError
            If `batch_size` or `first_step` is out of range.

        Examples
        --------
        >>> for x, y, sample_weight in ctx.dataset(4, features="id", label="label", shuffle=False).take(1):
        ...     print(x.numpy(), y.numpy(), sample_weight.numpy())
        [0 1 2 3] [0. 1. 0. 1.] [1. 1. 1. 1.]
        """
        return self.feed().dataset(batch_size, **options)

    @takes(DatasetOptions)
    def batches(self, batch_size: int, **options: "Unpack[DatasetKeywords]") -> Batches:
        """Return batches of NumPy arrays of the current feed; each iteration over them is one epoch.

        Parameters
        ----------
        batch_size : int
            Rows of one step over all workers together.
        **options
            As for `Feed.dataset`.

        Returns
        -------
        Batches
            An iterable that can be iterated again for the next epoch. Elements are those of `dataset`, as arrays.

        Raises
        ------
        FeedError
            If there is no feed, a column does not exist, or its values do not fit.
        SpecError
            If `batch_size` or `first_step` is out of range.

        Examples
        --------
        >>> batches = ctx.batches(4, features="id", shuffle=False)
        >>> [batch["id"].tolist() for epoch in range(2) for batch in batches]
        [[0, 1, 2, 3], [4, 5], [0, 1, 2, 3], [4, 5]]
        """
        return self.feed().batches(batch_size, **options)

    @takes(ComposedOptions)
    def validation_dataset(self, batch_size: int, **options: "Unpack[ComposedKeywords]") -> "tf.data.Dataset":
        """Return this worker's share of the current feed's validation rows, in their own order.

        Parameters
        ----------
        batch_size : int
            Rows of one step over all workers together.
        **options
            As for `Feed.dataset`.

        Returns
        -------
        tf.data.Dataset
            Elements as of `dataset`.

        Raises
        ------
        FeedError
            If there is no feed, or it has no validation rows (``validation=...``), or as for `dataset`.

        Examples
        --------
        >>> for x, y, sample_weight in ctx.validation_dataset(2, features="id", label="label").take(1):
        ...     print(x.numpy(), y.numpy())
        [0 1] [0. 1.]
        """
        return self.feed().validation_dataset(batch_size, **options)

    @takes(ComposedOptions)
    def validation_batches(self, batch_size: int, **options: "Unpack[ComposedKeywords]") -> Batches:
        """Return batches of NumPy arrays of the current feed's validation rows, in their own order.

        Parameters
        ----------
        batch_size : int
            Rows of one step over all workers together.
        **options
            As for `Feed.dataset`.

        Returns
        -------
        Batches
            As of `batches`.

        Raises
        ------
        FeedError
            If there is no feed, or it has no validation rows (``validation=...``), or as for `dataset`.

        Examples
        --------
        >>> [batch["id"].tolist() for batch in ctx.validation_batches(4, features=["id"])]
        [[0, 1]]
        """
        return self.feed().validation_batches(batch_size, **options)

    def _find_rows(self, feed: FeedId, source: Source | None) -> Feed:
        """Return this worker's rows of a feed that the chief of a ``ParameterServerStrategy`` reads."""
        if not isinstance(feed, FileFeed):
            return self._feeds.find(feed)
        assert source is not None
        return self._file_reader.read_for_chief(feed, source)
