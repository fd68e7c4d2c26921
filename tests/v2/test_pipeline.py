"""Stages of Spark ML by the names of 2.x: what is set, what is fed, what a SavedModel gives, and what is refused."""

import argparse
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.ml import Pipeline
from pyspark.ml.functions import array_to_vector
from pyspark.ml.param.shared import HasSeed
from pyspark.sql import Row
from pyspark.sql import functions as f

import tensorflowonspark as tfos
from tensorflowonspark import pipeline
from tensorflowonspark.pipeline import Namespace, TFEstimator, TFModel

pytestmark = [pytest.mark.masters("local"), pytest.mark.timeout(180)]

ESTIMATOR = {
    "input_mapping": {}, "cluster_size": 1, "num_ps": 0, "driver_ps_nodes": False, "input_mode": 1,
    "master_node": "chief", "protocol": "grpc", "tensorboard": False, "model_dir": None, "export_dir": None,
    "tfrecord_dir": None, "batch_size": 100, "epochs": 1, "readers": 1, "steps": 1000, "grace_secs": 30,
}  # fmt: skip
MODEL = {
    "input_mapping": {}, "output_mapping": {}, "batch_size": 100, "model_dir": None, "export_dir": None,
    "signature_def_key": None, "tag_set": None,
}  # fmt: skip
ACCESSORS = {
    "driver_ps_nodes": "DriverPSNodes", "num_ps": "NumPS", "tfrecord_dir": "TFRecordDir", "tensorboard": "Tensorboard",
}  # fmt: skip


def unused(args, ctx):
    raise AssertionError("nothing must start")


# ---- arguments and params


NAMES = st.sampled_from(["lr", "epochs", "model_dir", "x", "_y"])
VALUES = st.integers() | st.text("ab", max_size=3) | st.none() | st.lists(st.integers(), max_size=3)


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(NAMES, VALUES))
def test_arguments_are_the_same_whatever_they_come_from(known):
    args = Namespace(known)
    assert vars(args) == known
    assert list(args) == list(known)
    assert all(name in args and getattr(args, name) == value for name, value in known.items())
    assert "no such name" not in args
    assert args.argv is None
    assert args == Namespace(args) == Namespace(argparse.Namespace(**known)) == argparse.Namespace(**known)
    assert args != Namespace({**known, "more": 1})
    Namespace(args).more = 1
    assert "more" not in args


def test_arguments_are_read_on_nodes_without_spark():
    program = "import sys, tensorflowonspark.v2.program; print('pyspark' in sys.modules)"
    assert Namespace.__module__ == "tensorflowonspark.v2.program"
    assert (
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "False\n"
    )


def test_arguments_of_a_command_line_and_of_nothing():
    args = Namespace(["--epochs", "3"])
    assert args.argv == list(args) == ["--epochs", "3"]
    assert str(args) == "['--epochs', '3']"
    for wrong in (None, 3, "--epochs"):
        with pytest.raises(tfos.SpecError, match="arguments are a dict, a list"):
            Namespace(wrong)


@pytest.mark.parametrize(
    ("make", "defaults"), [(lambda: TFEstimator(unused, {}), ESTIMATOR), (lambda: TFModel({}), MODEL)]
)
def test_defaults_setters_and_getters(make, defaults):
    stage = make()
    assert vars(stage.merge_args_params()) == defaults
    for name, default in defaults.items():
        title = ACCESSORS.get(name, "".join(word.title() for word in name.split("_")))
        value = {"a": "b"} if isinstance(default, dict) else type(default)(1) if default is not None else "text"
        assert getattr(stage, f"get{title}")() == default
        assert getattr(stage, f"set{title}")(value) is stage
        assert getattr(stage, f"get{title}")() == value == getattr(stage.merge_args_params(), name)


def test_params_refuse_what_they_cant_be():
    stage = TFEstimator(unused, {})
    with pytest.raises(TypeError, match="batch_size"):
        stage.setBatchSize("many")
    with pytest.raises(TypeError, match=r"input_mapping.*\['x'\] to a dict"):
        stage.setInputMapping(["x"])
    with pytest.raises(tfos.SpecError, match=r"TFCluster\.run"):
        stage.setInputMode(0)
    assert stage.setInputMode(1).getInputMode() == 1
    with pytest.raises(tfos.SpecError, match=r"export in train_fn itself"):
        TFEstimator(unused, {}, export_fn=unused)
    assert pipeline.TFTypeConverters.toDict(Row(x="y").asDict()) == {"x": "y"}


