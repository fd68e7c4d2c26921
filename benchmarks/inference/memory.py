"""Contender: a model that four Python workers of one executor apply, and the memory of that executor."""

import contextlib
import time

import psutil

from benchmarks.common.rounds import serve_rounds
from benchmarks.common.sampling import PeakSampler
from benchmarks.common.spark import run_all, session

WORKERS, _ROWS = 4, 8  # rows of each worker: the memory is that of the weights
_LAYERS = 4


def network(megabytes):
    """Return a network with this size of weights, all of which each row needs."""
    import keras

    units = int((megabytes * (1 << 18) / _LAYERS) ** 0.5)
    return keras.Sequential([keras.Input((4,)), *(keras.layers.Dense(units) for _ in range(_LAYERS + 1))])


def load_privately():
    """Have models sent so that each worker loads them into memory of its own, as small ones are."""
    from tensorflowonspark.ml import sent_models

    class Private(sent_models.SentModel):
        def file(self):
            return None

        def read(self):
            return self.broadcast.load_from_path(self.broadcast._path)

    sent_models.SentModel = Private


class Sampler(PeakSampler):
    """Samples the memory of this process's executor: of its Python workers together, and of its JVM.

    Of a page that several processes map each has its share (the proportional set size).
    """

    def sizes(self):
        """Return the bytes of both."""
        sizes = {"workers": 0, "jvm": 0}
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error, OSError, StopIteration):
                words = process.cmdline()
                kind = "workers" if "pyspark.daemon" in words else "jvm" if "--executor-id" in words else None
                if kind:
                    sizes[kind] += _proportional(process.pid)
        return sizes


def _proportional(process):
    with open(f"/proc/{process}/smaps_rollup") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))


def run_round(request):
    """Return the peaks, and the seconds of a first and a second job, in an executor of its own."""
    from pyspark.sql import functions as f

    from tensorflowonspark.ml import KerasModel

    stage = KerasModel.from_keras(network(request["megabytes"]))
    seconds = []
    memory = {"spark_executor_memory": "2g", "spark_driver_memory": "6g"}
    with session(f"local-cluster[1,{WORKERS},2048]", memory) as spark:
        columns = f.array(*[f.col("id").cast("float")] * 4).alias("features")
        frame = spark.range(0, WORKERS * _ROWS, 1, WORKERS).select(columns)
        predicted = stage.transform(frame).select("prediction")
        with Sampler() as sampler:
            for _ in range(2):
                started = time.monotonic()
                run_all(predicted)
                seconds.append(time.monotonic() - started)
    return {"seconds": seconds, **sampler.peaks}


if __name__ == "__main__":
    import sys

    if sys.argv[1] == "private":
        load_privately()
    serve_rounds(run_round)
