"""What follows the death of one of two workers that average their weights in rounds: three ways, in one training.

The others go on without it, or it alone is started again meanwhile, or all are.
"""

import os
import signal
import time
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from threading import Thread

import tensorflowonspark as tfos

WAYS = {
    "without": ("the other goes on without it", 1, tfos.RestartPolicy(0)),
    "alone": ("it alone is started again", 1, tfos.RestartPolicy(1, scope="node")),
    "whole": ("both are started again", 2, tfos.RestartPolicy(1)),
}
WINDOW = 12.0  # seconds after the kill, in which steps are counted
_STEPS_BEFORE, _SAVE_EVERY = 25, 10
_STEP_SECONDS, _POLL_SECONDS = 0.05, 0.01


def program(args, ctx):
    """Train in rounds, and note the time and the number of each step, until the driver has seen enough."""
    import keras

    class Noted(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            with Path(f"{args['directory']}/{ctx.attempt}-{ctx.index}").open("a") as steps:
                steps.write(f"{time.time()} {int(self.model.optimizer.iterations.numpy())} {os.getpid()}\n")
            if Path(args["directory"], "enough").exists():
                raise InterruptedError
            time.sleep(_STEP_SECONDS)

    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(512, "relu"), keras.layers.Dense(512, "relu"), keras.layers.Dense(10)]
    model = keras.Sequential([keras.layers.Input((784,)), *layers])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    rounds = tfos.keras.DiLoCo(every=10, min_workers=args["min_workers"])
    checkpoint = ctx.checkpoint(f"{args['directory']}/checkpoints").callback(every=_SAVE_EVERY)
    rows = ctx.dataset(64, features="features", label="label", seed=1)
    with suppress(InterruptedError):
        model.fit(rows, epochs=1000, verbose=0, callbacks=[checkpoint, rounds, Noted()])


def measure(spark, rows, directory, request):
    """Return the seconds from a kill until the next steps, and the steps that count in the seconds after it."""
    way = request["measure"]
    _, least, restarts = WAYS[way]
    found = {}
    watch = Thread(target=lambda: found.update(_watch(directory, way)), daemon=True)
    args = {"directory": directory, "min_workers": least}
    nodes = tfos.Nodes(warm_nodes=request["warm"])
    with tfos.Cluster(spark, program, args, num_workers=2, nodes=nodes, restarts=restarts) as cluster:
        watch.start()
        cluster.train(rows)
    watch.join()
    return found


def _watch(directory, way):
    """Kill the second worker when both train, and return what follows."""
    while min(len(_steps(directory, 0, index)) for index in (0, 1)) < _STEPS_BEFORE:
        time.sleep(_POLL_SECONDS)
    before = _steps(directory, 0, 1)
    killed = time.time()
    os.kill(before[-1][2], signal.SIGKILL)
    new = {"without": [], "alone": [1], "whole": [0, 1]}[way]
    while time.time() < killed + WINDOW or not all(_steps(directory, 1, index) for index in new):
        time.sleep(_POLL_SECONDS)
    Path(directory, "enough").touch()
    of_other = _steps(directory, 0, 0) + _steps(directory, 1, 0)
    times = [moment for moment, _, _ in of_other if moment <= killed + WINDOW or way == "whole"]
    pauses = [later - max(one, killed) for one, later in pairwise(times) if later > killed]
    counted = [
        max((step for moment, step, _ in steps if moment <= killed + WINDOW), default=0)
        - max(step for moment, step, _ in _steps(directory, 0, index) if moment <= killed)
        for index, steps in enumerate([of_other, _steps(directory, 1, 1)])
    ]
    if way == "alone":  # what it has taken since it joined
        counted[1] = len([moment for moment, _, _ in _steps(directory, 1, 1) if moment <= killed + WINDOW])
    found = {"pause": max(pauses), "steps": sum(max(0, each) for each in counted)}
    return found if way == "without" else {**found, "all": _steps(directory, 1, 1)[0][0] - killed}


def _steps(directory, attempt, index):
    """Return the time, the number and the process of each step of a worker."""
    path = Path(f"{directory}/{attempt}-{index}")
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [(float(moment), int(step), int(pid)) for moment, step, pid in map(str.split, lines)]
