"""The goodput of a training with known losses, beside what the training's own clock says of them."""

import json
import os
import signal
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

import tensorflowonspark as tfos
from tests.support.programs import small_frame, small_model

pytestmark = [pytest.mark.masters("local"), pytest.mark.slow, pytest.mark.timeout(300)]
_EVERY, _KILLED = 30, 58  # steps
_STORE_SECONDS = 0.8  # that each file takes
_SLOW_SECONDS, _FAST_SECONDS = 0.06, 0.01  # of a step
_POINTS = 0.02


def drilled(args, ctx):
    """Train with a slow store and a slow worker, which is killed in the first attempt; note what begins when."""
    import keras
    import tensorflow as tf

    from tensorflowonspark.node.checkpoint.store import CheckpointStore

    write = CheckpointStore._write

    def write_slowly(*given):
        time.sleep(_STORE_SECONDS)
        return write(*given)

    CheckpointStore._write = write_slowly
    notes = (Path(args["directory"]) / f"notes-{ctx.attempt}-{ctx.index}").open("w")

    def note(what):
        notes.write(json.dumps([what, time.time()]) + "\n")
        notes.flush()

    def end_step(batch, logs):
        nonlocal steps
        steps += 1
        if not ctx.attempt and ctx.index and steps == _KILLED:
            os.kill(os.getpid(), signal.SIGKILL)
        if not steps % _EVERY:
            note("save")

    def begin_step(batch, logs):
        note("step")
        time.sleep(_SLOW_SECONDS if ctx.index else _FAST_SECONDS)

    class Validation(keras.callbacks.Callback):
        def on_test_begin(self, logs=None):
            note("validation")

        def on_test_end(self, logs=None):
            note("step")

    steps = 0
    clock = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: note("step"),
        on_epoch_end=lambda epoch, logs: note("save"),
        on_train_begin=lambda logs: note("begin"),
        on_train_end=lambda logs: note("end"),
        on_train_batch_begin=begin_step,
        on_train_batch_end=end_step,
    )
    with tf.distribute.MultiWorkerMirroredStrategy().scope():
        model = small_model()
    checkpoint = ctx.checkpoint(f"{args['directory']}/checkpoint", wait=True)
    rows, validation = (each(8, features="features", label="label") for each in (ctx.dataset, ctx.validation_dataset))
    callbacks = [clock, Validation(), checkpoint.callback(every=_EVERY)]
    model.fit(rows, validation_data=validation, epochs=2, verbose=0, callbacks=callbacks)
    note("end")


def noted(directory):
    """Return the seconds of all workers by what they did, and of the steps that were taken again."""
    seconds = Counter()
    for path in Path(directory).glob("notes-*"):
        events = [json.loads(line) for line in path.read_text().splitlines()]
        last_save = max((place for place, (what, _) in enumerate(events) if what == "save"), default=0)
        for place, ((what, begin), (_, end)) in enumerate(pairwise(events)):
            repeated = what == "step" and path.name.startswith("notes-0") and place > last_save
            seconds["repeated" if repeated else what] += end - begin
    return seconds


def waited(directory):
    """Return for how many seconds one worker has waited for the other, less the waits of that one, in each attempt.

    Each sleeps when its step has begun, and waits in the step for the one that comes later: for the slow one, or after
    a save for the chief.
    """
    seconds = 0.0
    for attempt in range(2):
        begun = []
        for index, sleep in enumerate((_FAST_SECONDS, _SLOW_SECONDS)):
            lines = Path(directory, f"notes-{attempt}-{index}").read_text().splitlines()
            begun.append([time + sleep for what, time in map(json.loads, lines) if what == "step"])
        seconds += abs(sum(other - own for own, other in zip(*begun, strict=False)))
    return seconds


def test_known_losses_are_within_two_points_of_what_the_trainings_own_clock_says(spark, tmp_path):
    begin = time.time()
    with tfos.Cluster(spark, drilled, {"directory": str(tmp_path)}, num_workers=2, restarts=1) as cluster:
        cluster.train(small_frame(spark, [400, 400]), validation=small_frame(spark, [64]))
        cluster.join()
    whole = 2 * (time.time() - begin)
    found, own = cluster.metrics().goodput, noted(tmp_path)
    waits = found.causes["waiting_for_workers"]  # those of the chief; its own clock takes them for steps
    told = {
        "steps": found.share + waits,
        **{each: found.causes.get(each, 0.0) for each in ("saving", "repeated_steps")},
    }
    clock = {"steps": own["step"], "saving": own["save"], "repeated_steps": own["repeated"]}
    expected = {cause: seconds / whole for cause, seconds in clock.items()}
    rest = {"start", "importing", "waiting_for_rows", "validating", "idle", "shutdown", "other"}
    told["rest"] = sum(found.causes.get(each, 0.0) for each in rest)
    expected["rest"] = 1 - sum(expected.values())
    print({cause: f"{told[cause]:.3f} ({expected[cause]:.3f})" for cause in told}, found)
    assert told == pytest.approx(expected, abs=_POINTS)
    told, expected = waits, waited(tmp_path) / whole
    print(f"waiting for workers {told:.3f} ({expected:.3f})")
    assert told == pytest.approx(expected, abs=_POINTS)
