"""One step of gradient descent on y = w * x from w = 0, with rows that workers can't share evenly: worked out by hand.

With a rate of 0.1 and x = 1, a step makes w 0.2 times the mean of y over all rows, real tokens or weights.
"""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tensorflowonspark as tfos
from tensorflowonspark.ml import KerasEstimator

pytestmark = [pytest.mark.masters("local"), pytest.mark.slow, pytest.mark.timeout(600)]

_PAIR, _TOKENS = [[1.0, 0, 0], [1.0, 1, 1]], [[4.0, 0, 0], [0.0, 0, 0]]  # rows of one token and of three


def _rows(*labels):
    return [([1.0], [float(label)], 1.0) for label in labels]


def _tokens(*pairs):
    return [([float(each) for each in x], [float(each) for each in y], 1.0) for x, y in pairs]


# Kind of model, rows of a batch, rows of each worker (x, y, weight), w, and the first loss.
FIGURES = {
    2: {
        "three rows": ("mse", 4, [_rows(0, 0), _rows(9)], 0.60, 27.0),
        "three rows, parted otherwise": ("mse", 4, [_rows(0), _rows(9, 0)], 0.60, 27.0),
        "batch_size=3 in each of two steps": ("mse", 3, [_rows(0, 0, 0), _rows(9, 9, 0)], 1.08, None),
        "one and seven": ("mse", 16, [_rows(8), _rows(*[0] * 7)], 0.20, 8.0),
        "none and four": ("mse", 8, [[], _rows(8, 0, 0, 0)], 0.40, 16.0),
        "one token and three": ("masked", 2, [[each] for each in _tokens(*zip(_PAIR, _TOKENS, strict=True))], 0.2, 4.0),
        "no token and four": (
            "masked", 4, [_tokens(([0, 0, 0], [5, 5, 5])), _tokens(([1, 0, 0], [4, 0, 0]), ([1, 1, 1], [3, 2, 0.7]))],
            0.485, (16 + 9 + 4 + 0.49) / 4,
        ),
        "weights": (
            "weights", 6,
            [[([1.0], [4.0], 8.0)], [([1.0], [1.0], 1.0), ([1.0], [2.0], 1.0), ([1.0], [3.0], 3.0)]],
            0.677, (8 * 16 + 1 + 4 + 27) / 13,
        ),
        "a step of one's own": ("own", 4, [_rows(0, 0), _rows(9)], 0.60, 27.0),
    },
    3: {"a batch of 64": ("mse", 64, [_rows(*[9] * 21, 0), _rows(*[0] * 21), _rows(*[0] * 21)], 0.59063, None)},
}  # fmt: skip


def model_of(kind, dataset):
    """Return the weight and the loss after one epoch."""
    import keras
    import tensorflow as tf

    class Own(keras.Sequential):
        def train_step(self, data):
            with tf.GradientTape() as tape:
                loss = keras.ops.mean(keras.ops.sum((data[1] - self(data[0], training=True)) ** 2, axis=-1))
            gradients = tape.gradient(loss, self.trainable_weights)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
            return {"own_loss": loss}

    first = [keras.Input((3, 1)), keras.layers.Masking()] if kind == "masked" else [keras.Input((1,))]
    loss = keras.losses.MeanSquaredError(
        reduction="mean_with_sample_weight" if kind == "weights" else "sum_over_batch_size"
    )
    with tf.distribute.MultiWorkerMirroredStrategy().scope():
        dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
        model = (Own if kind == "own" else keras.Sequential)([*first, dense])
        model.compile(keras.optimizers.SGD(0.1), loss)
    ((shown,),) = model.fit(dataset, verbose=0).history.values()
    return float(dense.kernel.numpy()[0, 0]), float(shown)


def fed(args, ctx):
    import sys

    sys.path.append(args["modules"])
    from tests.cluster.keras.test_uneven_figures import model_of

    found = []
    for feed, (kind, batch) in zip(ctx.feeds(), args["cases"], strict=False):
        shapes = {"x": (3, 1), "y": (3, 1)} if kind == "masked" else {"x": (1,), "y": (1,)}
        columns = {"features": "x", "label": "y", "sample_weight": "weight" if kind == "weights" else None}
        found.append(model_of(kind, feed.dataset(batch, **columns, shapes=shapes, shuffle=False)))
    return found


@pytest.mark.parametrize("workers", FIGURES)
def test_a_step_weighs_all_rows_alike(spark, workers):
    from tests.support.paths import ROOT

    cases = FIGURES[workers]
    args = {"modules": str(ROOT), "cases": [each[:2] for each in cases.values()]}
    with tfos.Cluster(spark, fed, args, num_workers=workers) as cluster:
        for _, _, parts, _, _ in cases.values():
            rdd = spark.sparkContext.parallelize(parts, workers).flatMap(list)
            frame = spark.createDataFrame(rdd, "x array<float>, y array<float>, weight float")
            cluster.train(frame, rebalance=False)
        for found in cluster.join().values():
            for (name, (*_, weight, loss)), each in zip(cases.items(), found, strict=True):
                assert each[0] == pytest.approx(weight, abs=5e-4 if name == "weights" else 1e-5), name
                assert loss is None or each[1] == pytest.approx(loss, rel=1e-5), name


def test_rows_of_files_and_of_an_estimator(spark, tmp_path):
    """Three rows on two workers, as above."""
    from tests.support.paths import ROOT

    for file, labels in enumerate(([0.0, 0.0], [9.0])):
        pq.write_table(pa.table({"x": [1.0] * len(labels), "y": labels}), tmp_path / f"{file}.parquet")

    def files(args, ctx):
        import sys

        sys.path.append(args["modules"])
        from tests.cluster.keras.test_uneven_figures import model_of

        feed = ctx.read_parquet(args["path"])
        return model_of("mse", feed.dataset(4, features="x", label="y"))

    for found in tfos.run(spark, files, {"modules": str(ROOT), "path": str(tmp_path)}, num_workers=2).values():
        assert found == pytest.approx((0.60, 27.0))

    def line():
        import keras

        layers = [keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")]
        model = keras.Sequential(layers)
        model.compile(keras.optimizers.SGD(0.1), "mse")
        return model

    frame = spark.createDataFrame([(1.0, 0.0), (1.0, 0.0), (1.0, 9.0)], "features float, label float").coalesce(1)
    fitted = KerasEstimator(line, numWorkers=2, epochs=1, batchSize=4, verbose=0).fit(frame)
    assert fitted.keras().get_weights()[0].item() == pytest.approx(0.60)
    assert fitted.history["loss"] == [pytest.approx(27.0)]
