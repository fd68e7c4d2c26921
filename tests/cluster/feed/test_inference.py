"""Rows out, results back: in order, one for one, from the nodes of a living cluster."""

import os
import signal
import time
from contextlib import nullcontext

import numpy as np
import pytest
from pyspark.sql import functions as f

import tensorflowonspark as tfos
from tests.support.programs import small_frame, wait_for


def answer(args, ctx):
    """Train on sums, so to say, then answer with what was learned."""
    total = 0
    ctx.serve(lambda ids: {"more": ids + total, "node": np.full(len(ids), ctx.index)}, features="id")
    for feed in ctx.feeds():
        total += sum(int(batch["id"].sum()) for batch in feed.batches(10, features=["id"])())


@pytest.mark.smoke
def test_train_train_then_infer_on_one_living_cluster(spark):
    with tfos.Cluster(spark, answer) as cluster:
        cluster.train(spark.range(10))
        cluster.train(spark.range(10), cache=None)
        asked = small_frame(spark, [40, 0, 30, 5])
        rows = cluster.inference(asked, "more long, node int").collect()
        again = cluster.inference(asked, "more long, node int", keep=["id"])
        assert again.columns == ["id", "more", "node"]
        assert again.where("id = 3").collect()[0].more == 93
    assert [row.more - row.id for row in rows] == [90] * 75
    assert sorted(row.id for row in rows) == list(range(75))
    assert rows[0].asDict().keys() == {"features", "label", "id", "more", "node"}


@pytest.mark.masters("local")
def test_many_partitions_at_a_time_keep_their_rows_apart(spark):
    def program(args, ctx):
        ctx.serve(lambda ids: ids * 2, batch_rows=7)

    with tfos.Cluster(spark, program, num_workers=2) as cluster:
        frame = spark.range(0, 20_000, 1, 16)
        rows = cluster.inference(frame, "double long").collect()
    assert [(row.id, row.double) for row in rows] == [(number, 2 * number) for number in range(20_000)]


