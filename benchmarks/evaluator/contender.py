"""Contender: a worker that trains, and an evaluator, on a processor each or on the same ones."""

import json
import os
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from threading import Thread

from benchmarks.common.rounds import serve_rounds
from benchmarks.common.spark import two_slots

_ROWS, _BATCH, _WIDTH = 12_800, 256, 512
_STEPS = _ROWS // _BATCH
_WATCHED_SECONDS = 8


def train(args, ctx):
    """Train, or evaluate; return the seconds of a step in each round, by what the evaluator does meanwhile."""
    if args["apart"]:
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[ctx.job == "evaluator"]})
    return (_evaluate if ctx.job == "evaluator" else _train)(args, ctx)


def _model():
    import keras

    layers = [keras.layers.Dense(_WIDTH, "relu") for _ in range(4)]
    model = keras.Sequential([keras.Input((64,)), *layers, keras.layers.Dense(10, "softmax")])
    model.compile("adam", "sparse_categorical_crossentropy")
    return model


def _rows(passes):
    import numpy as np
    import tensorflow as tf

    values = np.random.default_rng(1).normal(size=(_ROWS, 64)).astype("float32"), np.arange(_ROWS) % 10
    return tf.data.Dataset.from_tensor_slices(values).batch(_BATCH).cache().repeat(passes)


def _evaluate(args, ctx):
    model, other, data = _model(), _model(), _rows(4)  # which take longer than an epoch
    for each in (model, other):
        each.evaluate(data, verbose=0)

    def work():
        used = [time.process_time()]
        for _ in range(_WATCHED_SECONDS):  # in which it waits
            time.sleep(1.0)
            used.append(time.process_time())
        Path(args["idle"]).write_text(json.dumps(median(end - begin for begin, end in pairwise(used))))
        while True:
            if Path(args["other"]).exists():
                other.evaluate(data, verbose=0)
            time.sleep(0.05)

    Thread(target=work, daemon=True).start()
    return ctx.evaluate_checkpoints(model, data, directory=args["directory"])


def _train(args, ctx):
    import tensorflow as tf

    checkpoint, model, data = ctx.checkpoint(args["directory"], keep=1), _model(), _rows(1)
    state, other = tf.train.Checkpoint(model=model, optimizer=model.optimizer), Path(args["other"])

    def epoch():
        wall, processor = time.perf_counter(), time.process_time()
        model.fit(data, verbose=0)
        seconds = time.perf_counter() - wall, time.process_time() - processor
        return {"wall": seconds[0] / _STEPS, "processor": seconds[1] / _STEPS}

    def beside_other():
        other.write_text("")
        time.sleep(0.5)
        found = epoch()
        other.unlink()
        time.sleep(args["pause"])
        return found

    def beside_evaluation():
        step = int(model.optimizer.iterations.numpy())
        checkpoint.save(state, step, epoch=step // _STEPS)
        time.sleep(0.5)  # until it has read the checkpoint
        found = epoch()
        checkpoint.best()  # waits until it is evaluated
        return found

    turns = {"waits": epoch, "other": beside_other, "evaluates": beside_evaluation}
    epoch()  # traces
    while not Path(args["idle"]).exists():
        time.sleep(0.1)
    found = {name: [] for name in turns}
    for number in range(args["rounds"] + 1):
        for name in turns if number % 2 else reversed(list(turns)):
            seconds = turns[name]()
            if number:  # the first round is a warm-up
                found[name].append(seconds)
    return {**found, "idle": json.loads(Path(args["idle"]).read_text())}


def main():
    """Serve rounds, each a cluster of its own."""
    import tensorflowonspark as tfos

    with two_slots() as spark:

        def run_round(request):
            with tempfile.TemporaryDirectory() as directory:
                paths = {name: f"{directory}/{name}" for name in ("directory", "idle", "other")}
                args = {**request, **paths, "pause": 4.0}  # for the other work to end
                return tfos.run(spark, train, args, num_workers=1, evaluator=True).chief

        serve_rounds(run_round)


if __name__ == "__main__":
    main()
