"""Contender: one cluster of two workers that is fed the same DataFrame in each way, with steps that take some time."""

import tempfile
import time
from threading import Event, Thread

from benchmarks.common.rounds import serve_rounds
from benchmarks.common.spark import Frames, floats, two_whole_workers

BATCH = 1024
BYTES_PER_ROW = 784 * 4 + 8


def program(directory, ctx):
    """Take a step for each batch of each feed; return the seconds of the pass, and the time of its first batch."""
    import numpy as np

    weights = np.ones((784, 784), np.float32)
    found = []
    for number, feed in enumerate(ctx.feeds()):
        with open(f"{directory}/{number}") as file:
            how, seconds = file.read().split()
        if how == "feeding":
            found.append((0.0, 0.0, feed.rows))
            continue
        batches = feed.batches(BATCH, features="x", label="label")
        for _ in range(1 + (how == "epoch")):  # the second one is training alone
            begin, first, rows = time.time(), None, 0
            for x, _, weight in batches:
                first = first or time.time()
                rows += int((weight > 0).sum())
                if float(seconds):
                    time.sleep(float(seconds))
                else:
                    x @ weights
            taken = time.time() - begin
        found.append((taken, first, rows))
    return found


def held_program(args, ctx):
    """Take the steps of one epoch; return the seconds from the start of this function to the first batch, and all."""
    import numpy as np

    begin = time.time()
    weights = np.ones((784, 784), np.float32)
    first, rows = None, 0
    for x, _, weight in ctx.feed().batches(BATCH, features="x", label="label"):
        first = first or time.time()
        rows += int((weight > 0).sum())
        if args:
            time.sleep(args)
        else:
            x @ weights
    return first - begin, time.time() - begin, rows


def held(spark, frame, start, seconds):
    """Return the seconds of the nodes of ``tfos.run(data=df)``, which begin when they are up and can be fed."""
    import tensorflowonspark as tfos

    found = tfos.run(spark, held_program, seconds, data=tfos.Data(frame, start=start), num_workers=2).values()
    return {
        "first": max(first for first, _, _ in found),
        "seconds": max(whole for _, whole, _ in found),
        "rows": sum(rows for _, _, rows in found),
    }


def note_first_task(spark, noted, ended):
    """Note the time at which the first task of the running stage has ended."""
    tracker = spark.sparkContext.statusTracker()
    while not ended.wait(0.02):
        stages = [tracker.getStageInfo(each) for each in tracker.getActiveStageIds()]
        if any(each is not None and each.numCompletedTasks for each in stages):
            noted.append(time.time())
            return


def feeds(spark, frame, how, seconds):
    """Return the seconds of ``cluster.train`` of one epoch, of the epoch itself, and from a partition to a batch."""
    import tensorflowonspark as tfos

    with tempfile.TemporaryDirectory() as directory, tfos.Cluster(spark, program, directory, num_workers=2) as cluster:
        noted, ended = [], Event()
        Thread(target=note_first_task, args=(spark, noted, ended), daemon=True).start()
        start = "first_rows" if how == "first_rows" else "all_rows"
        with open(f"{directory}/0", "w") as file:
            file.write(f"{how} {seconds}")
        begin = time.time()
        cluster.train(frame, cache="disk", start=start)
        whole = time.time() - begin
        ended.set()
        results = [found[0] for found in cluster.join().values()]
    rows = sum(rows for _, _, rows in results)
    return {
        "seconds": whole,
        "pass": max(each[0] for each in results),
        "rows": rows,
        "first": results[0][1] - (noted or [begin])[0],
    }


if __name__ == "__main__":
    with two_whole_workers("4g") as session:
        frames = Frames(session)

        def one_round(request):
            columns = [f"{floats(784)} as x", "cast(id % 10 as float) as label"]
            found = frames.of(columns, request["rows"], 32)
            if request["held"]:
                return held(session, found, request["how"], request["seconds"])
            return feeds(session, found, request["how"], request["seconds"])

        serve_rounds(one_round)
