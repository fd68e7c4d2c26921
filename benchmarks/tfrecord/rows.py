"""The rows of the TFRecord benchmark: SQL for Spark and numpy arrays for TensorFlow, equal to the bit."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from zlib import crc32

import numpy as np

from benchmarks.common.spark import HASH, floats

_SUMS = {  # of a column, in SQL
    "float": "sum(cast({0} as double))",
    "bigint": "cast(sum({0}) as double)",
    "array<float>": "sum(aggregate({0}, 0D, (total, each) -> total + each))",
    "string": "cast(sum(crc32({0})) as double)",
    "binary": "cast(sum(crc32({0})) as double)",
}


@dataclass(frozen=True)
class Column:
    """One column.

    Parameters
    ----------
    name : str
        Its name.
    type : str
        Its type in Spark.
    sql : str
        Its values, of ``id``.
    make : callable
        From an array of ids to an array of the same values; text and bytes are objects.
    """

    name: str
    type: str
    sql: str
    make: Callable[[np.ndarray], np.ndarray]

    def digest(self, values):
        """Return a number that depends on every value."""
        if values.dtype == object:
            return float(sum(map(crc32, values)))
        return float(np.sum(values, dtype=np.float64 if values.dtype == np.float32 else None))


@dataclass(frozen=True)
class Kind:
    """One kind of row.

    Parameters
    ----------
    title : str
        Its name in the tables.
    columns : tuple of Column
        The columns of a row.
    rows, old_rows : int
        Rows of a round: for most contenders, and for TensorFlowOnSpark 2.2.5.
    """

    title: str
    columns: tuple
    rows: int
    old_rows: int

    @property
    def schema(self):
        """Return the columns in Spark's DDL."""
        return ", ".join(f"{column.name} {column.type}" for column in self.columns)

    @property
    def selected(self):
        """Return the columns as SQL expressions of ``id``."""
        return [f"{column.sql} as {column.name}" for column in self.columns]

    @property
    def digest(self):
        """Return SQL for the number of rows, and for a digest of each column."""
        return ["cast(count(*) as double)", *(_SUMS[column.type].format(column.name) for column in self.columns)]


_RAMP = (np.arange(251 + 783) % 251 / 250).astype(np.float32)


def _hashes(ids):
    return [hashlib.sha512(b"%d" % number) for number in ids.tolist()]


def _objects(values):
    made = np.empty(len(values), object)
    made[:] = values
    return made


def _texts(ids):
    lengths = (100 + ids * 7919 % 901).tolist()
    return _objects([(each.hexdigest() * 8)[:size].encode() for each, size in zip(_hashes(ids), lengths, strict=True)])


def _bytes(size):
    times = size // 64 + 1
    sql = f"unhex(substr(repeat({HASH}, {times}), 1, {2 * size}))"
    return sql, lambda ids: _objects([(each.digest() * times)[:size] for each in _hashes(ids)])


def _names(text, count, first=0):
    table = _objects([f"{text} {number}".encode() for number in range(count)])
    return f"concat('{text} ', (id + {first}) % {count})", lambda ids: table[(ids + first) % count]


def _wide():
    for number in range(60):
        yield Column(
            f"f{number}",
            "float",
            f"cast((id + {number}) % 1009 as float)",
            lambda ids, number=number: ((ids + number) % 1009).astype(np.float32),
        )
    for number in range(30):
        yield Column(
            f"i{number}",
            "bigint",
            f"(id * 7919 + {number}) % 100003",
            lambda ids, number=number: (ids * 7919 + number) % 100003,
        )
    for number in range(10):
        yield Column(f"s{number}", "string", *_names("value", 97, number))


_LABEL = Column("label", "bigint", "id % 10", lambda ids: ids % 10)
_FEATURES = Column(
    "features", "array<float>", floats(64), lambda ids: _RAMP[(ids * 64 % 251)[:, np.newaxis] + np.arange(64)]
)
_TEXT = Column("text", "string", f"substr(repeat({HASH}, 8), 1, cast(100 + id * 7919 % 901 as int))", _texts)

KINDS = {
    "narrow": Kind(
        "64 float32, a number and a name",
        (_FEATURES, _LABEL, Column("name", "string", *_names("item", 1000))),
        2_000_000,
        60_000,
    ),
    "wide": Kind("100 columns: 60 float32, 30 int64, 10 texts", tuple(_wide()), 150_000, 12_000),
    "text": Kind("text of 100 to 1,000 characters, label", (_TEXT, _LABEL), 1_000_000, 80_000),
    "image": Kind("784 bytes, label", (Column("image", "binary", *_bytes(784)), _LABEL), 1_000_000, 80_000),
    "large": Kind("10 KB of bytes, label", (Column("image", "binary", *_bytes(10_240)), _LABEL), 100_000, 24_000),
}
