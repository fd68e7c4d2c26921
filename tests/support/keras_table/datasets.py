"""Transformations of tf.data after ours: which rows reach a step of fit."""

import keras
import numpy as np
import tensorflow as tf

from tests.support.keras_table.cells import SYNCHRONOUS, cell, on
from tests.support.keras_table.columns import JAX, MULTI_WORKER, SEVERAL_WORKERS
from tests.support.keras_table.training import in_steps


class Counting(keras.Model):
    """A model whose steps note the ids of the rows that they get."""

    def __init__(self):
        super().__init__()
        self.seen = []
        self.built = True

    def call(self, x):
        return x

    def train_step(self, data):
        _, ids, weights = keras.utils.unpack_x_y_sample_weight(data)
        weights = tf.ones_like(ids, tf.float32) if weights is None else weights
        (count,) = tf.numpy_function(self._note, [ids, weights], [tf.float32])
        count = tf.ensure_shape(count, ())
        return {"loss": count}

    def _note(self, ids, weights):
        self.seen.extend(int(each) for each in np.ravel(ids)[~np.signbit(np.ravel(weights))])
        return np.float32(len(ids))


class CountingOnJax(keras.Model):
    """The same on JAX: steps that are not compiled, which see this worker's part of each array."""

    def __init__(self):
        super().__init__()
        self.seen = []
        self.scale = self.add_weight(shape=())

    def build(self, shape):
        self.built = True

    def call(self, x):
        return x

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        import jax

        if not isinstance(y, jax.core.Tracer):  # as while it is built
            ids = _local(y)
            weights = np.ones(len(ids)) if sample_weight is None else _local(sample_weight)
            self.seen.extend(int(each) for each in ids[~np.signbit(weights)])
        return self.scale * 0.0


def _local(array):
    """Return this process's part of an array of JAX, or a whole one of NumPy, as one dimension.

    An array that all processes have whole is the part of the first.
    """
    if isinstance(array, np.ndarray):
        return np.ravel(array)
    parts = [np.ravel(part.data) for part in array.addressable_shards if not part.replica_id]
    return np.concatenate([np.zeros(0, array.dtype), *parts])


class Rows(list):
    """Ids that one worker has seen: those of all workers together are compared."""


def counted(column, make, data, epochs=2, steps=None):
    if column.coordinator:
        made = make(data)
        return [Rows(sorted(_ids(in_steps(column, _kept, made, steps)))) for _ in range(epochs)]
    with column.scope():
        model = CountingOnJax() if keras.config.backend() == "jax" else Counting()
        model.compile(run_eagerly=keras.config.backend() == "jax")
    dataset = make(data)
    result = []
    for _ in range(epochs):
        model.fit(dataset, verbose=0, steps_per_epoch=steps)
        result.append(Rows(sorted(model.seen)))
        model.seen.clear()
    return result


def _kept(*row):
    ids = row[1]
    if isinstance(ids, tf.RaggedTensor):
        ids = ids.flat_values
    return tf.reshape(ids, [-1])


def _ids(steps):
    return [int(each) for ids in steps for each in np.ravel(ids)]


def _noted(x, y, w):
    return x, y, w


def _resampled(data):
    rows = data.unbatch()
    kept = rows.rejection_resample(lambda x, y, w: tf.cast(y % 2, tf.int32), [0.5, 0.5], [0.5, 0.5], seed=1)
    return kept.map(lambda _label, row: row).batch(8)


def _chosen(data):
    choice = tf.data.Dataset.from_tensor_slices(np.array([0, 1, 0], "i8"))
    return tf.data.Dataset.choose_from_datasets([data.take(2), data.skip(2)], choice)


def _generated_rows(data):
    rows = data.unbatch()
    return tf.data.Dataset.from_generator(lambda: iter(rows), output_signature=rows.element_spec).batch(8)


def _sliced(data):
    batches = list(data)
    return tf.data.Dataset.from_tensor_slices(
        tuple(np.concatenate([np.asarray(batch[place]) for batch in batches]) for place in range(3))
    ).batch(8)


def _weighted(y):
    """Return rows with weights, which mark those that fill up the steps of a worker that has none left; not on JAX."""
    return (y, y) if keras.backend.backend() == "jax" else (y, y, tf.ones_like(y, tf.float32))


