"""A column of each of Spark's types that a model takes, with the values that it stands for."""

from pyspark.ml.linalg import Matrices, Vectors
from pyspark.sql import functions as f

ROWS = 12
# By the type: the column in SQL, of `id`; what a program in plain Keras would give its input for each row; its shape.
TAKEN = {
    "boolean": ("id % 2 = 0", lambda i: i % 2 == 0, ()),
    "byte": ("cast(id - 5 as byte)", lambda i: i - 5, ()),
    "short": ("cast(id - 5 as short)", lambda i: i - 5, ()),
    "int": ("cast(id - 5 as int)", lambda i: i - 5, ()),
    "long": ("id - 5", lambda i: i - 5, ()),
    "float": ("cast(id / 4 as float)", lambda i: i / 4, ()),
    "double": ("cast(id / 4 as double)", lambda i: i / 4, ()),
    "decimal": ("cast(id / 4 as decimal(10, 2))", lambda i: i / 4, ()),
    "string": ("if(id % 2 = 0, 'a', 'b')", lambda i: "ab"[i % 2], ()),
    "char, varchar": ("cast(if(id % 2 = 0, 'a', 'b') as string)", lambda i: "ab"[i % 2], ()),
    "array<string>": ("array('a', if(id % 2 = 0, 'a', 'b'))", lambda i: ["a", "ab"[i % 2]], (2,)),
    "binary, as numbers": ("unhex(concat('0', id % 9, '0a'))", lambda i: [i % 9, 10], (2,)),
    "date: days": ("date_add(date'1970-01-01', cast(id as int))", lambda i: i, ()),
    "timestamp: microseconds": ("timestamp_micros(id * 3)", lambda i: i * 3, ()),
    "timestamp_ntz: microseconds": ("timestamp_ntz'1970-01-01' + make_dt_interval(0, 0, 0, id * 0.000003)",
                                    lambda i: i * 3, ()),
    "interval day to second: microseconds": ("make_dt_interval(0, 0, 0, cast(id as decimal(18,6)) / 1000000)",
                                             lambda i: i, ()),
    "array<float>": ("array(cast(id as float), 1.0f)", lambda i: [i, 1.0], (2,)),
    "array<array<int>>": ("array(array(cast(id as int), 1), array(2, 3))", lambda i: [[i, 1], [2, 3]], (2, 2)),
    "vector, dense": ("dense", lambda i: [i, 0.5, 0.0], (3,)),
    "vector, sparse": ("sparse", lambda i: [0.0, i, 0.0], (3,)),
    "vector, dense and sparse": ("mixed", lambda i: [i, 0.5, 0.0] if i % 2 else [0.0, i, 0.0], (3,)),
}  # fmt: skip


def source(spark):
    """Return the rows of which the columns are made."""
    rows = [(i, Vectors.dense(i, 0.5, 0.0), Vectors.sparse(3, {1: i}), Matrices.dense(1, 1, [i])) for i in range(ROWS)]
    frame = spark.createDataFrame(rows, ["id", "dense", "sparse", "matrix"]).repartition(2, "id")
    return frame.withColumn("mixed", f.expr("if(id % 2 = 1, dense, sparse)")).withColumn("y", f.col("id") / 10)
