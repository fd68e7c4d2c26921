"""Spans of a run, as a collector gets them."""

import os
import signal

import pytest

import tensorflowonspark as tfos
from tests.support.otlp_receiver import receive
from tests.support.programs import small_frame, small_model

pytestmark = [pytest.mark.masters("local"), pytest.mark.timeout(240)]
_ERROR = 2
_STEPS = 16  # of an epoch


def fit(args, ctx):
    """Train with a checkpoint for each epoch; in the first attempt a worker is killed in the second epoch."""
    import keras
    import tensorflow as tf

    def end_step(batch, logs):
        if "kill" in args and not ctx.attempt and ctx.index and model.optimizer.iterations == _STEPS + 3:
            os.kill(os.getpid(), signal.SIGKILL)

    with tf.distribute.MultiWorkerMirroredStrategy().scope():
        model = small_model()
    callbacks = [keras.callbacks.LambdaCallback(on_train_batch_end=end_step)]
    callbacks += [ctx.checkpoint(args["directory"]).callback()]
    model.fit(ctx.dataset(8, features="features", label="label"), epochs=2, verbose=0, callbacks=callbacks)


def train(spark, args, monkeypatch, **variables):
    with receive() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.address)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        with tfos.Cluster(spark, fit, args, num_workers=2, restarts=1) as cluster:
            cluster.train(small_frame(spark, [64, 64]))
            cluster.join()
    return receiver, cluster.metrics()


def named(receiver, *names):
    return [len(receiver.spans(name)) for name in names]


def test_the_spans_of_a_run(spark, tmp_path, monkeypatch):
    parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    receiver, metrics = train(
        spark, {"directory": f"{tmp_path}"}, monkeypatch, TRACEPARENT=parent, OTEL_SERVICE_NAME="nightly"
    )
    (run,), (attempt,) = receiver.spans("run"), receiver.spans("attempt")
    assert run.trace_id.hex() == "4bf92f3577b34da6a3ce929d0e0e4736"
    assert run.parent_span_id.hex() == "00f067aa0ba902b7"
    assert attempt.parent_span_id == run.span_id
    assert receiver.facts("run") == [
        {
            "tensorflowonspark.program": "fit",
            "tensorflowonspark.restarts": 0,
            "tensorflowonspark.rows": 256,
            "tensorflowonspark.goodput": metrics.goodput.share,
        }
    ]
    assert receiver.facts("attempt") == [
        {"tensorflowonspark.attempt": 0, "tensorflowonspark.workers": 2, "tensorflowonspark.ps": 0}
    ]
    assert receiver.facts("feed") == [{"tensorflowonspark.feed": 0, "tensorflowonspark.rows": 128}]
    assert [each["tensorflowonspark.step"] for each in receiver.facts("save")] == [_STEPS, 2 * _STEPS]
    assert named(receiver, "start", "first step", "failure", "restart") == [1, 1, 0, 0]
    assert receiver.resources[0]["service.name"] == "nightly"
    for name in ("start", "feed", "first step", "save"):
        for span in receiver.spans(name):
            assert span.parent_span_id == attempt.span_id
            assert run.start_time_unix_nano <= attempt.start_time_unix_nano <= span.start_time_unix_nano
            assert span.start_time_unix_nano < span.end_time_unix_nano <= attempt.end_time_unix_nano
    assert not any(span.status.code for span in (run, attempt))


def test_a_failure_and_the_restart_after_it(spark, tmp_path, monkeypatch):
    receiver, metrics = train(spark, {"directory": f"{tmp_path}", "kill": True}, monkeypatch)
    (run,), attempts, (failure,) = receiver.spans("run"), receiver.spans("attempt"), receiver.spans("failure")
    host = metrics.nodes[1].host
    assert receiver.facts("failure") == [
        {"tensorflowonspark.node": "worker:1", "tensorflowonspark.cause": "killed", "host.name": host}
    ]
    assert failure.parent_span_id == attempts[0].span_id
    assert [each["tensorflowonspark.attempt"] for each in receiver.facts("attempt")] == [0, 1]
    assert [each.status.code for each in [run, *attempts, failure]] == [0, _ERROR, 0, _ERROR]
    assert "worker:1" in failure.status.message
    (restart,) = receiver.spans("restart")
    assert restart.parent_span_id == run.span_id
    assert restart.start_time_unix_nano == failure.start_time_unix_nano
    assert restart.end_time_unix_nano == receiver.spans("start")[1].end_time_unix_nano
    assert named(receiver, "start", "first step", "feed") == [2, 2, 2]
    assert [each["tensorflowonspark.step"] for each in receiver.facts("save")] == [_STEPS, 2 * _STEPS]
    assert receiver.facts("run")[0]["tensorflowonspark.restarts"] == 1
