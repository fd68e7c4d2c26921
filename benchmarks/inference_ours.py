"""Contender of inference.py: our stages, Spark's ``predict_batch_udf``, and Spark and TensorFlow by themselves."""

import json
import tempfile
import time
import warnings

import numpy as np
import pyarrow as pa
from standalone import two_one_core_workers

from feed_rows import Frames, run_all
from inference_rows import BATCH, KINDS, columns, network
from rounds import contend

_ALONE_ROWS = 4096  # at a time


def count_batches(batches):
    """Take a partition's rows, and do nothing with them."""
    yield pa.record_batch({"rows": [sum(batch.num_rows for batch in batches)]})


def limit(frame):
    """Count in Spark's Python workers."""
    return lambda: frame.select("features").mapInArrow(count_batches, "rows long").collect()


def ours(frame, kind):
    """Apply the model stage."""
    from tensorflowonspark.ml import KerasModel

    answered = KerasModel.from_keras(network(kind)).transform(frame).select("prediction")
    return lambda: run_all(answered)


def as_in_2x(frame, kind, directory):
    """Apply the stage with the names of 2.x, which reads the SavedModel anew each time, as 2.2.5 does."""
    from tensorflowonspark.pipeline import TFModel

    network(kind).export(directory, verbose=False)
    warnings.filterwarnings("ignore", message=".* names the tensor")  # Keras 3 has other names than Keras 2
    stage = (
        TFModel({})
        .setInputMapping({"features": "input_1"})
        .setOutputMapping({"dense": "prediction"})
        .setSignatureDefKey("serving_default")
        .setTagSet("serve")
        .setExportDir(directory)
        .setBatchSize(BATCH)
    )
    return lambda: run_all(stage.transform(frame))


def batch_udf(frame, kind):
    """Apply Spark's own function for it, as Spark's documentation has it."""
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
    answered = frame.select(udf("features").alias("prediction"))
    return lambda: run_all(answered)


def alone(frame, kind, rows):
    """Let TensorFlow compute the same on arrays in the memory of one process."""
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


def main():
    """Serve rounds."""
    settings = {"spark_executor_memory": "4g", "spark_cores_max": 2, "spark_scheduler_minRegisteredResourcesRatio": 1}
    with tempfile.TemporaryDirectory() as scratch, two_one_core_workers("4g", **settings) as spark:
        frames, kept = Frames(spark), {}

        def run_round(what):
            order = json.loads(what)
            kind, road = order["kind"], order["road"]
            rows = order["rows"]
            frame = frames.of(columns(KINDS[kind].column), rows)
            if (kind, road) not in kept:
                kept[kind, road] = {
                    "limit": lambda: limit(frame),
                    "ours": lambda: ours(frame, kind),
                    "as in 2.x": lambda: as_in_2x(frame, kind, f"{scratch}/{kind}"),
                    "predict_batch_udf": lambda: batch_udf(frame.limit(order["taken"]).repartition(8).cache(), kind),
                    "alone": lambda: alone(frame, kind, order["taken"]),
                }[road]()
            started = time.monotonic()
            kept[kind, road]()
            return order["taken"] / (time.monotonic() - started)

        contend(run_round)


if __name__ == "__main__":
    main()
