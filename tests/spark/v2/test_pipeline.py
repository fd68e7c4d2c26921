"""`TFModel` of 2.x: results of a SavedModel, and refusals."""

import warnings

import numpy as np
import pytest
from pyspark.ml.functions import array_to_vector
from pyspark.sql import Row
from pyspark.sql import functions as f

import tensorflowonspark as tfos
from tensorflowonspark.pipeline import TFModel

pytestmark = [pytest.mark.masters("local"), pytest.mark.timeout(180)]


# ---- SavedModels


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A SavedModel with an output of each kind, of which some have names that sort differently from their columns."""
    import tensorflow as tf

    class Many(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec((None, 2, 2), tf.float32, name="square")])
        def kinds(self, square):
            total = tf.reduce_sum(square, [1, 2])
            return {
                "zero": total * 0,
                "middle": tf.cast(total, tf.int64),
                "again": square * 2,
                "one": total[:, None],
                "text": tf.strings.as_string(total, precision=1),
                "texts": tf.strings.as_string(square[:, 0], precision=1),
                "truth": total > 1,
                "double": tf.cast(total, tf.float64),
            }

        @tf.function(input_signature=[tf.TensorSpec((None,), name="a"), tf.TensorSpec((None, 1), tf.string, name="b")])
        def two(self, a, b):
            return {"told": tf.strings.join([tf.strings.as_string(a, precision=0), b[:, 0]])}

        @tf.function(input_signature=[tf.TensorSpec((None, 2, 2), tf.float32, name="square")])
        def other(self, square):
            return {"again": square * 3}

        @tf.function(input_signature=[tf.TensorSpec((None, None), tf.float32, name="numbers")])
        def varying(self, numbers):
            return {"sum": tf.reduce_sum(numbers, 1)}

    path, model = str(tmp_path_factory.mktemp("saved")), Many()
    signatures = {"serving_default": model.kinds, "two": model.two, "other": model.other, "varying": model.varying}
    tf.saved_model.save(model, path, signatures)
    return path


def applying(path, taken, given, **params):
    stage = TFModel({}).setInputMapping(taken).setOutputMapping(given).setExportDir(path)
    stage._set(**params)
    return stage


def squares(spark, rows=3, partitions=1):
    """Return flat arrays of four numbers, and other columns."""
    numbers = [(f.col("id") + k).cast("float") for k in range(4)]
    return spark.range(0, rows, 1, partitions).select("id", f.array(*numbers).alias("x"), f.lit("?").alias("pred"))


@pytest.mark.smoke
def test_only_the_wanted_columns_come_each_with_its_own_tensor(spark, exported):
    wanted = {"zero": "a", "middle": "c", "again": "b", "text": "x"}
    answered = applying(exported, {"x": "square"}, wanted, batch_size=2).transform(squares(spark))
    assert answered.dtypes == [("b", "array<array<float>>"), ("c", "bigint"), ("x", "binary"), ("a", "float")]
    for number, row in enumerate(answered.collect()):
        total = 4 * number + 6
        assert row.b == [[2.0 * number, 2.0 * number + 2], [2.0 * number + 4, 2.0 * number + 6]]
        assert (row.c, bytes(row.x), row.a) == (total, f"{total}.0".encode(), 0.0)


@pytest.mark.slow
def test_older_sparks_give_the_same(spark, exported, monkeypatch):
    monkeypatch.delattr("pyspark.sql.functions.arrow_udf", raising=False)
    answered = applying(exported, {"x": "square"}, {"middle": "x", "double": "pred"}).transform(squares(spark, 5, 2))
    assert sorted(map(tuple, answered.collect())) == [(4.0 * n + 6, 4 * n + 6) for n in range(5)]


def test_each_column_has_its_tensors_type(spark, exported):
    types = {
        "one": "array<float>", "text": "binary", "texts": "array<binary>", "truth": "boolean", "double": "double",
    }  # fmt: skip
    answered = applying(exported, {"x": "square"}, {name: name for name in types}).transform(squares(spark, 1))
    assert dict(answered.dtypes) == types
    row = answered.first()
    assert (row.one, row.truth, row.double) == ([6.0], True, 6.0)
    assert [bytes(row.text), *map(bytes, row.texts)] == [b"6.0", b"0.0", b"1.0"]


@pytest.mark.slow
def test_values_are_put_into_the_shape_of_their_tensor(spark, exported):
    stage = applying(exported, {"x": "square"}, {"again": "twice"})
    for data in (
        squares(spark, 1).select(f.array(f.slice("x", 1, 2), f.slice("x", 3, 2)).alias("x")),
        squares(spark, 1).select(f.col("x").cast("array<int>")),
        squares(spark, 1).select(array_to_vector("x").alias("x")),
        squares(spark, 1).select(f.unhex(f.lit("00010203")).alias("x")),
    ):
        assert stage.transform(data).first().twice == [[0.0, 2.0], [4.0, 6.0]]


def test_several_columns_and_single_values(spark, exported):
    stage = applying(exported, {"q": "b", "p": "a"}, {"told": "t"}, signature_def_key="two")
    data = spark.createDataFrame(
        [(b"\xff\x00", 1.0, [2.0], ["z"])], "q binary, p float, one array<float>, words array<string>"
    )
    assert bytes(stage.transform(data).first().t) == b"1\xff\x00"
    assert bytes(stage.transform(data.withColumn("q", f.lit("ö"))).first().t) == "1ö".encode()
    assert bytes(stage.setInputMapping({"words": "b", "one": "a"}).transform(data).first().t) == b"2z"


@pytest.mark.slow
def test_signatures_of_one_model_are_distinguished(spark, exported):
    data = squares(spark, 1)
    thrice = applying(exported, {"x": "square"}, {"again": "y"}, signature_def_key="other").transform(data)
    assert thrice.first().y == [[0.0, 3.0], [6.0, 9.0]]
    assert applying(exported, {"x": "square"}, {"again": "y"}).transform(data).first().y == [[0.0, 2.0], [4.0, 6.0]]
    summed = applying(exported, {"x": "numbers"}, {"sum": "s"}, signature_def_key="varying").transform(data)
    assert summed.first().s == 6.0


@pytest.mark.slow
def test_a_model_of_tensorflow_1_with_two_graphs(spark, tmp_path):
    from tensorflow.compat import v1 as tf

    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float32, (None, 2))
        y = x * tf.get_variable("w", initializer=2.0)
        session.run(tf.global_variables_initializer())
        signatures = [tf.saved_model.predict_signature_def({"x": x}, {"y": y * factor}) for factor in (1.0, 10.0)]
        builder = tf.saved_model.Builder(str(tmp_path / "saved"))
        builder.add_meta_graph_and_variables(session, ["serve"], {"serving_default": signatures[0]})
        builder.add_meta_graph(["serve", "ten"], {"serving_default": signatures[1]})
        builder.save()
    data = spark.createDataFrame([([1.0, 2.0],)], "x array<double>")
    stage = applying(str(tmp_path / "saved"), {"x": "x"}, {"y": "y"})
    assert stage.transform(data).first().y == [2.0, 4.0]
    assert stage.setTagSet("serve, ten").transform(data).first().y == [20.0, 40.0]
    with pytest.raises(tfos.SpecError, match=r"(?s)can't load the SavedModel at .*saved: .*'ten'"):
        stage.setTagSet("gpu").transform(data)


@pytest.mark.slow
@pytest.mark.parametrize("library", ["keras", "tf_keras"])
def test_names_of_keras_2_in_models_of_both(spark, tmp_path, library):
    keras = pytest.importorskip(library)
    model = keras.Sequential([keras.layers.InputLayer((2,)), keras.layers.Dense(1, use_bias=False, name="dense")])
    model.set_weights([np.array([[1.0], [2.0]])])
    if library == "keras":
        model.export(str(tmp_path), verbose=False)
    else:
        model.save(str(tmp_path), save_format="tf")
    taken = model.input_names[0] if library == "tf_keras" else "dense_input"
    stage = applying(str(tmp_path), {"x": taken}, {"dense": "sum"})
    data = spark.createDataFrame([([1.0, 2.0],)], "x array<float>")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", UserWarning)
        assert stage.transform(data).collect() == [Row(sum=[5.0])]
    said = [(str(each.message), each.filename) for each in told if "_mapping names the tensor" in str(each.message)]
    assert len(said) == (2 if library == "keras" else 0)
    assert all(file == __file__ and "'dense" in message and "only" in message for message, file in said)


# ---- what is refused


def test_mappings_that_dont_fit_are_refused_with_what_there_is(spark, exported):
    data = squares(spark)

    def refused(told, taken, given, of=data, **params):
        with pytest.raises(tfos.SpecError, match=told):
            applying(exported, taken, given, **params).transform(of)

    good = {"again": "y"}
    refused(r"input_mapping is empty.*\['id', 'x', 'pred'\]", {}, good)
    refused(r"names the column 'q', and the DataFrame has \['id', 'x', 'pred'\]", {"q": "square"}, good)
    refused("output_mapping is empty.*'again', 'double', 'middle', ", {"x": "square"}, {})
    refused("names 'scores', and the signature has the outputs 'again', 'double', ", {"x": "square"}, {"scores": "y"})
    refused("names 'label', and the signature has the input 'square'", {"x": "square", "id": "label"}, good)
    refused("names 'c', and the signature has the inputs 'a', 'b'", {"x": "c"}, {"told": "y"}, signature_def_key="two")
    refused("no column for the signature's input 'b'", {"id": "a"}, {"told": "y"}, signature_def_key="two")
    refused("several columns for one tensor", {"x": "square", "id": "square"}, good)
    refused("two tensors into the column 'y'", {"x": "square"}, {"again": "y", "one": "y"})
    refused("column 'pred' has type string.*'square' is float32 of shape", {"pred": "square"}, good)
    refused("cast the column to string", {"id": "a", "x": "b"}, {"told": "y"}, signature_def_key="two")
    refused("select those that are wanted", {"x": "square"}, good, of=data.select(f.struct("x").alias("x")))
    refused("same number of dimensions", {"id": "numbers"}, {"sum": "y"}, signature_def_key="varying")
    refused("no signature 'nothing', but .*'other'", {"x": "square"}, good, signature_def_key="nothing")


def test_models_that_cant_be_served_are_refused(spark, tmp_path):
    data = squares(spark)
    stage = TFModel({}).setInputMapping({"x": "x"}).setOutputMapping({"y": "y"})
    with pytest.raises(tfos.SpecError, match="no model is given.*setExportDir"):
        stage.transform(data)
    with pytest.raises(tfos.SpecError, match=r"model_dir='/tmp/here' holds checkpoints.*setExportDir"):
        stage.setModelDir("/tmp/here").transform(data)
    with pytest.raises(tfos.SpecError, match="nowhere: there is no such directory"):
        stage.setExportDir(str(tmp_path / "nowhere")).transform(data)
    (tmp_path / "1667777").mkdir()
    (tmp_path / "1667777" / "saved_model.pb").write_bytes(b"")
    with pytest.raises(tfos.SpecError, match=r"no SavedModel at .*it holds \['1667777'\]"):
        stage.setExportDir(str(tmp_path)).transform(data)


@pytest.mark.slow
def test_values_that_dont_fit_name_column_and_row(spark, exported):
    stage = applying(exported, {"x": "square"}, {"again": "y"})

    def refused(told, rows):
        with pytest.raises(Exception, match=told):
            stage.transform(spark.createDataFrame([(row,) for row in rows], "x array<float>").coalesce(1)).collect()

    whole = [1.0] * 4
    refused(r"column 'x' holds 3 values.*row 0 of partition 0: \[1.0, 1.0, 1.0\].*In a TFModel", [[1.0] * 3])
    refused(r"column 'x' .*2 to 4 values.*row 2 of partition 0: \[1.0, 1.0\]", [whole, whole, [1.0] * 2])
    refused(r"column 'x' holds 1 null, the first in row 1 of partition 0", [whole, None])
