"""Clusters of which a worker is killed within an epoch, one after another, as a driver's program.

The program saves a checkpoint each few steps and resumes from it. Each cluster prints a line of JSON: how it was fed,
and whether the rows of the steps that count came once in each epoch. Tests run it on several hosts.
"""

import json
import os
import signal
import tempfile
import time
from pathlib import Path

from pyspark.sql import SparkSession

import tensorflowonspark as tfos

_ROWS, _EPOCHS, _BATCH = 600, 2, 20
_STEPS = _ROWS // _BATCH  # of an epoch
_EVERY, _KILLED = 5, 13  # steps


def train(args, ctx):
    """Note the rows of each step in a file; die in the first attempt, after steps that no checkpoint has."""
    import numpy as np
    import tensorflow as tf

    state = tf.train.Checkpoint(weight=tf.Variable(0.0))
    checkpoint = ctx.checkpoint(f"{args}/checkpoint")
    step = checkpoint.restore(state) if ctx.attempt else 0  # the chief may have begun to save
    batches = ctx.batches(_BATCH, features=["id"], first_step=step)
    with open(f"{args}/{ctx.attempt}-{ctx.index}", "w") as file:
        while step < _EPOCHS * _STEPS:
            for batch in batches:
                real = np.asarray(batch["id"])[~np.signbit(np.asarray(batch["sample_weight"]))]
                file.write(json.dumps({"step": step, "ids": real.tolist()}) + "\n")
                file.flush()
                step += 1
                if not ctx.attempt and not step % _EVERY:  # later ones one worker might find and another not
                    checkpoint.save(state, step)
                if step == _KILLED and not ctx.attempt:
                    if ctx.index:
                        time.sleep(1.0)  # until the chief has saved
                        os.kill(os.getpid(), signal.SIGKILL)
                    time.sleep(600)


def counted(directory):
    """Return the step that was resumed, and each epoch's rows of the steps before it and after it."""
    files = Path(directory).glob("?-?")
    steps = {path.name: [json.loads(line) for line in path.read_text().splitlines()] for path in files}
    (resumed,) = {found[0]["step"] for name, found in steps.items() if name.startswith("1")}
    epochs = [[] for _ in range(_EPOCHS)]
    for name, found in steps.items():
        for each in found:
            if (each["step"] < resumed) == name.startswith("0"):
                epochs[each["step"] // _STEPS] += each["ids"]
    return resumed, epochs


def main():
    spark = SparkSession.builder.getOrCreate()
    for way in ("train", "run"):
        with tempfile.TemporaryDirectory(dir=os.environ["TFOS_TEST_SHARED"]) as directory:
            data = spark.range(0, _ROWS, 1, 12)
            if way == "run":
                tfos.run(spark, train, directory, data=data, num_workers=2, restarts=1, warm_nodes=False)
            else:
                with tfos.Cluster(spark, train, directory, num_workers=2, restarts=1, warm_nodes=False) as cluster:
                    cluster.train(data, timeout=60)
            resumed, epochs = counted(directory)
        once = [sorted(each) == list(range(_ROWS)) for each in epochs]
        print(json.dumps({"way": way, "resumed": resumed, "once": once}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
