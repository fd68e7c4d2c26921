"""One training on draws of ids by Zipf's law, with one kind of table: its memory, its time, and its AUC."""

import json
import sys
import time

from benchmarks.parallel.embedding_contenders import resident

_IDS_OF_A_ROW, _ROWS_OF_A_STEP, _DIM = 4, 4096, 8
_HELD_OUT = 50  # steps


def rows_of(step, ids, effects):
    """Return a batch: ids, as Zipf's law draws them (rank k with a probability of about 1 / k), and clicks.

    A click has the probability of the sigmoid of the sum of its ids' effects. The id of a rank is a number of 62 bits;
    the plain and the hashed tables get the rank.
    """
    import tensorflow as tf

    shape = (_ROWS_OF_A_STEP, _IDS_OF_A_ROW)
    uniform = tf.random.stateless_uniform(shape, [7, step], dtype=tf.float64)
    rank = tf.cast(tf.exp(uniform * tf.math.log(tf.cast(ids, tf.float64))), tf.int64) - 1
    chance = tf.sigmoid(tf.reduce_sum(tf.gather(effects, rank), axis=1))
    click = tf.cast(tf.random.stateless_uniform(shape[:1], [8, step]) < chance, tf.float32)
    return rank, click[:, None], chance


def train(kind, ids, rows, draws):
    """Train with one kind of table; return what it took, and the AUC on rows that no kind has seen."""
    import keras
    import numpy as np
    import tensorflow as tf

    import tensorflowonspark as tfos
    from benchmarks.parallel.recommender import auc

    keras.utils.set_random_seed(1)
    effects = tf.constant(np.random.default_rng(0).normal(size=ids).astype("float32"))
    optimizer = keras.optimizers.Adagrad(0.1, initial_accumulator_value=1e-10, epsilon=1e-12)
    kinds = {
        "plain": {"rows": ids},
        "hash": {"rows": rows, "hash": True},
        "lru": {"rows": "dynamic", "max_rows": rows, "evict": "lru"},
        "frequency": {"rows": "dynamic", "max_rows": rows, "evict": "frequency"},
        "admit": {"rows": "dynamic", "max_rows": rows, "evict": "lru", "admit": 2},
        "unbounded": {"rows": "dynamic"},
    }
    layer = tfos.keras.ShardedEmbedding(
        dim=_DIM, optimizer=optimizer, combiner="sum", initializer="zeros", **kinds[kind]
    )
    given = keras.Input((_IDS_OF_A_ROW,), dtype="int64")
    kernel = keras.initializers.Constant(_DIM**-0.5)
    model = keras.Model(given, keras.layers.Dense(1, "sigmoid", kernel_initializer=kernel)(layer(given)))
    model.compile("sgd", "binary_crossentropy")

    def batch(step):
        rank, click, chance = rows_of(step, ids, effects)
        if kind == "hash":  # none is in range
            return rank + rows, click, chance
        return (rank if kind == "plain" else rank * 230_584_300_921), click, chance

    steps = max(10, draws // (_IDS_OF_A_ROW * _ROWS_OF_A_STEP))
    data = tf.data.Dataset.range(steps).map(lambda step: batch(step)[:2], num_parallel_calls=1).prefetch(2)
    memory = [(0, resident(), 0)]

    class Memory(keras.callbacks.Callback):
        def on_train_batch_end(self, step, logs=None):
            if (step + 1) % max(1, steps // 10) == 0:
                drawn = (step + 1) * _IDS_OF_A_ROW * _ROWS_OF_A_STEP
                memory.append((drawn, resident(), layer.own_rows))

    start = time.monotonic()
    model.fit(data, verbose=0, callbacks=[Memory()])
    seconds = time.monotonic() - start
    held = [batch(tf.constant(10**9 + step, tf.int64)) for step in range(_HELD_OUT)]
    scores = np.concatenate([model.predict_on_batch(each[0]).ravel() for each in held])
    clicks, chances = (np.concatenate([np.ravel(each[part]) for each in held]) for part in (1, 2))
    drawn = steps * _IDS_OF_A_ROW * _ROWS_OF_A_STEP
    return {
        "draws": drawn,
        "seconds": seconds,
        "memory": memory,
        "auc": auc(clicks, scores),
        "best": auc(clicks, chances),
    }


if __name__ == "__main__":
    print(json.dumps(train(sys.argv[1], *map(int, sys.argv[2:]))))
