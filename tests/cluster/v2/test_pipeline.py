"""`TFEstimator` of 2.x on nodes."""

import argparse
import sys
from pathlib import Path

import numpy as np
import pytest
from pyspark.ml import Pipeline
from pyspark.sql import functions as f

import tensorflowonspark as tfos
from tensorflowonspark.pipeline import TFEstimator, TFModel

pytestmark = [pytest.mark.masters("local"), pytest.mark.timeout(180)]


def unused(args, ctx):
    raise AssertionError("nothing must start")


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


@pytest.mark.smoke
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


def test_rows_that_spark_cant_make_end_the_cluster(spark):
    spoilt = spark.range(1000).select(
        f.when(f.col("id") < 999, f.col("id")).otherwise(f.raise_error(f.lit("spoilt"))).alias("id")
    )
    with pytest.raises(Exception, match="spoilt"):
        TFEstimator(note_rows, {"path": "/dev/null"}).setInputMapping({"id": "i"}).fit(spoilt)


def test_what_cant_be_fed_is_refused_before_anything_starts(spark):
    with pytest.raises(tfos.SpecError, match=r"input_mapping is empty.*\['id'\]"):
        TFEstimator(unused, {}).fit(spark.range(3))
    with pytest.raises(tfos.SpecError, match=r"names the column 'x', 'y', and the DataFrame has \['id'\]"):
        TFEstimator(unused, {}).setInputMapping({"y": "b", "x": "a", "id": "i"}).fit(spark.range(3))
