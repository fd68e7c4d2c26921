"""Sequences in packed and in padded rows on real nodes: the weights are those of one process with the same steps."""

from contextlib import nullcontext

import numpy as np
import pytest
from pyspark.sql import functions as f

import tensorflowonspark as tfos
from tests.support.programs import killer_at_step

pytestmark = [pytest.mark.masters("local"), pytest.mark.timeout(300)]
LENGTH, WORDS, BATCH, EPOCHS, RATE = 16, 5, 6, 2, 0.7
DRAWN = 50  # packed rows of an epoch of a mixture
COLUMNS = {"features": "tokens", "label": "next", "sample_weight": "weight"}
PACKED = {**COLUMNS, "pack": {"tokens": LENGTH, "next": LENGTH}, "too_long": "split"}
BUCKETED = {**COLUMNS, "bucket": {"tokens": (LENGTH, 24, 50), "next": (LENGTH, 24, 50)}}


def train(args, ctx):
    """Train a table of logits by word; return its batches, the weights and what they are on the rows to validate on."""
    import keras

    with nullcontext() if args["on_jax"] else ctx.strategy().scope():
        wanted = PACKED if args["packs"] else BUCKETED
        shape, names = ((LENGTH,), ("segment_ids", "positions")) if args["packs"] else ((None,), ("present",))
        inputs = {name: keras.Input(shape, dtype="int32", name=name) for name in ("tokens", *names)}
        table = keras.layers.Embedding(WORDS, WORDS, embeddings_initializer="zeros")
        model = keras.Model(inputs, table(inputs["tokens"]))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(RATE), loss, jit_compile=False)
    checkpoint = ctx.checkpoint(args["directory"]) if args["directory"] else None
    callbacks = [checkpoint.callback(every=3), killer_at_step(ctx, args["dies"], victim=1)] if checkpoint else []
    epochs = ctx.batches(BATCH, **wanted, seed=3)
    batches = [batch for _ in range(0 if checkpoint else EPOCHS) for batch in epochs]
    validation = ctx.validation_dataset(BATCH, **wanted)
    read = ctx.batches if args["on_jax"] and not checkpoint else ctx.dataset
    model.fit(read(BATCH, **wanted, seed=3), epochs=EPOCHS, verbose=0, callbacks=callbacks)
    steps = [(x["tokens"], y, weights) for x, y, weights in batches]
    return steps, model.get_weights()[0], model.evaluate(validation, verbose=0)


@pytest.fixture
def rows(spark):
    """Return sequences of 0 to 40 words, a third of them to validate on."""
    length = (f.col("id") * 7) % 41
    words = f.transform(f.sequence(f.lit(1), length), lambda each: (each * each + f.col("id")) % WORDS)
    words = f.when(length > 0, words).otherwise(f.array().cast("array<bigint>"))
    columns = [
        words.cast("array<int>").alias("tokens"),
        f.transform(words, lambda each: (each + 1) % WORDS).alias("next"),
    ]
    return spark.range(0, 90, 1, 5).select(
        *columns, (f.col("id") % 3 + 1.0).alias("weight"), (f.col("id") % 3 == 0).alias("held")
    )


def run(spark, rows, workers, *, mixed=False, **options):
    args = {"on_jax": False, "packs": True, "directory": "", "dies": 0, **options}
    env = {"KERAS_BACKEND": "jax"} if args["on_jax"] else {}
    restarts = int(bool(args["directory"]))
    data = {"light": (rows.where("weight < 3"), 0.75), "heavy": (rows.where("weight = 3"), 0.25)} if mixed else rows
    with tfos.Cluster(spark, train, args, num_workers=workers, env=env, restarts=restarts) as cluster:
        cluster.train(data, validation="held", epoch_rows=DRAWN if mixed else None)
        return list(cluster.shutdown().values())


def softmax(logits):
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def trained(steps):
    """Return the table after these steps of all workers together, in one process."""
    table = np.zeros((WORDS, WORDS))
    for step in steps:
        tokens, labels, weights = (np.concatenate([each[part] for each in step]) for part in range(3))
        real = ~np.signbit(weights).all(1)
        tokens, labels, weights = tokens[real], labels[real], weights[real]
        gradient = np.zeros_like(table)
        np.add.at(gradient, tokens, weights[..., None] * (softmax(table[tokens]) - np.eye(WORDS)[labels]))
        table -= RATE * gradient / tokens.size
    return table