INTEGERS = ["batch_size", "cluster_size", "epochs", "grace_secs", "num_ps", "readers", "steps"]


@settings(max_examples=50, deadline=None)
@given(
    st.dictionaries(st.sampled_from([*INTEGERS, "lr"]), st.integers(0, 9)),
    st.dictionaries(st.sampled_from(INTEGERS), st.integers(0, 9)),
)
def test_what_was_set_wins_over_arguments_and_these_over_defaults(args, params):
    stage = TFEstimator(unused, args)
    stage._set(**params)
    merged = stage.merge_args_params()
    assert vars(merged) == {**ESTIMATOR, **args, **params}
    assert vars(stage.args) == args
    assert vars(stage.copy({stage.epochs: 17}).merge_args_params()) == {**vars(merged), "epochs": 17}


def test_stages_of_the_users_own():
    class Mine(pipeline.TFParams, pipeline.HasSteps, HasSeed):
        pass

    stage = Mine().setSteps(5)
    stage._setDefault(seed=1)
    assert stage.merge_args_params() == Namespace({"steps": 5, "seed": 1})


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


def test_only_the_wanted_columns_come_each_with_its_own_tensor(spark, exported):
    wanted = {"zero": "a", "middle": "c", "again": "b", "text": "x"}
    answered = applying(exported, {"x": "square"}, wanted, batch_size=2).transform(squares(spark))
    assert answered.dtypes == [("b", "array<array<float>>"), ("c", "bigint"), ("x", "binary"), ("a", "float")]
    for number, row in enumerate(answered.collect()):
        total = 4 * number + 6
        assert row.b == [[2.0 * number, 2.0 * number + 2], [2.0 * number + 4, 2.0 * number + 6]]
        assert (row.c, bytes(row.x), row.a) == (total, f"{total}.0".encode(), 0.0)


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


def test_signatures_of_one_model_are_told_apart(spark, exported):
    data = squares(spark, 1)
    thrice = applying(exported, {"x": "square"}, {"again": "y"}, signature_def_key="other").transform(data)
    assert thrice.first().y == [[0.0, 3.0], [6.0, 9.0]]
    assert applying(exported, {"x": "square"}, {"again": "y"}).transform(data).first().y == [[0.0, 2.0], [4.0, 6.0]]
    summed = applying(exported, {"x": "numbers"}, {"sum": "s"}, signature_def_key="varying").transform(data)
    assert summed.first().s == 6.0


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
    refused(r"no column 'q'; it has \['id', 'x', 'pred'\]", {"q": "square"}, good)
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


def test_values_that_dont_fit_name_column_and_row(spark, exported):
    stage = applying(exported, {"x": "square"}, {"again": "y"})

    def refused(told, rows):
        with pytest.raises(Exception, match=told):
            stage.transform(spark.createDataFrame([(row,) for row in rows], "x array<float>").coalesce(1)).collect()

    whole = [1.0] * 4
    refused(r"column 'x' holds 3 values.*row 0 of partition 0: \[1.0, 1.0, 1.0\].*In a TFModel", [[1.0] * 3])
    refused(r"column 'x' .*2 to 4 values.*row 2 of partition 0: \[1.0, 1.0\]", [whole, whole, [1.0] * 2])
    refused(r"column 'x' holds 1 null, the first in row 1 of partition 0", [whole, None])


# ---- training


def line(rows):
    """Return labels that are 2 x0 + 3 x1."""
    points = np.random.default_rng(3).random((rows, 2))
    return [([float(a), float(b)], float(2 * a + 3 * b)) for a, b in points]


def train_keras(args, ctx):
    import keras
    import tensorflow as tf

    from tensorflowonspark import TFNode, compat

    feed = TFNode.DataFeed(ctx.mgr, input_mapping=args.input_mapping)

    def rows():
        while not feed.should_stop():
            batch = feed.next_batch(args.batch_size)
            if batch["dense_input"]:
                yield tf.constant(batch["dense_input"]), tf.constant(batch["label"])

    specs = (tf.TensorSpec((None, 2), tf.float32), tf.TensorSpec((None,), tf.float32))
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, name="dense")])
    model.compile(keras.optimizers.Adam(args.lr), "mse")
    model.fit(tf.data.Dataset.from_generator(rows, output_signature=specs), verbose=0)
    compat.export_saved_model(model, args.export_dir, ctx.job_name == "chief")


