"""Contender: a worker that trains, and an evaluator, on a processor each or on the same ones."""

import json
import os
import tempfile
import time
from pathlib import Path
from statistics import median
from threading import Thread

from benchmarks.common.rounds import serve_rounds
from benchmarks.common.spark import two_slots

_ROWS, _BATCH, _WIDTH = 12_800, 256, 512
_IDLE_SECONDS = 8


def train(args, ctx):
    """Train; return the seconds of a step in each round, while the evaluator waits and while it evaluates."""
    if args["apart"]:
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[ctx.job == "evaluator"]})
    import keras
    import numpy as np
    import tensorflow as tf

    def build():
        layers = [keras.layers.Dense(_WIDTH, "relu") for _ in range(4)]
        model = keras.Sequential([keras.Input((64,)), *layers, keras.layers.Dense(10, "softmax")])
        model.compile("adam", "sparse_categorical_crossentropy")
        return model

    def rows(passes):
        values = np.random.default_rng(1).normal(size=(_ROWS, 64)).astype("float32"), np.arange(_ROWS) % 10
        return tf.data.Dataset.from_tensor_slices(values).batch(_BATCH).cache().repeat(passes)

    idle = Path(f"{args['directory']}-idle")
    if ctx.job == "evaluator":
        model, data = build(), rows(4)  # which take longer than an epoch
        model.evaluate(data, verbose=0)

        def watch():
            used = [time.process_time()]
            for _ in range(_IDLE_SECONDS):
                time.sleep(1.0)
                used.append(time.process_time())
            idle.write_text(json.dumps(median(end - begin for begin, end in zip(used, used[1:], strict=False))))

        Thread(target=watch, daemon=True).start()
        return ctx.evaluate_checkpoints(model, data, directory=args["directory"])
    checkpoint, model, data = ctx.checkpoint(args["directory"], keep=1), build(), rows(1)
    state = tf.train.Checkpoint(model=model, optimizer=model.optimizer)

    def epoch():
        wall, processor = time.perf_counter(), time.process_time()
        model.fit(data, verbose=0)
        steps = _ROWS / _BATCH
        seconds = time.perf_counter() - wall, time.process_time() - processor
        return {"wall": seconds[0] / steps, "processor": seconds[1] / steps}

    epoch()  # traces
    while not idle.exists():
        time.sleep(0.1)
    found = {"waits": [], "evaluates": [], "idle": json.loads(idle.read_text())}
    for number in range(args["rounds"] + 1):
        waits = epoch()
        checkpoint.save(state, number + 1, epoch=number + 1)
        time.sleep(0.5)  # until it has read the checkpoint
        evaluates = epoch()
        checkpoint.best()  # waits until it is evaluated
        if number:  # the first round is a warm-up
            found["waits"].append(waits)
            found["evaluates"].append(evaluates)
    return found


def main():
    """Serve rounds, each a cluster of its own."""
    import tensorflowonspark as tfos

    with two_slots() as spark:

        def run_round(request):
            with tempfile.TemporaryDirectory() as directory:
                args = {**request, "directory": f"{directory}/saved"}
                return tfos.run(spark, train, args, num_workers=1, evaluator=True).chief

        serve_rounds(run_round)


if __name__ == "__main__":
    main()
