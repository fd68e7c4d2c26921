"""Contender: one small network over very many rows of one number, by both engines, with and without progress."""

import time
from contextlib import nullcontext

from benchmarks.common.rounds import serve_rounds
from benchmarks.common.spark import run_all, two_whole_workers

PARTITIONS = 40


def serve():
    """Serve rows per second of ``transform``; Spark makes the rows while it goes on."""
    import keras

    from tensorflowonspark.ml import KerasModel

    network = keras.Sequential([keras.Input((1,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1)])
    with two_whole_workers("2g") as spark:

        def run_round(request):
            rows = request["rows"]
            stage = KerasModel.from_keras(network, engine=request["engine"])
            frame = spark.range(0, rows, 1, PARTITIONS).selectExpr("float(id % 1000) / 1000 as features")
            started = time.monotonic()
            with stage.progress(rows) if request["progress"] else nullcontext() as progress:
                run_all(stage.transform(frame).select("prediction"))
            seconds = time.monotonic() - started
            assert progress is None or progress.rows == rows, f"{progress.rows} of {rows} rows were counted"
            return rows / seconds

        serve_rounds(run_round)


if __name__ == "__main__":
    serve()
