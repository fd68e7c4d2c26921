"""Contender: a network for each key, on two slots, by ``tfos.fit_each`` and by ``applyInPandas``."""

import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from threading import Thread

import cloudpickle
import psutil
from pyspark import cloudpickle as spark_cloudpickle

from benchmarks.common.rounds import serve_rounds
from benchmarks.common.spark import BOTH_EXECUTORS, two_one_core_workers, two_slots
from benchmarks.each import functions

_ROWS = 64  # of a key
_COLUMNS = [
    "int(id % {keys}) as store",
    "transform(sequence(1, 8), i -> float(id * i % 11 / 11.0)) as x",
    "float(id % 7) as y",
]
# Spark joins partitions of few bytes, and would train all keys in one task.
_SETTINGS = {"spark_sql_adaptive_coalescePartitions_enabled": "false", "spark_sql_shuffle_partitions": 20}


def _rows(spark, keys):
    frame = spark.range(keys * _ROWS).selectExpr(*[each.format(keys=keys) for each in _COLUMNS]).cache()
    assert frame.count() == keys * _ROWS
    return frame


def _summary(rows, keys, begun):
    seconds = time.perf_counter() - begun
    assert len(rows) == keys
    assert all(row.model and row.rows == _ROWS for row in rows)
    return {"seconds": seconds, "memory": max(row.metrics["memory"] for row in rows)}


def _collected(frame):
    """Compute all models, as a job that writes them does, and return all but them."""
    return frame.selectExpr("store", "rows", "metrics", "length(model) as model").collect()


def main():
    """Serve rounds of one way."""
    import tensorflowonspark as tfos

    ways = {
        "ours": lambda frame: tfos.fit_each(frame, "store", functions.new_model),
        "build": lambda frame: tfos.fit_each(frame, "store", functions.one_model, build=functions.build),
        "pandas": lambda frame: frame.groupBy("store").applyInPandas(functions.in_pandas, functions.RESULTS),
    }
    with two_slots(**_SETTINGS) as spark:
        made = {}

        def run_round(request):
            keys = request["keys"]
            if keys not in made:
                made[keys] = _rows(spark, keys)
            begun = time.perf_counter()
            return _summary(_collected(ways[sys.argv[1]](made[keys])), keys, begun)

        serve_rounds(run_round)


def killed():
    """Serve rounds on two executors, one of which is killed when half of the keys are done, if that is asked for."""
    import tensorflowonspark as tfos

    with two_one_core_workers(**BOTH_EXECUTORS, **_SETTINGS) as spark:

        def run_round(request):
            keys, kill = request["keys"], request["kill"]
            with tempfile.TemporaryDirectory() as scratch:
                output, calls = Path(scratch, "output"), Path(scratch, "calls")
                calls.mkdir()
                frame = _rows(spark, keys)
                begun = time.perf_counter()
                killed = []
                if kill:
                    Thread(target=_kill_an_executor, args=(output, keys // 2, killed), daemon=True).start()
                fitted = tfos.fit_each(frame, "store", partial(functions.counted_model, str(calls)), output=str(output))
                found = _summary(_collected(fitted), keys, begun)
                assert len(killed) == kill
                return {**found, "calls": len(list(calls.iterdir()))}

        serve_rounds(run_round)


def _kill_an_executor(output, done, killed):
    while len(list(output.glob("*.parquet"))) < done:
        time.sleep(0.1)
    own = {each.pid for each in psutil.Process().children(recursive=True)}  # also those of the workers
    for each in psutil.process_iter(["cmdline"]):
        if each.pid in own and "CoarseGrainedExecutorBackend" in " ".join(each.info["cmdline"] or []):
            each.kill()
            killed.append(each.pid)
            return


if __name__ == "__main__":
    for pickler in (cloudpickle, spark_cloudpickle):
        pickler.register_pickle_by_value(functions)  # Spark's Python workers can't import it
    killed() if sys.argv[1] == "killed" else main()
