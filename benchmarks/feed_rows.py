"""The kinds of rows that the feeding benchmarks feed, made by Spark itself so that every contender gets the same."""

from dataclasses import dataclass, field

HASH = "sha2(cast(id as string), 512)"  # 128 characters that no compression makes small
_RAMP = f"array({', '.join(f'{number % 251 / 250}F' for number in range(251 + 783))})"  # slices of it are rows


def floats(count):
    """Return SQL of ``id`` for an array of float32."""
    return f"slice({_RAMP}, cast(id * {count} % 251 + 1 as int), {count})"


_LABEL = "cast(id % 10 as int) as label"


@dataclass(frozen=True)
class Kind:
    """One kind of row.

    Parameters
    ----------
    title : str
        What the table calls it.
    columns : list of str
        SQL expressions of ``id``.
    rows, old_rows : int
        How many a round feeds, and how many TensorFlowOnSpark 2.2.5 is given.
    row_bytes : int
        What is in a row, on the average.
    shapes : dict
        What a program says about their shapes.
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
        [*(f"cast((id + {number}) % 1009 as float) as x{number}" for number in range(10)), _LABEL],
        6_000_000,
        24_000,
        44,
    ),
    "text": Kind(
        "100 to 1,000 characters + label",
        [f"substr(repeat({HASH}, 8), 1, cast(100 + id * 7919 % 901 as int)) as text", _LABEL],
        1_500_000,
        24_000,
        554,
    ),
}


RDD_ROWS = 240_000  # that a round feeds as an RDD


def rdd_of_lists(spark, rows, partitions):
    """Return an RDD of (list of 784 floats, int), as programs of 2.x had it, that is in Spark's memory."""

    def row(number):  # in here, it goes to the executors by value
        return [(number + each) % 251 / 250 for each in range(784)], number % 10

    rdd = spark.sparkContext.range(rows, numSlices=partitions).map(row).cache()
    assert rdd.count() == rows
    return rdd


def run_all(frame):
    """Have Spark compute all rows of a DataFrame, and keep none."""
    frame.write.format("noop").mode("overwrite").save()


class Frames:
    """Keeps one DataFrame in Spark's memory at a time."""

    def __init__(self, spark):
        self._spark = spark
        self._made = None
        self._frame = None

    def get(self, kind, rows, partitions=8):
        """Return a DataFrame of a kind whose rows are all in Spark's memory."""
        return self.of(KINDS[kind].columns, rows, partitions)

    def of(self, columns, rows, partitions=8):
        """Return a DataFrame of these columns (SQL of ``id``) whose rows are all in Spark's memory."""
        if self._made != (columns, rows, partitions):
            if self._frame is not None:
                self._frame.unpersist(True)
            self._made = columns, rows, partitions
            self._frame = self._spark.range(0, rows, 1, partitions).selectExpr(*columns).cache()
            assert self._frame.count() == rows
        return self._frame
