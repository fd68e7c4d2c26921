"""How a DataFrame is fed, as a user asks for it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tensorflowonspark.declarations import SECONDS
from tensorflowonspark.driver.feed.job import FeedRequest, Start, check_frame
from tensorflowonspark.driver.feed.mixed_frames import mix
from tensorflowonspark.driver.spark.batch_rdd import BatchRDD
from tensorflowonspark.errors import FeedError, SpecError
from tensorflowonspark.feed_messages import CacheConfig, is_global
from tensorflowonspark.mixture import order_of
from tensorflowonspark.run_manifest import given_settings
from tensorflowonspark.settings import SettingsGroup, check_seconds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from typing_extensions import Self

    from tensorflowonspark.driver.feed.mixed_frames import Mixed

__all__ = ["Data", "FeedSettings", "feed_request"]


@dataclass(frozen=True, kw_only=True)
class FeedSettings(SettingsGroup):
    """How a DataFrame is fed: keywords of `Cluster.train` and `Data`, and options of ``tfos run``.

    After a change run ``make keywords``.

    Parameters
    ----------
    validation : DataFrame or str, optional
        Rows to validate on (``feed.validation``): a DataFrame with the same columns, or the boolean column of the data
        that marks them. Of a mixture, a dict of DataFrames by the names of sources, or that column.
    epoch_rows : int, optional
        The rows of an epoch of a mixture; by default as many as all sources have together.
    cache : {"disk", "memory"} or None
        Where the workers keep the rows, so that each epoch can pass over them: in files in Spark's local directories
        ("disk"), in memory, or not at all (None). With None the programs begin with the first rows, and pass over them
        once.
    cache_limit : int or str, optional
        The number of bytes that a worker keeps at most, as in ``"2g"``; more is an error. With ``cache=None``, the
        number that waits in its memory (512 MB by default): then Spark waits, and the rest of a partition that is
        larger goes to disk.
    start : {"all_rows", "first_rows"}
        When the programs begin, if the rows are kept. With "all_rows" the number of rows is known before the first
        step, and the order of each epoch follows from the seed. With "first_rows" the first epoch takes the rows as
        they arrive, as with ``cache=None``, and only the later ones have a known length and a full shuffle; the rows
        stay on the workers that they came to, and no checkpoint can be written within the first epoch.
    rebalance : bool
        Whether workers with many rows give some to those with few, so that an epoch has no more steps than needed.
        (Workers of parameter servers keep what they were fed: none waits for another. Those that begin with the first
        rows keep them too, and those that are started again alone after failures.)
    global_shuffle : bool
        Whether rows move between workers before they are fed. By default a partition's rows stay together on one
        worker, which shuffles them with its other rows. With True Spark's shuffle deals the rows of every partition out
        to all workers (``repartition``): all rows are written to disk and sent over the network once. Workers that
        train apart (`tensorflowonspark.keras.LocalSGD`) need this if partitions differ, as when the rows are sorted by
        label.
    order : {"worker", "global"}
        Whose order an epoch has. With "worker" each worker shuffles its own rows: other numbers of workers have other
        rows in a step. With "global" a step has the same rows on any number of workers, if the data has the same
        partitions, and so a training ends with the same weights on any of them, also if their number changes meanwhile.
        A worker then takes those rows of a step that it has, a few more in one step than in another.
    independent_workers : bool
        Whether each worker reads its rows at its own pace (`Feed.partitions`), and may return early; the others then
        get the remaining rows. Needs ``cache=None``.
    feed_timeout : float
        Seconds without any progress, of the Spark job, the rows or the programs, after which the feed fails. (Once
        cached rows have all arrived, the programs take the time that they need.)

    Raises
    ------
    SpecError
        If a setting can't be right; the error names it and its value.
    """

    validation: "DataFrame | Mapping[str, DataFrame] | str | None" = None
    epoch_rows: int | None = None
    cache: Literal["disk", "memory"] | None = "disk"
    cache_limit: int | str | None = None
    start: Start = "all_rows"
    rebalance: bool = True
    global_shuffle: bool = False
    order: Literal["worker", "global"] = "worker"
    independent_workers: bool = False
    feed_timeout: Annotated[float, SECONDS, check_seconds] = 600.0

    @property
    def needs_job(self) -> bool:
        """Whether only a Spark job of its own can feed so, and not the tasks that hold the nodes."""
        return self.cache is None or not self.rebalance or self.global_shuffle or self.independent_workers


@dataclass(frozen=True)
class Data(FeedSettings):
    """The rows to train on, and how they are fed: the argument `data` of `run`.

    Parameters
    ----------
    data : DataFrame or dict
        The rows; or by name the sources of a mixture, each a pair of a DataFrame and its share (`Cluster.train`).
    **settings
        Those of `FeedSettings`.

    Raises
    ------
    SpecError
        If there are no rows, or a setting can't be right.

    Examples
    --------
    >>> Data(spark.range(10), cache="memory").start
    'all_rows'
    """

    data: "DataFrame | Mixed" = field(kw_only=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.data is None:
            raise SpecError("there is no data to train on, and only settings of it: pass a DataFrame as data")

    @property
    def is_global(self) -> bool:
        """Whether an epoch's steps have the same rows on any number of workers, in partitions that stay as they are."""
        return is_global(self.order) or isinstance(self.data, Mapping)

    @classmethod
    def _of(cls, value: Any, name: str) -> "Self":  # noqa: ARG003 - a DataFrame is checked when it is fed
        return value if isinstance(value, cls) else cls(value)


def feed_request(data: "DataFrame | BatchRDD | Mixed", settings: FeedSettings) -> FeedRequest:
    """Return the feed of some rows, or of a mixture.

    Rows that can't be fed, or not so, raise `FeedError`; what is no DataFrame, and a limit that is no number of bytes,
    `SpecError`.
    """
    cache = CacheConfig.parse(settings.cache, settings.cache_limit)
    early = settings.start == "first_rows" and settings.cache is not None
    validation, mixture = settings.validation, None
    if isinstance(data, Mapping):
        data, validation, mixture = mix(data, validation, settings.epoch_rows)
    elif isinstance(validation, Mapping) or settings.epoch_rows is not None:
        raise SpecError(
            "epoch_rows, and a dict of rows to validate on, are for a mixture: pass a dict as data, as in "
            "{'web': (df1, 0.7), 'books': (df2, 0.3)}"
        )
    request = FeedRequest(
        data,
        validation=validation,
        cache=cache,
        start=settings.start,
        rebalance=settings.rebalance and not early,
        timeout=settings.feed_timeout,
        independent_workers=settings.independent_workers,
        is_global=is_global(settings.order) or mixture is not None,
        mixture=mixture,
        given=given_settings(settings),
    )
    if request.is_global and (request.starts_early or settings.global_shuffle):
        raise FeedError(
            f"{order_of(mixture)} is for rows that are kept, that have all arrived before the first step, and whose "
            "partitions do not depend on the workers: leave out cache=None, start='first_rows' and global_shuffle"
        )
    if settings.independent_workers and request.keeps_rows:
        raise FeedError("independent workers read rows as they come: feed them with cache=None")
    if isinstance(data, BatchRDD):
        if request.keeps_rows or validation is not None:
            raise FeedError("an RDD is fed with cache=None and without validation rows, or as a DataFrame")
        if settings.global_shuffle:
            raise FeedError("global_shuffle=True is for DataFrames: shuffle an RDD itself (rdd.repartition)")
    else:
        check_frame(data, validation)
    return request
