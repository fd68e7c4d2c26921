"""Contenders: our stages, Spark's ``predict_batch_udf``, Spark and TensorFlow alone, and TensorFlowOnSpark 2.2.5."""

import sys
import tempfile
import time
import warnings

import numpy as np

from benchmarks.common.rounds import serve_rounds
from benchmarks.common.spark import BOTH_EXECUTORS, Frames, run_all, two_one_core_workers, two_whole_workers
from benchmarks.inference.rows import BATCH, KINDS, columns, network

_ALONE_ROWS = 4096  # at a time


def count_batches(batches):
    """Consume a partition's rows; only count them."""
    import pyarrow as pa

    yield pa.record_batch({"rows": [sum(batch.num_rows for batch in batches)]})


def limit(frame):
    """Return a function that counts the rows in Spark's Python workers."""
    return lambda: frame.select("features").mapInArrow(count_batches, "rows long").collect()


def keras_model(frame, kind, engine="keras"):
    """Return a function that applies our model stage."""
    from tensorflowonspark.ml import KerasModel

    predicted = KerasModel.from_keras(network(kind), engine=engine).transform(frame).select("prediction")
    return lambda: run_all(predicted)


def tf_model(directory, taken, given):
    """Return the model stage with the names of 2.x for a SavedModel and the names of its tensors."""
    from tensorflowonspark.pipeline import TFModel

    return (
        TFModel({})
        .setInputMapping({"features": taken})
        .setOutputMapping({given: "prediction"})
        .setSignatureDefKey("serving_default")
        .setTagSet("serve")
        .setExportDir(directory)
        .setBatchSize(BATCH)
    )


def as_in_2x(frame, kind, directory):
    """Return a function that applies the stage with the names of 2.x, which loads the SavedModel each time."""
    network(kind).export(directory, verbose=False)
    warnings.filterwarnings("ignore", message=".* names the tensor")  # Keras 3 has other names than Keras 2
    stage = tf_model(directory, "input_1", "dense")
    return lambda: run_all(stage.transform(frame))


def batch_udf(frame, kind):
    """Return a function that applies Spark's own function for inference, as Spark's documentation has it."""
    from pyspark.ml.functions import predict_batch_udf
    from pyspark.sql.types import ArrayType, FloatType

    configuration, weights = network(kind).to_json(), network(kind).get_weights()

    def make():
        import keras
        import tensorflow as tf

        model = keras.models.model_from_json(configuration)
        if weights:
            model.set_weights(weights)

        def predict(inputs):
            if kind == "image":
                inputs = np.stack([np.frombuffer(each, np.uint8) for each in inputs]).reshape(-1, 28, 28, 1)
            return model.predict_on_batch(tf.constant(inputs if kind != "text" else list(inputs)))

        return predict

    shapes = {"input_tensor_shapes": [[64]]} if kind == "small" else {}
    udf = predict_batch_udf(make, return_type=ArrayType(FloatType()), batch_size=1024, **shapes)
    predicted = frame.select(udf("features").alias("prediction"))
    return lambda: run_all(predicted)


def alone(frame, kind, rows):
    """Return a function that computes the same with TensorFlow on arrays in the memory of one process."""
    import tensorflow as tf

    some = [row.features for row in frame.limit(_ALONE_ROWS).collect()]
    if kind == "image":
        some = np.stack([np.frombuffer(each, np.uint8) for each in some]).reshape(-1, 28, 28, 1)
    data = np.asarray(some, object if kind == "text" else None)
    if kind == "small":
        data = data.astype(np.float32)
    model = network(kind)
    call = tf.function(lambda values: model(values, training=False))

    def compute():
        for _ in range(0, rows, len(data)):
            call(tf.constant(data)).numpy()

    return compute


def present():
    """Serve rows per second of all contenders but 2.2.5."""
    with tempfile.TemporaryDirectory() as scratch, two_whole_workers("4g") as spark:
        frames, prepared = Frames(spark), {}

        def run_round(request):
            kind, method, taken = request["kind"], request["method"], request["taken"]
            frame = frames.of(columns(KINDS[kind].column), request["rows"])
            if (kind, method) not in prepared:
                prepared[kind, method] = {
                    "limit": lambda: limit(frame),
                    "ours": lambda: keras_model(frame, kind),
                    "onnx": lambda: keras_model(frame, kind, "onnx"),
                    "as in 2.x": lambda: as_in_2x(frame, kind, f"{scratch}/{kind}"),
                    "predict_batch_udf": lambda: batch_udf(frame.limit(taken).repartition(8).cache(), kind),
                    "alone": lambda: alone(frame, kind, taken),
                }[method]()
            started = time.monotonic()
            prepared[kind, method]()
            return taken / (time.monotonic() - started)

        serve_rounds(run_round)


def release_2x():
    """Serve rows per second of ``TFModel.transform`` of 2.2.5, as its own documentation has it."""
    with tempfile.TemporaryDirectory() as scratch, two_one_core_workers(**BOTH_EXECUTORS) as spark:
        frames, prepared = Frames(spark), {}

        def run_round(request):
            kind, rows = request["kind"], request["taken"]
            frame = frames.of(columns(KINDS[kind].old_column), rows, partitions=2)
            if kind not in prepared:
                model = network(kind)
                model.save(f"{scratch}/{kind}", save_format="tf")
                prepared[kind] = tf_model(f"{scratch}/{kind}", model.input_names[0], model.output_names[0])
            started = time.monotonic()
            numbers = prepared[kind].transform(frame).rdd.map(lambda row: len(row[0])).sum()
            seconds = time.monotonic() - started
            assert numbers == rows * (2 if kind == "text" else 10), f"{numbers} numbers for {rows} rows"
            return rows / seconds

        serve_rounds(run_round)


if __name__ == "__main__":
    {"present": present, "2x": release_2x}[sys.argv[1]]()
