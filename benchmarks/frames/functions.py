"""The same function for each verb: as a `tf.function`, as a plain one that calls TensorFlow, and in numpy alone."""


def _once(name, make):
    """Return what a function makes, once in each Python worker: no `tf.function` can be pickled."""
    import tensorflow as tf

    made = vars(tf).setdefault("_made_for_frames", {})
    if name not in made:
        made[name] = make()
    return made[name]


def _traced_row():
    import tensorflow as tf

    return tf.function(lambda x: {"y": tf.reduce_sum(tf.tanh(x))})


def _traced_block():
    import tensorflow as tf

    return tf.function(lambda x: {"y": tf.reduce_sum(tf.tanh(x), axis=1)}, reduce_retracing=True)


def _traced_rows():
    import tensorflow as tf

    row = _traced_row()
    return tf.function(lambda x: tf.vectorized_map(row, x), reduce_retracing=True)


def _traced_pair():
    import tensorflow as tf

    return tf.function(lambda x_1, x_2: {"x": tf.maximum(x_1, x_2)})


def _traced_maximum():
    import tensorflow as tf

    return tf.function(lambda x: {"x": tf.reduce_max(x, axis=0)}, reduce_retracing=True)


def block_graph():
    """Return the function of a block, which `frames` exports."""
    return _traced_block()


def block_plain():
    """Return a plain function of a block that traces its own."""
    return lambda x: {"y": _once("block", _traced_block)(x)["y"].numpy()}


def block_numpy():
    """Return the function of a block in numpy."""
    import numpy as np

    return lambda x: {"y": np.tanh(x).sum(axis=1)}


def row_graph():
    """Return the function of a row, which `frames` vectorizes and exports."""
    return _traced_row()


def row_plain():
    """Return a plain function of a row that traces its own."""
    return lambda x: {"y": _once("row", _traced_row)(x)["y"].numpy()}


def row_by_hand():
    """Return a plain function of a block that vectorizes the function of a row."""
    return lambda x: {"y": _once("rows", _traced_rows)(x)["y"].numpy()}


def row_numpy():
    """Return the function of a row in numpy."""
    import numpy as np

    return lambda x: {"y": np.tanh(x).sum()}


def pair_graph():
    """Return the function of two rows, of which `frames` reduces all pairs at once."""
    return _traced_pair()


def pair_plain():
    """Return a plain function of two rows that traces its own."""
    return lambda x_1, x_2: {"x": _once("pair", _traced_pair)(x_1, x_2)["x"].numpy()}


def pair_numpy():
    """Return the function of two rows in numpy."""
    import numpy as np

    return lambda x_1, x_2: {"x": np.maximum(x_1, x_2)}


def maximum_graph():
    """Return the reduction of a block, which `frames` exports."""
    return _traced_maximum()


def maximum_plain():
    """Return a plain reduction of a block that traces its own."""
    return lambda x: {"x": _once("maximum", _traced_maximum)(x)["x"].numpy()}


def maximum_numpy():
    """Return the reduction of a block in numpy."""
    return lambda x: {"x": x.max(axis=0)}