WHOLE = {  # all rows come, once in each epoch
    "map": lambda data: data.map(_noted),
    "map, num_parallel_calls=AUTOTUNE": lambda data: data.map(_noted, num_parallel_calls=-1),
    "map, deterministic=False": lambda data: data.map(_noted, num_parallel_calls=4, deterministic=False),
    "unbatch, batch": lambda data: data.unbatch().batch(8),
    "unbatch, batch of another size": lambda data: data.unbatch().batch(5),
    "rebatch": lambda data: data.rebatch(4),
    "padded_batch": lambda data: data.unbatch().padded_batch(8),
    "filter that keeps all": lambda data: data.filter(lambda x, y, w: True),
    "shuffle": lambda data: data.shuffle(10, seed=1),
    "unbatch, shuffle, batch": lambda data: data.unbatch().shuffle(100, seed=1).batch(8),
    "cache": lambda data: data.cache(),
    "cache, shuffle": lambda data: data.cache().shuffle(4, seed=1),
    "prefetch": lambda data: data.prefetch(2),
    "prefetch(AUTOTUNE)": lambda data: data.prefetch(-1),
    "interleave over ours": lambda data: tf.data.Dataset.range(1).interleave(lambda _: data, cycle_length=1),
    "interleave of what our elements give": lambda data: data.interleave(
        lambda x, y, w: tf.data.Dataset.from_tensors((x, y, w)), cycle_length=2, num_parallel_calls=2
    ),
    "flat_map": lambda data: data.flat_map(lambda x, y, w: tf.data.Dataset.from_tensors((x, y, w))),
    "flat_map to rows, batch": lambda data: data.flat_map(
        lambda x, y, w: tf.data.Dataset.from_tensor_slices((x, y, w))
    ).batch(8),
    "zip": lambda data: tf.data.Dataset.zip(data, tf.data.Dataset.range(1000)).map(lambda row, _: row),
    "concatenate": lambda data: data.take(1).concatenate(data.skip(1)),
    "window, flat_map": lambda data: (
        data.unbatch().window(8).flat_map(lambda *parts: tf.data.Dataset.zip(parts).batch(8))
    ),
    "scan": lambda data: data.scan(np.int64(0), lambda state, row: (state + 1, row)),
    "enumerate": lambda data: data.enumerate().map(lambda _, row: row),
    "group_by_window": lambda data: data.unbatch().group_by_window(
        lambda x, y, w: y % 2, lambda key, window: window.batch(8), window_size=8
    ),
    "bucket_by_sequence_length": lambda data: data.unbatch().bucket_by_sequence_length(
        lambda x, y, w: tf.cast(y % 3, tf.int32) + 1, [2], [8, 8]
    ),
    "ragged_batch": lambda data: data.unbatch().map(lambda x, y, w: (y, y, w)).ragged_batch(8),
    "sample_from_datasets": lambda data: tf.data.Dataset.sample_from_datasets(
        [data.take(2), data.skip(2)], seed=3, stop_on_empty_dataset=False
    ),
    "choose_from_datasets": _chosen,
    "apply": lambda data: data.apply(lambda inner: inner.map(_noted)),
    "with_options": lambda data: data.with_options(_options()),
    "with_options: AutoShardPolicy.DATA": lambda data: data.with_options(_sharding("DATA")),
    "with_options: AutoShardPolicy.FILE": lambda data: data.with_options(_sharding("FILE")),
    "ignore_errors": lambda data: data.ignore_errors(),
    "assert_cardinality": lambda data: data.apply(_cardinality(data)),
    "unique": lambda data: data.unbatch().map(lambda x, y, w: y).unique().batch(8).map(_weighted),
    "from_generator over ours": lambda data: tf.data.Dataset.from_generator(
        lambda: iter(data), output_signature=data.element_spec
    ),
    "from_generator over ours, row by row": _generated_rows,
    "take_while": lambda data: data.take_while(lambda x, y, w: True),
}


def _options():
    options = tf.data.Options()
    options.deterministic = True
    options.threading.private_threadpool_size = 1
    return options


def _sharding(policy):
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = getattr(tf.data.experimental.AutoShardPolicy, policy)
    return options


def _cardinality(data):
    return tf.data.experimental.assert_cardinality(int(data.cardinality()))


