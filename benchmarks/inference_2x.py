"""Contender of inference.py: TensorFlowOnSpark 2.2.5's ``TFModel.transform``, as its own documentation has it."""

import json
import tempfile
import time

from standalone import two_one_core_workers

from feed_rows import Frames
from inference_rows import BATCH, KINDS, columns, network
from rounds import contend


def stage(kind, directory):
    """Return the model stage, with a SavedModel of the network."""
    from tensorflowonspark.pipeline import TFModel

    model = network(kind)
    model.save(directory, save_format="tf")
    taken = model.input_names[0]
    given = model.output_names[0]
    return (
        TFModel({})
        .setInputMapping({"features": taken})
        .setOutputMapping({given: "prediction"})
        .setSignatureDefKey("serving_default")
        .setTagSet("serve")
        .setExportDir(directory)
        .setBatchSize(BATCH)
    )


def main():
    """Serve rounds."""
    settings = {"spark_cores_max": 2, "spark_scheduler_minRegisteredResourcesRatio": 1}
    with tempfile.TemporaryDirectory() as scratch, two_one_core_workers(**settings) as spark:
        frames, kept = Frames(spark), {}

        def run_round(what):
            order = json.loads(what)
            kind, rows = order["kind"], order["taken"]
            frame = frames.of(columns(KINDS[kind].old_column), rows, partitions=2)
            if kind not in kept:
                kept[kind] = stage(kind, f"{scratch}/{kind}")
            started = time.monotonic()
            answered = kept[kind].transform(frame).rdd.map(lambda row: len(row[0])).sum()
            seconds = time.monotonic() - started
            assert answered == rows * (2 if kind == "text" else 10), f"{answered} numbers for {rows} rows"
            return rows / seconds

        contend(run_round)


if __name__ == "__main__":
    main()
