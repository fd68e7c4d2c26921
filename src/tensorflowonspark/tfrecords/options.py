"""Options of reading and writing files of records, by the names of Spark's own sources."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any

from tensorflowonspark import storage
from tensorflowonspark.errors import SpecError, did_you_mean
from tensorflowonspark.feed_messages import parse_bytes
from tensorflowonspark.storage import listing
from tensorflowonspark.storage.hadoop import TIME_ZONE
from tensorflowonspark.storage.listing import Listing


class RecordType(Enum):
    """The format of a record."""

    EXAMPLE = "Example"
    SEQUENCE_EXAMPLE = "SequenceExample"
    BYTE_ARRAY = "ByteArray"  # any bytes, as the column "byteArray"


class Mode(Enum):
    """The treatment of records that can't be read, as in Spark's own sources."""

    FAILFAST = "FAILFAST"  # raise an error with file and offset
    PERMISSIVE = "PERMISSIVE"  # return a row of nulls, with the reason in a separate column
    DROPMALFORMED = "DROPMALFORMED"  # return no row, and log the number of such records on the executor


class Compression(Enum):
    """The compression of written files; that of read files is detected."""

    NONE = "none"
    GZIP = "gzip"
    ZLIB = "zlib"


class OverwriteMode(Enum):
    """What an overwrite of a directory with partition columns replaces."""

    STATIC = "static"  # all of it
    DYNAMIC = "dynamic"  # the partitions that are written


MAX_RECORD_BYTES = 64 << 20  # of which the oddest takes 2.5 GB of a node or a task, and a usual one 0.5 GB

# The settings of Spark's session that its own file sources obey, with the option that each is the default of.
SETTINGS = {
    **listing.SETTINGS,
    "spark.sql.columnNameOfCorruptRecord": "column_name_of_corrupt_record",
    "spark.sql.files.ignoreCorruptFiles": "ignore_corrupt_files",
    "spark.sql.files.ignoreMissingFiles": "ignore_missing_files",
    "spark.sql.files.maxPartitionBytes": "split_bytes",
    "spark.sql.files.maxRecordsPerFile": "max_records_per_file",
    TIME_ZONE: "time_zone",
    "spark.sql.sources.partitionOverwriteMode": "partition_overwrite_mode",
}


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """The options that functions which read take by name. None is the default.

    Those of ``spark.read.format("tfrecord")`` are the same in Spark's form: ``recordType`` for ``record_type``.
    `Options` has them in the form in which they are used. After a change run ``make keywords``.

    Parameters
    ----------
    record_type : {"Example", "SequenceExample", "ByteArray"}, optional
        The format of the records. By default ``Example``. The feature lists of a ``SequenceExample`` are arrays of
        arrays. ``ByteArray`` reads any records, as the binary column ``byteArray``.
    mode : {"FAILFAST", "PERMISSIVE", "DROPMALFORMED"}, optional
        The treatment of records that can't be read: a `TFRecordError` (the default), a row of nulls, or no row.
    column_name_of_corrupt_record : str, optional
        The column of `schema` for the reason that a record can't be read, or for its bytes if the column is binary. By
        default ``_corrupt_record``.
    float_type : {"float", "double"}, optional
        The type of floats in an inferred schema. By default ``float``.
    binary_features : str or sequence of str, optional
        Features that an inferred schema has as binary even if all their values are UTF-8.
    sample_records : int, optional
        The number of records from which the schema is inferred; 0 for all. By default 10,000.
    split_bytes : int, optional
        The size in bytes above which several tasks read a file. By default 128 MiB.
    recursive_file_lookup : bool, optional
        Whether to read all files below a directory, without partition columns. By default False.
    max_record_bytes : int or str, optional
        The most bytes of a record, by default 64 MiB; what is left of a file from a longer one on can't be read.
    path_glob_filter : str, optional
        A wildcard that the names of files must match, as ``"*.gz"``.
    modified_after, modified_before : str, optional
        Read only files that were written later, or earlier, than a time such as ``2026-11-25T08:00:00``.
    time_zone : str, optional
        The time zone of these times and of partition columns. By default the session's, else the machine's.
    base_path : str, optional
        The directory below which names of directories are partition columns. By default each path.
    partition_column_type_inference : bool, optional
        Whether partition columns have a type that all their values fit, or are text. By default True.
    ignore_invalid_partition_paths : bool, optional
        Whether files outside of partition directories, beside some, are left out. By default False.
    ignore_corrupt_files : bool, optional
        Whether what can't be read of a damaged file is left out, and logged on the executor. By default False.
    ignore_missing_files : bool, optional
        Whether files that went after they were listed are left out, and logged. By default False.
    case_sensitive : bool, optional
        Whether the features of a given schema are found only if the case of letters matches. By default False.
    """

    record_type: str | None = None
    mode: str | None = None
    column_name_of_corrupt_record: str | None = None
    float_type: str | None = None
    binary_features: str | Sequence[str] | None = None
    sample_records: int | None = None
    split_bytes: int | None = None
    recursive_file_lookup: bool | None = None
    max_record_bytes: int | str | None = None
    path_glob_filter: str | None = None
    modified_after: str | None = None
    modified_before: str | None = None
    time_zone: str | None = None
    base_path: str | None = None
    partition_column_type_inference: bool | None = None
    ignore_invalid_partition_paths: bool | None = None
    ignore_corrupt_files: bool | None = None
    ignore_missing_files: bool | None = None
    case_sensitive: bool | None = None


@dataclass(frozen=True)
class Options:
    """The options of ``spark.read.format("tfrecord")`` and ``df.write.format("tfrecord")``.

    Those of reading are described at `ReadOptions`. Names match in any case, with underscores or without.

    Examples
    --------
    >>> Options.of({"recordType": "ByteArray"}).record_type.value
    'ByteArray'
    >>> Options.of({"recrodType": "ByteArray"})
    Traceback (most recent call last):
        ...
    tensorflowonspark.errors.SpecError: option 'recrodType' is unknown (did you mean 'recordType'?); there are \
