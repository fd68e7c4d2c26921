"""Contender: trains a language model on JAX, in one plain process or in nodes of a cluster; prints what it found."""

import json
import sys
from functools import partial

from benchmarks.gpu.model import texts, train


def plain(settings, epochs):
    """Train in this process, which knows nothing of this package."""
    rows = texts(settings)
    return [train((rows[:, :-1], rows[:, 1:]), settings, epochs)]


def in_nodes(settings, epochs, workers, fed):
    """Train in the workers of a cluster, each of which has the machine's GPU; several train alone, on a part of it."""
    from benchmarks.gpu import model
    from tensorflowonspark.driver.feed.job import FeedRequest
    from tensorflowonspark.keras.workers import combine
    from tests.support.gpu_nodes import gpu_cluster

    def program(_, ctx):
        if fed:
            data = ctx.batches(settings["batch"], features="x", label="y")
            return model.train(data, settings, epochs)
        rows = model.texts(settings)
        wait = partial(combine, "an epoch", None) if workers > 1 else None
        return model.train((rows[:, :-1], rows[:, 1:]), settings, epochs, wait)

    # JAX takes three quarters of a GPU's memory when it starts, and so would the second worker.
    alone = {"TFOS_JAX_ALONE": "1", "XLA_PYTHON_CLIENT_MEM_FRACTION": f"{0.8 / workers:.2f}"} if workers > 1 else {}
    with gpu_cluster(program, num_workers=workers, env=alone) as cluster:
        if fed:
            cluster._feed(FeedRequest(partitions(settings)))
        return list(cluster.shutdown(600).values())


def partitions(settings):
    """Return an epoch's rows as four partitions of Arrow batches."""
    import numpy as np
    import pyarrow as pa

    def column(part):
        return pa.FixedSizeListArray.from_arrays(pa.array(part.ravel()), part.shape[1])

    parts = np.array_split(texts(settings), 4)
    return [[pa.record_batch({"x": column(part[:, :-1]), "y": column(part[:, 1:])})] for part in parts]


if __name__ == "__main__":
    wanted = json.loads(sys.argv[1])
    if wanted["workers"]:
        found = in_nodes(wanted["settings"], wanted["epochs"], wanted["workers"], wanted["fed"])
    else:
        found = plain(wanted["settings"], wanted["epochs"])
    print(json.dumps(found))
