"""The verbs on DataFrames, with functions of all kinds."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from pyspark.sql import functions as f

import tensorflowonspark as tfos
from tensorflowonspark import frames

pytestmark = pytest.mark.masters("local")


def numbers(spark, rows=100, partitions=2):
    """Columns ``id``, ``x`` (double) and ``v`` (two floats)."""
    frame = spark.range(0, rows, 1, partitions)
    return frame.select(
        "id", f.col("id").cast("double").alias("x"), f.expr("array(float(id), float(2 * id))").alias("v")
    )


def ragged(spark):
    return spark.createDataFrame(
        [(1, [1.0], [[1], [2, 3]]), (2, [1.0, 2.0, 3.0], [[4]]), (3, [], [[], [5]])],
        "id long, a array<float>, b array<array<int>>",
    ).repartition(2)


def by_id(frame, *names):
    return [tuple(row[name] for name in names) for row in frame.orderBy("id").collect()]


@tf.function
def graph(x, v):
    return {"y": 2.0 * x, "w": tf.reduce_sum(v, axis=-1)}


def plain(x, v):
    return {"y": 2.0 * x, "w": np.sum(v, axis=-1)}


DECORATED = pytest.mark.parametrize(
    "decorate",
    [tf.function, pytest.param(lambda function: function, marks=pytest.mark.slow)],
    ids=["graph", "plain"],
)
EXPECTED = [(float(number) * 2, float(number) * 3) for number in range(100)]


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("function", "verb"),
    [
        (graph, frames.map_blocks),
        (plain, frames.map_rows),
        pytest.param(graph, frames.map_rows, marks=pytest.mark.slow),
        pytest.param(plain, frames.map_blocks, marks=pytest.mark.slow),
    ],
)
def test_maps_add_columns(spark, verb, function):
    data = numbers(spark)
    mapped = verb(function, data)
    assert mapped.columns == ["id", "x", "v", "y", "w"]
    assert mapped.schema["y"].dataType.simpleString() == "double"
    assert mapped.schema["w"].dataType.simpleString() == "float"
    assert by_id(mapped, "y", "w") == EXPECTED
    assert by_id(verb(function, frames.analyze(data)), "y", "w") == EXPECTED
    assert by_id(mapped.where("id < 5"), "y", "w") == EXPECTED[:5]


def test_concrete_functions_bring_their_types(spark):
    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="x")])
    def half(x):
        return x / 2.0

    for function in (half, half.get_concrete_function()):
        mapped = frames.map_blocks(function, numbers(spark))
        assert mapped.dtypes[-1][1] == "float"
        assert mapped.orderBy("id").collect()[7][-1] == 3.5


def test_functions_with_variables_and_tables(spark):
    class Scorer(tf.Module):
        def __init__(self):
            self.scale = tf.Variable(3.0)
            keys = tf.lookup.KeyValueTensorInitializer(["a", "b"], tf.constant([1.0, 2.0]))
            self.table = tf.lookup.StaticHashTable(keys, -1.0)

        @tf.function
        def score(self, word):
            return self.scale * self.table.lookup(word)

    data = spark.createDataFrame([(0, "a"), (1, "b"), (2, "c")], "id long, word string")
    scorer = Scorer()
    assert by_id(frames.map_blocks(scorer.score, data), "score") == [(3.0,), (6.0,), (-3.0,)]
    free = tf.Variable([1.0, 10.0])
    weighted = tf.function(lambda v: {"total": tf.linalg.matvec(v, free)})
    assert by_id(frames.map_blocks(weighted, numbers(spark, 3)), "total") == [(0.0,), (21.0,), (42.0,)]


@pytest.mark.smoke
@pytest.mark.parametrize("verb", [frames.map_blocks, pytest.param(frames.map_rows, marks=pytest.mark.slow)])
def test_keras_models(spark, verb):
    inputs = [keras.Input((2,), name="v"), keras.Input((), name="x")]
    summed = keras.ops.sum(inputs[0], axis=-1) + inputs[1]
    model = keras.Model(inputs, {"total": summed, "pair": keras.ops.stack([summed, summed], axis=-1)})
    mapped = verb(model, numbers(spark))
    assert mapped.dtypes[3:] == [("total", "float"), ("pair", "array<float>")]
    assert by_id(mapped, "total", "pair")[2] == (8.0, [8.0, 8.0])


@pytest.mark.slow
def test_trimmed_blocks_give_any_number_of_rows(spark):
    function = tf.function(
        lambda x: {"least": tf.reduce_min(x, keepdims=True), "most": tf.reduce_max(x, keepdims=True)}
    )
    mapped = frames.map_blocks(function, numbers(spark, 90, 3), trim=True)
    assert sorted(map(tuple, mapped.collect())) == [(0.0, 29.0), (30.0, 59.0), (60.0, 89.0)]
    with pytest.raises(Exception, match="30 rows went in, and 1 values came out"):
        frames.map_blocks(function, numbers(spark, 90, 3)).collect()


@DECORATED
def test_ragged_rows(spark, decorate):
    doubled = decorate(lambda a: {"n": tf.size(a), "twice": tf.concat([a, a], 0)})
    mapped = frames.map_rows(doubled, ragged(spark))
    assert by_id(mapped, "n", "twice") == [(1, [1.0, 1.0]), (3, [1.0, 2.0, 3.0, 1.0, 2.0, 3.0]), (0, [])]


@pytest.mark.slow
def test_rows_of_nested_arrays_are_ragged_tensors(spark):
    flat = tf.function(lambda b: {"flat": b.flat_values, "sums": tf.reduce_sum(b, axis=-1)})
    mapped = frames.map_rows(flat, ragged(spark))
    assert by_id(mapped, "flat", "sums") == [([1, 2, 3], [1, 5]), ([4], [4]), ([5], [0, 5])]


@pytest.mark.slow
def test_parameters_can_have_other_names(spark):
    mapped = frames.map_blocks(lambda a, b: {"product": a * b}, numbers(spark, 4), feed_dict={"a": "id", "b": "x"})
    assert by_id(mapped, "product") == [(0.0,), (1.0,), (4.0,), (9.0,)]
    swapped = frames.map_blocks(lambda v, x: {"d": v - 2 * x}, numbers(spark, 4), feed_dict={"v": "x", "x": "id"})
    assert by_id(swapped, "d") == [(0.0,), (-1.0,), (-2.0,), (-3.0,)]


def test_strings_and_declared_results(spark):
    data = spark.createDataFrame([(0, "a"), (1, "bc")], "id long, s string")
    mapped = frames.map_rows(lambda s: {"upper": s.upper(), "n": len(s)}, data)
    assert mapped.dtypes[2:] == [("upper", "string"), ("n", "bigint")]
    assert by_id(mapped, "upper", "n") == [("A", 1), ("BC", 2)]
    declared = frames.map_rows(lambda s: {"letters": [ord(c) for c in s]}, data, schema="letters array<int>")
    assert by_id(declared, "letters") == [([97],), ([98, 99],)]
    assert frames.map_blocks(tf.function(lambda s: {"t": tf.strings.upper(s)}), data).dtypes[2] == ("t", "binary")


SUM_BLOCKS = lambda v, x_input: {"v": tf.reduce_sum(v, 0), "x": tf.reduce_sum(x_input)}  # noqa: E731
SUM_ROWS = lambda v_1, v_2, x_1, x_2: {"v": v_1 + v_2, "x": x_1 + x_2}  # noqa: E731


@DECORATED
@pytest.mark.parametrize("rows", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_reductions(spark, rows, decorate):
    data = numbers(spark, rows, 3).repartition(4)  # some partitions have no row
    total = sum(range(rows))
    for verb, function in ((frames.reduce_blocks, SUM_BLOCKS), (frames.reduce_rows, SUM_ROWS)):
        found = verb(decorate(function), data)
        assert found["v"].tolist() == [total, 2 * total]
        assert found["v"].dtype == np.float32
        assert found["x"] == total


@pytest.mark.slow
def test_reduction_of_one_column_is_its_value(spark):
    assert frames.reduce_blocks(lambda x_input: np.max(x_input), numbers(spark)) == 99.0
    assert frames.reduce_rows(tf.function(lambda id_1, id_2: tf.maximum(id_1, id_2)), numbers(spark)) == 99
    with pytest.raises(tfos.FeedError, match="no row to reduce"):
        frames.reduce_blocks(lambda x: np.max(x), numbers(spark).where("id < 0"))


@pytest.mark.smoke
def test_groups_are_aggregated(spark):
    grouped = numbers(spark).withColumn("key", f.col("id") % 3).groupBy("key", (f.col("id") % 2 == 0).alias("even"))
    for function in (tf.function(lambda v: tf.reduce_sum(v, 0)), lambda v: v.sum(axis=0)):
        found = frames.aggregate(function, grouped)
        assert found.dtypes == [("key", "bigint"), ("even", "boolean"), ("v", "array<float>")]
        sums = {(row.key, row.even): row.v for row in found.collect()}
        for (key, even), value in sums.items():
            total = sum(n for n in range(100) if n % 3 == key and (n % 2 == 0) == even)
            assert value == [total, 2 * total]
        assert len(sums) == 6


def test_analyze_and_append_shape(spark, capsys):
    frames.print_schema(frames.analyze(ragged(spark)))
    assert capsys.readouterr().out.splitlines() == [
        "root",
        " |-- id: bigint int64[]",
        " |-- a: array<float> float32[?]",
        " |-- b: array<array<int>> int32[?,?]",
    ]
    frames.print_schema(frames.analyze(numbers(spark)).select("v"))
    assert capsys.readouterr().out.endswith("v: array<float> float32[2]\n")
    said = frames.append_shape(numbers(spark), "v", [3])
    with pytest.raises(Exception, match=r"column 'v' holds 2 values in each row"):
        frames.map_blocks(lambda v: {"y": v}, said).collect()
    with pytest.raises(tfos.SpecError, match=r"one value of the column has 1 dimension"):
        frames.append_shape(numbers(spark), "v", [3, 3])


def test_lengths_that_a_function_needs(spark):
    weights = np.ones((2, 4), np.float32)
    with pytest.raises(tfos.SpecError, match=r"tried on two rows of ones .v: float32\[\?\].*analyze"):
        frames.map_blocks(lambda v: {"y": v @ weights}, numbers(spark))
    known = frames.analyze(numbers(spark))
    assert by_id(frames.map_blocks(lambda v: {"y": v @ weights}, known), "y")[2] == ([6.0] * 4,)


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("verb", "function", "told"),
    [
        (frames.map_blocks, lambda z: z, r"parameter 'z', and the DataFrame no such column; it has \['id'"),
        (frames.map_blocks, lambda *columns: columns, r"takes \*columns"),
        (frames.map_blocks, lambda x: (x, x), "2 results without names"),
        (frames.map_blocks, lambda x: {"id": x}, "returns a column 'id', which the DataFrame has already"),
        (frames.map_blocks, tf.function(lambda v: {"y": tf.linalg.matvec(v, [1.0])[:, 1:2, 3]}), "can't be traced"),
        (frames.map_blocks, 7, "expected a tf.function, a Keras model or a plain function"),
        (frames.reduce_rows, lambda x, v_1: x, r"f\(x_1, x_2\)"),
        (frames.reduce_blocks, lambda x: {"y": x}, r"it takes \['x'\] and returns \['y'\]"),
        (
            frames.reduce_blocks,
            tf.function(lambda x: tf.reduce_sum(tf.cast(x, tf.float32))),
            "reduces it to float32",
        ),
        (
            frames.reduce_blocks,
            keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]),
            "it can map, but not reduce",
        ),
    ],
)
def test_what_does_not_fit_is_refused_at_once(spark, verb, function, told):
    with pytest.raises(tfos.SpecError, match=told):
        verb(function, numbers(spark))


def test_errors_name_the_row(spark):
    data = spark.createDataFrame([(1, [1.0, 2.0]), (2, [1.0])], "id long, a array<float>").coalesce(1)
    with pytest.raises(Exception, match=r"arrays of different lengths .1 to 2 values.*row 1 of partition 0: \[1.0\]"):
        frames.map_blocks(lambda a: {"y": a}, data).collect()
    nulls = spark.createDataFrame([(1, None)], "id long, a double")
    with pytest.raises(Exception, match=r"column 'a' holds 1 null, the first in row 0 of partition \d"):
        frames.map_rows(lambda a: {"y": a}, nulls).collect()
    assert by_id(frames.map_rows(lambda a: {"y": a + 1}, nulls, fill={"a": 0}), "y") == [(1.0,)]
    with pytest.raises(Exception, match=r"in the group {'id': 1}"):
        frames.aggregate(lambda a: np.sum(a), nulls.groupBy("id")).collect()