PART = {  # fewer rows, or more: those that one process gets for global batches
    "take": lambda data: data.take(2),
    "skip": lambda data: data.skip(1),
    "repeat(2)": lambda data: data.repeat(2),
    "shard(2, 0)": lambda data: data.shard(2, 0),
    "filter of batches": lambda data: data.filter(lambda x, y, w: y[0] < 16),
    "unbatch, filter of rows, batch": lambda data: data.unbatch().filter(lambda x, y, w: y < 14).batch(8),
    "map that drops rows of a batch": lambda data: data.map(
        lambda x, y, w: tuple(_masked(each, y % 3 == 0) for each in (x, y, w))
    ),
    "concatenate twice": lambda data: data.concatenate(data),
    "repeat, take": lambda data: data.repeat().take(5),
}


def _masked(values, mask):
    return tf.boolean_mask(values, mask)


# Where Python or the chief itself reads the rows: under a ParameterServerStrategy only the workers can.
IN_PYTHON = ("assert_cardinality", "from_generator over ours", "from_generator over ours, row by row")


@cell("tf.data", *IN_PYTHON, columns=SYNCHRONOUS)
@cell("tf.data", *(name for name in WHOLE if name not in (*IN_PYTHON, "unique")))
def whole(column, name):
    found = counted(column, WHOLE[name], column.even("id"))
    if column.name in SEVERAL_WORKERS:
        uneven = counted(column, WHOLE[name], column.uneven("id"))
    else:
        uneven = [Rows(sorted(column.uneven_ids))] * 2
    return [found, uneven]


_WITHOUT_WEIGHTS = on(JAX, "has lost the weights of its rows")
cell("tf.data", "unique", refused=_WITHOUT_WEIGHTS)(lambda column: whole(column, "unique"))


@cell(
    "tf.data",
    "a program's own arrays of its rows, from_tensor_slices",
    columns=SYNCHRONOUS,
    different=on(
        MULTI_WORKER,
        "TensorFlow takes arrays for data that all workers have, and gives each worker a part of its own. Rows are "
        "lost, and a RuntimeWarning at the end of the epoch counts them. Use ctx.dataset, or set AutoShardPolicy.OFF "
        "in the dataset's options.",
    ),
)
def sliced(column):
    return counted(column, _sliced, column.even("id"))


@cell("tf.data", *PART)
def part(column, name):
    return counted(column, PART[name], column.even("id"))


@cell("tf.data", "rejection_resample", tolerance=-1)
def resample(column):
    (found,) = counted(column, _resampled, column.even("id"), epochs=1)
    known = set(column.ids)
    return [len(found) == len(set(found)), set(found) <= known]


@cell("tf.data", "snapshot", refused=on(SYNCHRONOUS, "dataset.snapshot can't record a feed"))
def snapshot(column):
    place = column.place() / f"snapshot-{column.ctx.index if column.ctx else 0}"
    return counted(column, lambda data: data.snapshot(str(place)), column.even("id"))


@cell("tf.data", "cache in a file")
def cache_file(column):
    place = column.place() / f"cache-{column.ctx.index if column.ctx else 0}"
    return counted(column, lambda data: data.cache(str(place)), column.even("id"))


@cell("tf.data", "save, load", columns=SYNCHRONOUS)
def save(column):
    place = str(column.place() / f"saved-{column.ctx.index if column.ctx else 0}")

    def make(data):
        data.save(place)
        return tf.data.Dataset.load(place)

    return counted(column, make, column.even("id"))


@cell("tf.data", "sparse_batch", refused=_WITHOUT_WEIGHTS)
def sparse_batch(column):
    def make(data):
        rows = data.unbatch().map(lambda x, y, w: y[None])
        return rows.sparse_batch(8, [1]).map(lambda sparse: (tf.sparse.to_dense(sparse)[:, 0],) * 2)

    return counted(column, make, column.even("id"))


@cell("tf.data", "repeat, with steps_per_epoch")
def repeated(column):
    return counted(column, lambda data: data.repeat(), column.even("id"), steps=3)


_OWN_LOOP = (
    "On JAX the batches of a feed are of equal size on all workers: a loop of the program's own finds rows that pad "
    "the last ones. Their weight is -0.0."
)


@cell(
    "tf.data",
    "as_numpy_iterator, reduce, cardinality, get_single_element",
    columns=SYNCHRONOUS,
    different={JAX: _OWN_LOOP},
)
def read(column):
    data = column.even("id")
    total = int(data.reduce(np.int64(0), lambda state, row: state + _sum(row[1])))
    ids = Rows(sorted(int(each) for _, y, _ in data.as_numpy_iterator() for each in y))
    one = data.take(1).get_single_element()
    return [ids, int(data.cardinality()), total >= 0, len(one)]


def _sum(values):
    return tf.reduce_sum(values)
