"""The methods of a node's context that read files and tables, each worker its share."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from tensorflowonspark.declarations import shows
from tensorflowonspark.errors import SpecError
from tensorflowonspark.feed_messages import is_global
from tensorflowonspark.mixture import order_of
from tensorflowonspark.node.driver_link import Link
from tensorflowonspark.node.feed.delta_source import DeltaSource
from tensorflowonspark.node.feed.feed import Feed
from tensorflowonspark.node.feed.files import FileReader
from tensorflowonspark.node.feed.iceberg_source import IcebergSource
from tensorflowonspark.node.feed.mixed_files import Paths, find_sources
from tensorflowonspark.node.feed.parquet_source import ParquetBased, ParquetSource
from tensorflowonspark.node.feed.source import Listed
from tensorflowonspark.node.feed.tfrecord_source import TFRecordSource
from tensorflowonspark.node.ps.coordinator import CoordinatedFeed
from tensorflowonspark.node.run_record import RunRecord
from tensorflowonspark.node.setup import NodeSetup
from tensorflowonspark.renamed import takes_old_keywords
from tensorflowonspark.tfrecords.options import OLD_KEYWORDS, ReadOptions

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyspark.sql.types import StructType
    from typing_extensions import Unpack

    from tensorflowonspark.keywords import ReadKeywords


class FileAccess:
    """The methods of a `Context` that read files.

    Parameters
    ----------
    setup : NodeSetup
        Identity of the node.
    link : Link
        To the driver.
    file_reader : FileReader
        The feeds that this node reads.
    """

    _record: RunRecord

    def __init__(self, setup: NodeSetup, link: Link, file_reader: FileReader) -> None:
        self._setup = setup
        self._link = link
        self._file_reader = file_reader

    @takes_old_keywords(**OLD_KEYWORDS)
    @shows(ReadOptions)
    def read_tfrecord(
        self,
        paths: Paths | Mapping[str, tuple[Paths, float]],
        *,
        schema: "pa.Schema | StructType | str | None" = None,
        columns: Sequence[str] | None = None,
        cache: str | None = "disk",
        cache_limit: int | str | None = None,
        order: Literal["worker", "global"] = "worker",
        epoch_rows: int | None = None,
        **options: "Unpack[ReadKeywords]",
    ) -> Feed:
        """Read TFRecord files without Spark, each worker its share; return them as a feed over all workers.

        Call it on all workers, with the same paths. Without a cache an evaluator may call it too, which reads all rows;
        and under a ``ParameterServerStrategy`` the chief calls it, and the workers read.

        Parameters
        ----------
        paths : str, sequence of str or dict
            Files, directories or wildcards, on any file system; long files are divided. Or a mixture: by the name of
            each source a pair of its paths and its share, as for `Cluster.train`; its rows must be kept.
        schema : pa.Schema, StructType or str, optional
            The features and their types, as in ``"id bigint, x array<float>"``; a schema of Arrow or of Spark. By
            default they are inferred from the first records.
        columns : sequence of str, optional
            The columns to read; others are not decoded. By default all.
        cache : {"disk", "memory"} or None
            Where each worker keeps its share. With None the files are read anew in each epoch, ahead of the steps:
            data of any size, and the first step comes as soon as its rows are read.
        cache_limit : int or str, optional
            Bytes that a worker keeps at most, as in ``"2g"``; more is an error. By default there is no limit. Without a
            cache, the size of the rows that are in memory at a time, by default ``"512m"``.
        order : {"worker", "global"}
            Of rows that are kept: as for `Cluster.train`.
        epoch_rows : int, optional
            The rows of an epoch of a mixture; by default as many as all sources have together.
        **options
            As for ``spark.read.format("tfrecord")``.

        Returns
        -------
        Feed
            With even steps on all workers, like a feed from Spark; a `CoordinatedFeed` on the chief of a
            ``ParameterServerStrategy``. Without a cache a shuffle is one of the splits, and of the rows of several
            splits that are in memory at a time. The number of rows is unknown until the first epoch has counted them,
            and a pass that begins elsewhere, as after a restart, reads the files once before to count them. If only
            later rows have nulls, or arrays of another length, the dataset needs ``fill`` or ``shapes`` for that
            column.

        Raises
        ------
        SpecError
            If a path, a column or an option is invalid.
        TFRecordError
            If a file can't be read.
        FeedError
            From the batches of a feed without a cache, if a file can't be read or has changed; the error names it, and
            the position in it.

        Examples
        --------
        >>> feed = ctx.read_tfrecord(records, columns=["id"])
        >>> feed.columns, feed.total_rows
        (['id'], 6)
        >>> feed = ctx.read_tfrecord(records, cache=None)
        >>> before, rows = feed.total_rows, sum(len(batch["id"]) for batch in feed.batches(3, features=["id"]))
        >>> before, rows, feed.total_rows
        (None, 6, 6)
        """

        def source_of(named: list[str]) -> TFRecordSource:
            return TFRecordSource(named, schema, dict(options), columns=columns, cache_limit=cache_limit)

        return self._open(f"ctx.read_tfrecord({paths!r})", find_sources(paths, epoch_rows, source_of), cache, order)

    def read_parquet(
        self,
        paths: Paths | Mapping[str, tuple[Paths, float]],
        *,
        columns: Sequence[str] | None = None,
        cache: str | None = "disk",
        cache_limit: int | str | None = None,
        order: Literal["worker", "global"] = "worker",
        epoch_rows: int | None = None,
        filter: "pc.Expression | None" = None,  # noqa: A002 - named at the call, as in Arrow
    ) -> Feed:
        """Read Parquet files without Spark, each worker its row groups; return them as a feed over all workers.

        Call it on all workers, with the same arguments. Without a cache an evaluator may call it too, which reads all
        rows; and under a ``ParameterServerStrategy`` the chief calls it, and the workers read.

        Parameters
        ----------
        paths, columns
            As for `read_tfrecord`.
        cache : {"disk", "memory"} or None
            Where each worker keeps its share. With None the files are read anew in each epoch, ahead of the steps:
            data of any size, and the first step comes at once.
        cache_limit : int or str, optional
            Bytes that a worker keeps at most, as in ``"2g"``; more is an error. By default there is no limit. Without a
            cache, the size of the rows that are in memory at a time, by default ``"512m"``.
        order, epoch_rows
            As for `read_tfrecord`.
        filter : pc.Expression, optional
            The rows to read, as in ``pc.field("day") > 3``, by columns that need not be among `columns`. Row groups
            that their statistics exclude are not read, nor files that their directories exclude. Without a cache the
            workers read the filter's columns once before, each its share, to count the rows.

        Returns
        -------
        Feed
            With even steps on all workers, like a feed from Spark; a `CoordinatedFeed` on the chief of a
            ``ParameterServerStrategy``. Without a cache a shuffle is one of the row groups, and of the rows of several
            row groups that are in memory at a time. If only later rows have nulls, or arrays of another length, the
            dataset needs ``fill`` or ``shapes`` for that column.

        Raises
        ------
        SpecError
            If a path, a column or the filter is invalid, a file is no Parquet file, or no row passes.
        FeedError
            If a file can't be read or has changed; the error names it and the row group.

        Examples
        --------
        >>> feed = ctx.read_parquet(parquet)
        >>> [batch["id"].tolist() for batch in feed.batches(4, features=["id"], shuffle=False)]
        [[0, 1, 2, 3], [4, 5]]
        >>> import pyarrow.compute as pc
        >>> ctx.read_parquet(parquet, cache=None, filter=pc.field("id") > 3).total_rows
        2
        """

        def source_of(named: list[str]) -> ParquetSource:
            return ParquetSource(named, columns=columns, filter=filter, cache_limit=cache_limit)

        call = f"ctx.read_parquet({paths!r}{source_of([]).shown()})"
        listed = find_sources(paths, epoch_rows, source_of, self._file_reader.read_footers(call))
        return self._open(call, listed, cache, order)

    def read_delta(
        self,
        table: str,
        *,
        version: int | None = None,
        columns: Sequence[str] | None = None,
        cache: str | None = "disk",
        cache_limit: int | str | None = None,
        order: Literal["worker", "global"] = "worker",
        filter: "pc.Expression | None" = None,  # noqa: A002 - named at the call, as in Arrow
        storage_options: Mapping[str, str] | None = None,
    ) -> Feed:
        """Read a Delta table without Spark, each worker its row groups; return them as a feed over all workers.

        As `read_parquet`, for the files that the table has in a version (``pip install 'tensorflowonspark[delta]'``).
        Rows that deletion vectors mark are left out, and a column that an older file does not have is null.

        Parameters
        ----------
        table : str
            Its directory, on any file system.
        version : int, optional
            The version, by default the latest; name it if others write to the table meanwhile.
        columns, cache, cache_limit, order, filter
            As for `read_parquet`.
        storage_options : mapping of str to str, optional
            For the library that reads the table's log, as for ``deltalake.DeltaTable``; its files are read with the
            settings of Spark's session.

        Returns
        -------
        Feed
            As from `read_parquet`.

        Raises
        ------
        SpecError
            As from `read_parquet`; or if deltalake isn't installed, or the table has features that can't be read, such
            as column mapping.
        FeedError
            As from `read_parquet`.

        Examples
        --------
        >>> feed = ctx.read_delta(delta, version=0, columns=["id"])
        >>> feed.columns, feed.total_rows
        (['id'], 6)
        """
        source = DeltaSource(table, version, storage_options, columns=columns, filter=filter, cache_limit=cache_limit)
        return self._read(repr(table), source, cache, order)

    def read_iceberg(
        self,
        table: str,
        *,
        snapshot: int | str | None = None,
        columns: Sequence[str] | None = None,
        cache: str | None = "disk",
        cache_limit: int | str | None = None,
        order: Literal["worker", "global"] = "worker",
        filter: "pc.Expression | None" = None,  # noqa: A002 - named at the call, as in Arrow
        catalog: str | Mapping[str, str] | None = None,
    ) -> Feed:
        """Read an Iceberg table without Spark, each worker its row groups; return them as a feed over all workers.

        As `read_parquet`, for the files of a snapshot of the table (``pip install 'tensorflowonspark[iceberg]'``).
        Columns that were renamed are found by their numbers, one that an older file does not have is null, or has its
        default, and rows that delete files mark are left out.

        Parameters
        ----------
        table : str
            Its name in a catalog, as in ``"db.events"``; or the location of its metadata (``.../v3.metadata.json``), or
            its directory, if that has a ``version-hint.text``.
        snapshot : int or str, optional
            The snapshot's number, or the name of a tag or a branch; by default the current one. Give a number if others
            write to the table meanwhile.
        columns, cache, cache_limit, order, filter
            As for `read_parquet`.
        catalog : str or mapping of str to str, optional
            A catalog's name in pyiceberg's configuration, or its properties, as in ``{"type": "rest", "uri": ...}``.
            For the location of a table, the properties for access to its metadata.

        Returns
        -------
        Feed
            As from `read_parquet`.

        Raises
        ------
        SpecError
            As from `read_parquet`; or if pyiceberg isn't installed, the table has deletes other than by positions in
            Parquet files, or the fields of a struct have changed.
        FeedError
            As from `read_parquet`.

        Examples
        --------
        >>> feed = ctx.read_iceberg(iceberg, columns=["id"])
        >>> feed.columns, feed.total_rows
        (['id'], 6)
        """
        source = IcebergSource(table, snapshot, catalog, columns=columns, filter=filter, cache_limit=cache_limit)
        return self._read(repr(table), source, cache, order)

    def _read(self, name: str, wanted: ParquetBased, cache: str | None, order: str) -> Feed:
        # Whether they agree on the version of a table shows after this.
        footers = self._file_reader.read_footers(f"ctx.read_{wanted.kind}({name}{wanted.shown()})")
        listed = wanted.find(footers)
        return self._open(f"ctx.read_{wanted.kind}({name}{listed.source.shown()})", listed, cache, order)

    def _open(self, call: str, listed: Listed, cache: str | None, order: str) -> Feed:
        of_all = is_global(order) or listed.mixture is not None
        if of_all and cache is None:
            what = order_of(listed.mixture)
            raise SpecError(f"{what} is for rows that are kept, and with cache=None files are read anew")
        spec, role = self._setup.spec, self._setup.role
        if cache is None and role == spec.chief_role and role not in spec.fed:
            complete = self._file_reader.describe(call, listed)
            feed: Feed = CoordinatedFeed(complete, self._link.feeds.passes, source=listed.source)
        else:
            feed = self._file_reader.read(call, listed, cache, is_global=of_all)
        self._record.note_feed(feed, f"ctx.read_{listed.source.kind}", listed.source.of_table)
        return feed
