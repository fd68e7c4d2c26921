"""The kinds of rows that the feed benchmark feeds. Spark makes them, the same for every contender."""

from dataclasses import dataclass, field

from benchmarks.common.spark import HASH, floats

_LABEL = "cast(id % 10 as int) as label"
_TEXT = f"substr(repeat({HASH}, 8), 1, cast(100 + id * 7919 % 901 as int)) as text"
_RAGGED = "array_repeat(cast(id % 1009 as float), cast(id * 7919 % 20 as int)) as list"


def number_columns(count, *types):
    """Return SQL of columns of numbers, of these types in turn."""
    return [f"cast((id + {each}) % 101 as {types[each % len(types)]}) as x{each}" for each in range(count)]


@dataclass(frozen=True)
class Kind:
    """One kind of row.

    Parameters
    ----------
    title : str
        Its name in the tables.
    columns : list of str
        SQL expressions of ``id``.
    rows, old_rows : int
        How many a round feeds to our contenders, and how many to TensorFlowOnSpark 2.2.5, which is slower.
    row_bytes : int
        The bytes of a row, on average.
    shapes : dict
        The shapes that a program declares, by column.
    """

    title: str
    columns: list
    rows: int
    old_rows: int
    row_bytes: int
    shapes: dict = field(default_factory=dict)


KINDS = {
    "floats": Kind(
        "784 float32 + label",
        [f"{floats(784)} as features", _LABEL],
        500_000,
        9_000,
        3_140,
    ),
    "bytes": Kind(
        "784 bytes + label",
        [f"unhex(substr(repeat({HASH}, 13), 1, 1568)) as image", _LABEL],
        2_000_000,
        24_000,
        788,
        {"image": (28, 28, 1)},
    ),
    "columns": Kind(
        "10 float columns + label",
        [*number_columns(10, "float"), _LABEL],
        6_000_000,
        24_000,
        44,
    ),
    "100 columns": Kind("100 float columns + label", [*number_columns(100, "float"), _LABEL], 600_000, 9_000, 404),
    "mixed": Kind(
        "12 columns of six types of numbers + label",
        [*number_columns(12, "float", "double", "bigint", "int", "smallint", "tinyint"), _LABEL],
        4_000_000,
        24_000,
        58,
    ),
    "ragged": Kind(
        "lists of 0 to 19 float32 + label",
        [_RAGGED, _LABEL],
        1_500_000,
        24_000,
        46,
        {"list": (None,)},
    ),
    "all": Kind(
        "10 float columns, text, lists + label",
        [*number_columns(10, "float"), _TEXT, _RAGGED, _LABEL],
        500_000,
        9_000,
        636,
        {"list": (None,)},
    ),
    "text": Kind(
        "100 to 1,000 characters + label",
        [_TEXT, _LABEL],
        1_500_000,
        24_000,
        554,
    ),
}

STREAM_ROWS = 640_000_000 // KINDS["floats"].row_bytes  # of the memory part
FIT_ROWS = 60_000
RDD_ROWS = 240_000


def rdd_of_lists(spark, rows, partitions):
    """Return an RDD of (list of 784 floats, int) in Spark's memory, as programs of 2.x feed it."""

    def row(number):  # a nested function is pickled by value: the executors can't import this module
        return [(number + each) % 251 / 250 for each in range(784)], number % 10

    rdd = spark.sparkContext.range(rows, numSlices=partitions).map(row).cache()
    assert rdd.count() == rows
    return rdd
