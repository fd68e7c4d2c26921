"""A program that resumes within an epoch, and the rows that its steps have taken in all runs together.

It saves a checkpoint each few steps and resumes from it, in a restart or in a later cluster, with the same number of
workers or another one. As a driver's program, this module runs clusters of which a worker is killed within an epoch,
and prints a line of JSON for each: how it was fed, and whether each row came once in each epoch.
"""

import json
import os
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import SparkSession

import tensorflowonspark as tfos

_ROWS, _EPOCHS, _BATCH = 600, 2, 20
_EVERY, _KILLED = 5, 13  # steps
PROGRAM = {  # the arguments of `train`
    "directory": "",  # of the notes and checkpoints
    "cluster": 0,  # the number of those before this one
    "read": "",  # "parquet" or "tfrecord"; or the rows are fed
    "files": "",
    "cache": "disk",
    "order": "worker",  # of files that the program reads
    "arriving": False,  # whether the first epoch takes the rows as they arrive
    "batch_size": _BATCH,
    "seed": 0,  # None: the rows' own order
    "epochs": _EPOCHS,
    "every": _EVERY,
    "saves": {},  # settings of the checkpoints
    "pace": 0.0,  # seconds of each step
    "takes": None,  # steps after which the program returns
    "marks": None,  # [worker, step]: a file shows that the first attempt has come there
    "dies": None,  # [worker, step]: the first attempt's worker is killed there
}


def train(args, ctx):
    """Take steps from the newest checkpoint on, and note the rows of each; return the step that was resumed."""
    import numpy as np
    import tensorflow as tf

    notes = Notes(Path(args["directory"]), args["cluster"], ctx)
    state = tf.train.Checkpoint(weight=tf.Variable(0.0))
    checkpoint = ctx.checkpoint(f"{args['directory']}/checkpoint", **args["saves"])
    first = step = checkpoint.restore(state)
    notes.meet("restored", json.dumps({"step": step, "host": ctx.host}))  # or one may save before another restores
    read = {"parquet": ctx.read_parquet, "tfrecord": ctx.read_tfrecord}.get(args["read"])
    feed = read(args["files"], cache=args["cache"], order=args["order"]) if read else ctx.feed()
    order = {"shuffle": args["seed"] is not None, "seed": args["seed"] or 0}
    ended = []
    batches = feed.batches(args["batch_size"], features=["id"], **order, first_step=first, on_epoch_end=ended.append)
    with notes.path("steps").open("w") as file:
        while not ended or ended[-1] < args["epochs"] - 1:
            for batch in batches:
                epoch = feed._share.latest.epoch
                if epoch == args["epochs"]:
                    return first
                real = np.asarray(batch["id"])[~np.signbit(np.asarray(batch["sample_weight"]))]
                file.write(json.dumps({"step": step, "epoch": epoch, "ids": real.tolist()}) + "\n")
                file.flush()
                step += 1
                due = checkpoint.is_due()
                if (due or not step % args["every"]) and not (args["arriving"] and not epoch):
                    notes.meet(f"saves-{step}")  # the rows of all workers are noted
                    checkpoint.save(state, step)
                if not ctx.attempt and [ctx.index, step] == args["marks"]:
                    notes.write("marked")
                if not ctx.attempt and [ctx.index, step] == args["dies"]:
                    os.kill(os.getpid(), signal.SIGKILL)
                if step - first == args["takes"]:
                    return first
                time.sleep(args["pace"])
    return first


class Notes:
    """Files of a worker in a run, which is an attempt of a cluster; with them it waits for the others."""

    def __init__(self, directory, cluster, ctx):
        self._directory, self._run, self._ctx = directory, f"{cluster}-{ctx.attempt}", ctx

    def path(self, name):
        return self._directory / f"{name}-{self._run}-{self._ctx.index}"

    def write(self, name, text=""):
        new = self.path(f"new-{name}")
        new.write_text(text)
        new.rename(self.path(name))

    def meet(self, name, text=""):
        """Write a file, and wait until all workers of the run have one of this name."""
        self.write(name, text)
        while len(list(self._directory.glob(f"{name}-{self._run}-*"))) < self._ctx.num_workers:
            time.sleep(0.01)


class Counted(NamedTuple):
    """What the runs of a training have done together.

    Attributes
    ----------
    begun : list of int
        The step with which each run began, in their order.
    epochs : list of Counter
        The rows of each epoch, of the steps that count: those of a run before the step with which the next one began.
    steps : list of list of int
        The rows of each of these steps, sorted.
    """

    begun: list
    epochs: list
    steps: list

    def differences(self, rows):
        """Return for each epoch in which not each of these rows came once: its number, rows too many, rows missing."""
        wanted = Counter(rows)
        found = enumerate(self.epochs)
        return [(number, dict(rows - wanted), dict(wanted - rows)) for number, rows in found if rows != wanted]


def counted(directory, epochs):
    """Return what the runs of a training of so many epochs have noted."""
    begun = {}
    for path in Path(directory).glob("restored-*"):
        begun.setdefault(_run(path), set()).add(json.loads(path.read_text())["step"])
    assert all(len(steps) == 1 for steps in begun.values()), f"workers of a run began with different steps: {begun}"
    runs = sorted(begun)
    starts = [begun[run].pop() for run in runs]
    ends = dict(zip(runs, [*starts[1:], float("inf")], strict=True))
    found = [Counter() for _ in range(epochs)]
    steps = {}
    for path in Path(directory).glob("steps-*"):
        for each in map(json.loads, path.read_text().splitlines()):
            if each["step"] < ends[_run(path)]:
                found[each["epoch"]].update(each["ids"])
                steps.setdefault(each["step"], []).extend(each["ids"])
    return Counted(starts, found, [sorted(steps[step]) for step in sorted(steps)])


def _run(path):
    """Return the numbers of a note's cluster and attempt."""
    return tuple(map(int, path.name.split("-")[-3:-1]))


def main():
    spark = SparkSession.builder.getOrCreate()
    settings = {"num_workers": 2, "restarts": 1, "nodes": tfos.Nodes(warm_nodes=False)}
    for way in ("train", "run"):
        with tempfile.TemporaryDirectory(dir=os.environ["TFOS_TEST_SHARED"]) as directory:
            data = spark.range(0, _ROWS, 1, 12)
            args = {**PROGRAM, "directory": directory, "dies": [1, _KILLED]}
            if way == "run":
                tfos.run(spark, train, args, data=data, **settings)
            else:
                with tfos.Cluster(spark, train, args, **settings) as cluster:
                    cluster.train(data, feed_timeout=60)
            found = counted(directory, _EPOCHS)
        once = not found.differences(range(_ROWS))
        print(json.dumps({"way": way, "begun": found.begun, "once": once}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
