"""Batches that workers can't share evenly: they learn what one process learns of the same rows, or refuse by name."""

import traceback

import numpy as np
import pytest

import tensorflowonspark as tfos
from tests.support.paths import ROOT
from tests.support.uneven_batches import CLASSES, ESSENTIAL, SHAPES, TOKENS, WEIGHTS, Place, X, cases, in_steps

_COLUMNS = {"x": X, "y": 2 * X, "w": WEIGHTS, "class": CLASSES, "tokens": TOKENS, "labels": 3 * TOKENS}
_SHAPES = {"tokens": (3, 1), "labels": (3, 1)}


def outcomes(place):
    """Return what each case gives, or the error."""
    import keras

    found = {}
    for name, case in cases(place).items():
        try:
            found[name] = case()
        except tfos.SpecError as error:
            found[name] = str(error)
        except Exception:
            found[name] = traceback.format_exc()
        keras.utils.clear_session(free_memory=False)
    return found


def program(args, ctx):
    """Return the outcomes of each feed."""
    import sys

    sys.path.append(args["modules"])
    import tensorflow as tf

    from tests.cluster.keras.test_uneven_batches import _SHAPES, outcomes
    from tests.support.uneven_batches import ESSENTIAL, Place

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    found = []
    for number, (feed, batch) in enumerate(zip(ctx.feeds(), args["batches"], strict=False)):

        def dataset(features, label, weights=None, feed=feed, batch=batch):
            columns = {"features": features, "label": label, "sample_weight": weights}
            shapes = {name: shape for name, shape in _SHAPES.items() if name in columns.values()}
            return feed.dataset(batch, **columns, shapes=shapes, shuffle=False)

        found.append(outcomes(Place(strategy, dataset, alone=False, names=ESSENTIAL if number else None)))
    return found


def in_one_process(partitions, batch, names):
    """Return what plain Keras learns of the same rows in the same steps."""
    import tensorflow as tf

    steps = in_steps(partitions, batch)

    def dataset(features, label, weights=None):
        def batches():
            for rows in steps:
                weight = _COLUMNS[weights][rows] if weights else np.ones(len(rows), "f4")
                x, y = (_COLUMNS[name][rows].reshape(-1, *_SHAPES.get(name, ())) for name in (features, label))
                of_tokens = features == "tokens"  # plain Keras multiplies weights and losses as they are
                yield x, y, weight[:, None] if of_tokens else weight

        kinds = [_COLUMNS[name].dtype for name in (features, label)]
        spec = [
            tf.TensorSpec((None, *_SHAPES.get(name, ())), kind)
            for name, kind in zip((features, label), kinds, strict=True)
        ]
        spec.append(tf.TensorSpec((None, 1) if features == "tokens" else (None,), tf.float32))
        dataset = tf.data.Dataset.from_generator(batches, output_signature=tuple(spec))
        # With an unknown number of steps plain Keras counts one more in each epoch.
        return dataset.apply(tf.data.experimental.assert_cardinality(len(steps)))

    return outcomes(Place(tf.distribute.get_strategy(), dataset, alone=True, names=names))


def frame(spark, partitions):
    """Return a DataFrame with these rows in these partitions."""
    rows = [[tuple(_COLUMNS[name][row].tolist() for name in _COLUMNS) for row in partition] for partition in partitions]
    rdd = spark.sparkContext.parallelize(rows, len(rows)).flatMap(list)
    types = {"class": "long", "tokens": "array<float>", "labels": "array<float>"}
    return spark.createDataFrame(rdd, ", ".join(f"{name} {types.get(name, 'float')}" for name in _COLUMNS))


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.masters("local")
@pytest.mark.parametrize("workers", SHAPES)
def test_workers_learn_what_one_process_learns(spark, workers):
    args = {"modules": str(ROOT), "batches": [batch for _, batch in SHAPES[workers].values()]}
    with tfos.Cluster(spark, program, args, num_workers=workers) as cluster:
        for partitions, _ in SHAPES[workers].values():
            cluster.train(frame(spark, partitions), rebalance=False)
        results = cluster.join()
    problems = []
    for number, (shape, (partitions, batch)) in enumerate(SHAPES[workers].items()):
        expected = in_one_process(partitions, batch, ESSENTIAL if number else None)
        for node, of_feeds in results.items():
            found = of_feeds[number]
            assert {name for name in found if not name.startswith("refused")} == set(expected)
            for name, each in found.items():
                if name.startswith("refused"):
                    problems += [] if "Refused.train_step: its loss is" in str(each) else [(shape, node, name, each)]
                elif isinstance(each, str) or not _same(each, expected[name], _DIVIDED in name):
                    problems.append((shape, node, name, each, expected[name]))
    assert not problems, "\n".join(map(str, problems))


def steps_of_a_fit(_args, ctx):
    """Return a fit's number of steps, and the weight that it learns."""
    import keras
    import tensorflow as tf

    with tf.distribute.MultiWorkerMirroredStrategy().scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")])
        model.compile(keras.optimizers.SGD(0.01), "mse")
    data = ctx.dataset(8, features="x", label="y", shapes={"x": (1,)}, shuffle=False)
    model.fit(data, epochs=2, verbose=0)
    return int(model.optimizer.iterations.numpy()), float(model.get_weights()[0].item())


@pytest.mark.masters("local")
def test_three_workers_take_the_steps_of_one_process(spark):
    """Their shares of a batch of eight are 3, 3 and 2: each takes the smallest one in turn."""
    df = spark.range(64, numPartitions=3).selectExpr("float(1) as x", "float(2) as y")
    results = tfos.run(spark, steps_of_a_fit, None, num_workers=3, data=df, logs=tfos.Logs(show="none"))
    assert [steps for steps, _ in results.values()] == [16, 16, 16]
    np.testing.assert_allclose([weight for _, weight in results.values()], 2 - 0.98**16, rtol=1e-5)


_DIVIDED = "divided by the replicas"


def _same(one, other, only_weights):
    if only_weights:  # it shows what it has divided itself
        one, other = one[:1], other[:1]
    return len(one) == len(other) and all(
        np.shape(a) == np.shape(b) and np.allclose(a, b, rtol=1e-3, atol=1e-5) for a, b in zip(one, other, strict=True)
    )