BACKENDS = [
    pytest.param({}, id="tensorflow"),
    pytest.param({"packs": False}, id="in buckets"),
    pytest.param({"mixed": True}, id="mixed"),
    pytest.param({"on_jax": True}, marks=pytest.mark.slow, id="jax"),
    pytest.param({"on_jax": True, "packs": False}, marks=pytest.mark.slow, id="jax in buckets"),
    pytest.param({"on_jax": True, "mixed": True}, marks=pytest.mark.slow, id="jax mixed"),
]


@pytest.mark.parametrize("how", BACKENDS)
def test_the_weights_are_those_of_one_process_with_the_same_steps(spark, rows, how):
    if "on_jax" in how:
        pytest.importorskip("jax", reason="JAX is installed by users")
    found = run(spark, rows, 2, **how)
    steps = list(zip(*(own for own, _, _ in found), strict=True))  # as many on both
    if "mixed" in how:
        assert len(steps) == EPOCHS * -(-DRAWN // BATCH)
    else:
        values = sum((each[2] > 0).sum() for step in steps for each in step)
        assert values == EPOCHS * rows.where("not held").select(f.sum(f.size("tokens"))).first()[0]
    expected = trained(steps)
    for _, table, loss in found:
        np.testing.assert_allclose(table, expected, rtol=1e-4, atol=1e-6)
        assert loss == pytest.approx(found[0][2])


def train_on(args, ctx):
    """Train a model that the first batch builds, on the steps of an epoch from one on; return how many it takes."""
    import keras

    model = keras.Sequential(
        [keras.layers.Embedding(WORDS, 2), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1)]
    )
    model.compile("sgd", "mse")
    options = {"features": "tokens", "label": "held", "bucket": {"tokens": (LENGTH, 50)}, "seed": 3}
    data = ctx.dataset(BATCH, **options, first_step=args)
    tokens_alone = data.map(lambda x, y, weights: (x["tokens"], y, weights))
    taken = []
    count = keras.callbacks.LambdaCallback(on_train_batch_end=lambda step, logs: taken.append(step))
    model.fit(tokens_alone, verbose=0, callbacks=[count])
    return len(taken)


@pytest.mark.slow
def test_a_model_is_built_on_jax_by_a_batch_that_is_taken_afterwards(spark, rows):
    pytest.importorskip("jax", reason="JAX is installed by users")
    steps = -(-rows.count() // BATCH)
    with tfos.Cluster(spark, train_on, 4, num_workers=2, env={"KERAS_BACKEND": "jax"}) as cluster:
        cluster.train(rows)
        assert set(cluster.shutdown().values()) == {steps - 4}


def train_on_a_stream(args, ctx):
    """Train on rows that come once, with lengths that only a map of the program's knows."""
    import keras
    import tensorflow as tf

    model = keras.Sequential([keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    data = ctx.dataset(BATCH, features="tokens", label="weight", shapes={"tokens": (None,)})
    lengths = data.map(lambda x, y, weights: (tf.cast(x.to_tensor(), tf.float32)[:, :, None], y, weights))
    model.fit(lengths, verbose=0)


@pytest.mark.timeout(120)
def test_no_batch_of_a_stream_is_taken_to_build_a_model_on_jax(spark, rows):
    pytest.importorskip("jax", reason="JAX is installed by users")
    with pytest.raises(tfos.NodeError, match="values of several lengths .* and no first batch"):
        with tfos.Cluster(spark, train_on_a_stream, env={"KERAS_BACKEND": "jax"}) as cluster:
            cluster.train(rows, cache=None)
            cluster.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize("how", [{}, {"mixed": True}, {"on_jax": True, "packs": False}], ids=["tf", "mixed", "jax"])
def test_a_restart_within_an_epoch_has_the_same_rows_in_each_step(spark, rows, tmp_path, how):
    (_, expected, loss), _ = run(spark, rows, 2, **how)
    for _, table, own in run(spark, rows, 2, directory=str(tmp_path / "checkpoints"), dies=8, **how):
        np.testing.assert_allclose(table, expected, rtol=1e-5, atol=1e-7)
        assert own == pytest.approx(loss)