@pytest.mark.timeout(240)
def test_a_program_of_2x_trains_and_applies(spark, tmp_path):
    data = spark.createDataFrame(line(400), "x array<float>, y float")
    export_dir = str(tmp_path / "export")
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.2)
    estimator = (
        TFEstimator(train_keras, parser.parse_args([]))
        .setInputMapping({"x": "dense_input", "y": "label"})
        .setExportDir(export_dir)
        .setClusterSize(1)
        .setMasterNode("chief")
        .setEpochs(10)
        .setBatchSize(20)
        .setGraceSecs(1)
    )
    model = estimator.fit(data)
    assert isinstance(model, TFModel)
    assert (model.getBatchSize(), model.getExportDir(), model.args.lr) == (20, export_dir, 0.2)
    model.setInputMapping({"x": "dense_input"}).setOutputMapping({"dense": "pred"})
    model.setSignatureDefKey("serving_default").setTagSet("serve")
    with pytest.warns(UserWarning, match="the signature's only"):
        predicted = [row.pred[0] for row in model.transform(data.coalesce(1)).collect()]
    assert predicted == pytest.approx([row.y for row in data.collect()], abs=0.1)


def note_rows(args, ctx):
    """Write what is fed into a file; of a command line the last word is the file."""
    path, batch_size = (args[-1], 3) if isinstance(args, list) else (args.path, args.batch_size)
    rows, feed = [], ctx.get_data_feed()
    while not feed.should_stop():
        rows += [tuple(row) for row in feed.next_batch(batch_size)]
    with open(path, "w") as file:
        file.write(f"{sorted(rows)!r} {batch_size} {sys.argv[-1] == path}")


def test_columns_are_fed_by_their_names_in_a_pipeline_too(spark, tmp_path):
    data = spark.createDataFrame([(1, "a", 0.5, b"no")], "z long, a string, m double, unused binary")
    path = str(tmp_path / "rows")
    estimator = TFEstimator(note_rows, {"path": path}).setInputMapping({"z": "i", "a": "j", "m": "k"})
    fitted = Pipeline(stages=[estimator]).fit(data, {estimator.batch_size: 2, estimator.epochs: 3})
    assert Path(path).read_text() == f"{[('a', 0.5, 1)] * 3!r} 2 False"
    assert fitted.stages[0].getBatchSize() == 2
    assert estimator.getEpochs() == 1


def test_a_command_line_comes_as_it_is(spark, tmp_path):
    path = str(tmp_path / "rows")
    TFEstimator(note_rows, ["--path", path]).setInputMapping({"id": "i"}).fit(spark.range(2))
    assert Path(path).read_text() == "[(0,), (1,)] 3 True"


def fail(args, ctx):
    ctx.get_data_feed().next_batch(1)
    raise LookupError("no such label: 7")


def test_an_error_of_the_program_arrives(spark):
    with pytest.raises(tfos.NodeError, match=r"(?s)LookupError.*no such label: 7"):
        TFEstimator(fail, {}).setInputMapping({"id": "i"}).fit(spark.range(1000))


def test_rows_that_spark_cant_make_end_the_cluster(spark):
    spoilt = spark.range(1000).select(
        f.when(f.col("id") < 999, f.col("id")).otherwise(f.raise_error(f.lit("spoilt"))).alias("id")
    )
    with pytest.raises(Exception, match="spoilt"):
        TFEstimator(note_rows, {"path": "/dev/null"}).setInputMapping({"id": "i"}).fit(spoilt)


def test_what_cant_be_fed_is_refused_before_anything_starts(spark):
    with pytest.raises(tfos.SpecError, match=r"input_mapping is empty.*\['id'\]"):
        TFEstimator(unused, {}).fit(spark.range(3))
    with pytest.raises(tfos.SpecError, match=r"no column 'x', 'y'; it has \['id'\]"):
        TFEstimator(unused, {}).setInputMapping({"y": "b", "x": "a", "id": "i"}).fit(spark.range(3))