recordType, mode, columnNameOfCorruptRecord, floatType, binaryFeatures, sampleRecords, splitBytes, \
maxRecordBytes, compression, partitionBy, partitionOverwriteMode, maxRecordsPerFile, recursiveFileLookup, \
pathGlobFilter, modifiedAfter, modifiedBefore, timeZone, basePath, partitionColumnTypeInference, \
ignoreInvalidPartitionPaths, ignoreCorruptFiles, ignoreMissingFiles, caseSensitive, maxFilesPerTrigger, \
maxBytesPerTrigger
    """

    record_type: RecordType = RecordType.EXAMPLE
    mode: Mode = Mode.FAILFAST
    column_name_of_corrupt_record: str = "_corrupt_record"
    float_type: str = "float"
    binary_features: tuple[str, ...] = ()
    sample_records: int = 10_000
    split_bytes: int = 128 << 20
    max_record_bytes: int = MAX_RECORD_BYTES
    compression: Compression = Compression.NONE  # of written files
    partition_by: tuple[str, ...] = ()  # columns whose values become directories; given separated by commas
    partition_overwrite_mode: OverwriteMode = OverwriteMode.STATIC
    max_records_per_file: int = 0  # 0 for any number
    recursive_file_lookup: bool = False
    path_glob_filter: str = ""
    modified_after: str = ""
    modified_before: str = ""
    time_zone: str = ""
    base_path: str = ""
    partition_column_type_inference: bool = True
    ignore_invalid_partition_paths: bool = False
    ignore_corrupt_files: bool = False
    ignore_missing_files: bool = False
    case_sensitive: bool = False
    max_files_per_trigger: int = 0  # of a micro-batch of a stream, on Spark 4.2 or newer; 0 for all
    max_bytes_per_trigger: int = 0

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "Options":
        """Return a user's options; the defaults are the settings of Spark's session.

        Values may be strings, and None is the default: `SETTINGS`, as they came here with those of file systems. Raises
        SpecError if a name is unknown, a value is invalid, or the session has a setting that is not supported.
        """
        names = {_camel(each.name): each for each in fields(cls)}
        known = {name.lower(): each for name, each in names.items()}
        session = storage.settings()
        listing.check_settings("TFRecord")
        values: dict[str, Any] = {}
        defaults = [(_camel(field), session[name]) for name, field in SETTINGS.items() if name in session]
        for key, value in [*defaults, *given.items()]:
            if value is None or key.lower() in ("path", "paths") or key.startswith("__"):
                continue
            option = known.get(key.lower().replace("_", ""))
            if option is None:
                there = [each.name for each in names.values()] if "_" in key else list(names)
                meant = did_you_mean(key, [*there, "schema", "columns"])
                raise SpecError(f"option {key!r} is unknown{meant}; there are {', '.join(there)}")
            shown = key if "_" in key else _camel(option.name)  # Spark makes all letters small
            values[option.name] = _value(shown, option.default, value)
        options = cls(**values)
        if options.float_type not in ("float", "double"):
            raise SpecError(f"option floatType={options.float_type!r}: expected float or double")
        options.listing.times()  # raises the error of a wrong one
        return options

    @property
    def listing(self) -> Listing:
        """Those that concern which files are read."""
        return Listing(**{each.name: getattr(self, each.name) for each in fields(Listing)})


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(other.capitalize() for other in others)


def _value(name: str, default: Any, given: Any) -> Any:
    """Return an option's value in the type of its default; Spark's options are strings."""
    text = str(given).strip()
    if isinstance(default, Enum):
        choices = {each.value.lower(): each for each in type(default)}
        if text.lower() not in choices:
            expected = ", ".join(each.value for each in choices.values())
            raise SpecError(f"option {name}={text!r}: expected one of {expected}")
        return choices[text.lower()]
    if isinstance(default, bool):
        if text.lower() not in ("true", "false"):
            raise SpecError(f"option {name}={text!r}: expected true or false")
        return text.lower() == "true"
    if isinstance(default, int):
        return _number(name, text)
    if isinstance(default, tuple):
        if isinstance(given, (list, tuple)):
            return tuple(given)
        return tuple(each.strip() for each in text.split(",") if each.strip())
    return text


def _number(name: str, text: str) -> int:
    if "bytes" in name.lower():
        return parse_bytes(f"option {name}", text)
    if not text.isdigit():
        raise SpecError(f"option {name}={text!r}: expected a whole number")
    return int(text)


# Keywords of functions in the form of Spark's options, as they were.
OLD_KEYWORDS = {_camel(each.name): each.name for each in fields(ReadOptions) if _camel(each.name) != each.name}