@pytest.mark.smoke
@pytest.mark.masters("local")
def test_a_keras_model_answers(spark):
    def program(args, ctx):
        import keras

        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((3,)), keras.layers.BatchNormalization(), keras.layers.Dense(2)])
        ctx.serve(model, features="features")
        return [weight.numpy() for weight in model.weights]

    frame = small_frame(spark, [20, 20])
    with tfos.Cluster(spark, program) as cluster:
        rows = cluster.inference(frame, "scores array<float>").collect()
        weights = cluster.join()["worker:0"]
    gamma, beta, mean, variance, kernel, bias = weights
    for row in rows:
        expected = ((np.array(row.features) - mean) / np.sqrt(variance + 1e-3) * gamma + beta) @ kernel + bias
        np.testing.assert_allclose(row.scores, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.masters("local")
@pytest.mark.parametrize(
    ("function", "schema", "words"),
    [
        (lambda ids: ids[:-1], "y long", "rows went in"),
        (lambda ids: {"z": ids}, "y long", "no 'y'"),
        (lambda ids: [str(each) + "!" for each in ids], "y long", "result column 'y'.*can't be"),
        (lambda ids: np.ones((len(ids), 3)), "y float", "shape"),
        (lambda ids: 1 / 0, "y long", "raised ZeroDivisionError.* partition"),
    ],
)
def test_answers_that_are_not_as_promised_are_named(spark, function, schema, words):
    with tfos.Cluster(spark, lambda args, ctx: ctx.serve(function)) as cluster:
        with pytest.raises(Exception, match=words):
            cluster.inference(spark.range(0, 10, 1, 2), schema).collect()


@pytest.mark.masters("local")
def test_what_can_not_be_asked_is_refused_at_once(spark):
    with tfos.Cluster(spark, lambda args, ctx: ctx.serve(lambda ids: ids)) as cluster:
        for arguments, words in [
            (("y lnog",), "expected columns and types"),
            (("id long",), "have a column 'id', which the DataFrame has too"),
            (("y long", ["idd"]), "no column 'idd'"),
        ]:
            with pytest.raises(tfos.SpecError, match=words):
                cluster.inference(spark.range(3), arguments[0], keep=arguments[1] if len(arguments) > 1 else None)
        frame = spark.range(3).select(f.create_map(f.lit("a"), "id").alias("m"))
        with pytest.raises(tfos.FeedError, match="column 'm' has type map"):
            cluster.inference(frame, "y long")
        later = cluster.inference(spark.range(3), "y long")
    with pytest.raises(Exception, match="only while the cluster runs"):
        later.collect()
    with pytest.raises(tfos.ClusterError, match="not running"):
        cluster.inference(spark.range(3), "y long")


def _returns(args, ctx):
    return None


def _waits_for_rows(args, ctx):
    for _ in ctx.feeds():
        pass
    ctx.serve(lambda ids: ids)


def _sleeps(args, ctx):
    args.touch()
    time.sleep(3600)


@pytest.mark.masters("local")
@pytest.mark.parametrize(
    ("program", "words"),
    [
        (_returns, "it has returned. Call ctx.serve before the program returns"),
        (_waits_for_rows, "it waits for rows, and none are fed. Call ctx.serve before the program asks for them"),
        (_sleeps, r"after 2 s \(timeout\) it waits at:\n.*time.sleep\(3600\)"),
    ],
)
def test_a_program_that_does_not_answer_is_named(spark, program, words, tmp_path):
    begin = time.monotonic()
    with pytest.raises(tfos.FeedError, match=f"(?s)the program of worker:0 on .* has not called ctx.serve.*{words}"):
        with tfos.Cluster(spark, program, tmp_path / "begun", nodes=tfos.Nodes(heartbeat_timeout=1)) as cluster:
            if program is _waits_for_rows:
                cluster.train(spark.range(10))
            if program is _sleeps:
                wait_for((tmp_path / "begun").exists)
            cluster.inference(spark.range(3), "y long", timeout=2 if program is _sleeps else 600)
    assert time.monotonic() - begin < 30


def _answers_until(fatal):
    """Return a program that answers, until a node is sent what is fatal for it."""

    def program(args, ctx):
        def twice(ids):
            if fatal(ctx, ids):
                os.kill(os.getpid(), signal.SIGKILL)
            return {"twice": 2 * ids, "node": np.full(len(ids), ctx.index)}

        ctx.serve(twice, features="id", batch_rows=10)
        return ctx.index

    return program


@pytest.mark.masters("local", "standalone")
def test_rows_of_a_node_that_is_killed_go_to_another_one(spark, caplog):
    program = _answers_until(lambda ctx, ids: ctx.index and (ids == 355).any())
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 50)
    with tfos.Cluster(spark, program, num_workers=2) as cluster:
        found = cluster.inference(spark.range(0, 400, 1, 2), "twice long, node int").collect()
        again = cluster.inference(spark.range(0, 40, 1, 4), "twice long, node int").collect()
        assert cluster.join() == {"worker:0": 0, "worker:1": 1}
    spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert [(row.id, row.twice) for row in found] == [(number, 2 * number) for number in range(400)]
    assert {row.node for row in found} == {0, 1}
    assert [(row.twice, row.node) for row in again] == [(2 * number, 0) for number in range(40)]
    assert "ended by SIGKILL after its program had returned. The others answer on" in caplog.text


@pytest.mark.masters("local")
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_rows_that_end_every_node_are_named_soon(spark, workers):
    program = _answers_until(lambda _, ids: (ids == 77).any())
    left = workers > 3  # three are lost with these rows
    with nullcontext() if left else pytest.raises(tfos.NodeError, match="ended by SIGKILL"):
        with tfos.Cluster(spark, program, num_workers=workers) as cluster:
            with pytest.raises(Exception, match=r"partition 0: worker:\d on .* did not answer after \d+ rows"):
                cluster.inference(spark.range(0, 100, 1, 1), "twice long, node int").collect()
            if left:
                assert len(cluster.inference(spark.range(3), "twice long, node int").collect()) == 3


@pytest.mark.masters("local")
def test_inference_is_restarted_when_it_is_asked_for_again(spark):
    program = _answers_until(lambda ctx, ids: not ctx.attempt and (ids == 7).any())
    with tfos.Cluster(spark, program, num_workers=2, restarts=1) as cluster:
        with pytest.raises(Exception, match="after a restart ask again.*ended by SIGKILL"):
            cluster.inference(spark.range(10), "twice long, node int").collect()
        assert len(cluster.inference(spark.range(10), "twice long, node int").collect()) == 10
        assert cluster.join().restarts == 1
