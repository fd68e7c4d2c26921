"""Options of reading and writing files of records, by the names of Spark's own sources."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any

from tensorflowonspark.errors import SpecError

__all__ = ["Compression", "Mode", "Options", "RecordType"]


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


@dataclass(frozen=True)
class Options:
    """The options of ``spark.read.format("tfrecord")`` and ``df.write.format("tfrecord")``.

    Attributes
    ----------
    record_type : RecordType
        ``recordType``: ``Example`` (the default), ``SequenceExample`` or ``ByteArray``.
    mode : Mode
        ``mode``: ``FAILFAST`` (the default), ``PERMISSIVE`` or ``DROPMALFORMED``.
    column_name_of_corrupt_record : str
        ``columnNameOfCorruptRecord``: the column for the reason that a record can't be read, if of type string, or for
        its bytes, if binary.
    float_type : str
        ``floatType``: the type of floats in an inferred schema, ``float`` (the default) or ``double``.
    binary_features : tuple of str
        ``binaryFeatures``: the features, separated by commas, that an inferred schema has as binary even if all their
        values are UTF-8.
    sample_records : int
        ``sampleRecords``: the number of records, over all files, from which a schema is inferred; 0 for all of them.
    split_bytes : int
        ``splitBytes``: the size, in bytes, above which several tasks read a file.
    recursive_file_lookup : bool
        ``recursiveFileLookup``: whether to read all files below a directory, without partition columns.
    compression : Compression
        ``compression`` of written files: ``none`` (the default), ``gzip`` or ``zlib``.
    partition_by : tuple of str
        ``partitionBy``: the columns, separated by commas, whose values become directories.
    max_files_per_trigger : int
        ``maxFilesPerTrigger``: the most files of a micro-batch of a stream, on Spark 4.2 or newer; 0 for all.

    Examples
    --------
    >>> Options.of({"recordType": "ByteArray"}).record_type.value
    'ByteArray'
    >>> Options.of({"recrodType": "ByteArray"})
    Traceback (most recent call last):
        ...
    tensorflowonspark.errors.SpecError: option 'recrodType' is unknown; there are recordType, mode, \
columnNameOfCorruptRecord, floatType, binaryFeatures, sampleRecords, splitBytes, recursiveFileLookup, compression, \
partitionBy, maxFilesPerTrigger
    """

    record_type: RecordType = RecordType.EXAMPLE
    mode: Mode = Mode.FAILFAST
    column_name_of_corrupt_record: str = "_corrupt_record"
    float_type: str = "float"
    binary_features: tuple[str, ...] = ()
    sample_records: int = 10_000
    split_bytes: int = 128 << 20
    recursive_file_lookup: bool = False
    compression: Compression = Compression.NONE
    partition_by: tuple[str, ...] = ()
    max_files_per_trigger: int = 0

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "Options":
        """Return a user's options, whose names match in any case.

        Parameters
        ----------
        given : mapping
            Values by name, as in ``{"recordType": "ByteArray"}``; values may be strings, and None is the default.

        Returns
        -------
        Options
            With the defaults of all other options.

        Raises
        ------
        SpecError
            If a name is unknown or a value is invalid.
        """
        names = {_camel(each.name): each for each in fields(cls)}
        known = {name.lower(): name for name in names}
        values: dict[str, Any] = {}
        for key, value in given.items():
            if value is None or key.lower() in ("path", "paths") or key.startswith("__"):
                continue
            if key.lower() not in known:
                raise SpecError(f"option {key!r} is unknown; there are {', '.join(names)}")
            name = known[key.lower()]
            values[names[name].name] = _value(name, names[name].default, value)
        options = cls(**values)
        if options.float_type not in ("float", "double"):
            raise SpecError(f"option floatType={options.float_type!r}: expected float or double")
        return options


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
        if not text.isdigit():
            raise SpecError(f"option {name}={text!r}: expected a whole number")
        return int(text)
    if isinstance(default, tuple):
        if isinstance(given, (list, tuple)):
            return tuple(given)
        return tuple(each.strip() for each in text.split(",") if each.strip())
    return text
