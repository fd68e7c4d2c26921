"""What a user says about files of records, by the names of Spark's own sources."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any

from tensorflowonspark.errors import SpecError

__all__ = ["Compression", "Mode", "Options", "RecordType"]


class RecordType(Enum):
    """What a record is."""

    EXAMPLE = "Example"
    SEQUENCE_EXAMPLE = "SequenceExample"
    BYTE_ARRAY = "ByteArray"  # anything: the record's bytes are the column "byteArray"


class Mode(Enum):
    """What becomes of a record that can't be read, as in Spark's own sources."""

    FAILFAST = "FAILFAST"  # an error, with file and offset
    PERMISSIVE = "PERMISSIVE"  # a row of nulls, and the reason in a column of its own
    DROPMALFORMED = "DROPMALFORMED"  # no row; how many there were is in the executor's log


class Compression(Enum):
    """How a file that is written is compressed; one that is read says so itself."""

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
        ``columnNameOfCorruptRecord``: a column of this name, of type string or binary, is given the reason why a record
        can't be read, or its bytes.
    float_type : str
        ``floatType``: what floats become where the schema is inferred, ``float`` (the default) or ``double``.
    binary_features : tuple of str
        ``binaryFeatures``: names, separated by commas, of bytes that are no text, whatever they look like.
    sample_records : int
        ``sampleRecords``: how many records are looked at to infer the schema, over all files; 0 for all of them.
    split_bytes : int
        ``splitBytes``: files that are longer than this are read by several tasks, in bytes.
    recursive_file_lookup : bool
        ``recursiveFileLookup``: all files below a directory, whose names are no partition columns then.
    compression : Compression
        ``compression``: ``none`` (the default), ``gzip`` or ``zlib``, for files that are written.
    partition_by : tuple of str
        ``partitionBy``: columns, separated by commas, whose values become directories instead.
    max_files_per_trigger : int
        ``maxFilesPerTrigger``: how many files a micro-batch of a stream has at the most, on Spark 4.2 or newer; 0 for
        all that are there.

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
        """Return the options that a user gives; case does not matter.

        Raises
        ------
        SpecError
            If one is unknown, or can't have its value.
        """
        names = {_camel(each.name): each for each in fields(cls)}
        known = {name.lower(): name for name in names}
        values: dict[str, Any] = {}
        for key, value in given.items():
            if key.lower() in ("path", "paths") or key.startswith("__"):
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
