"""Models are built by the shapes of a feed's batches, and not by a batch, which a stream has only once.

Keras builds a model, its loss and its metrics with the first batch of a pass, and begins the pass again. Where the
shapes are known, this is done before, by calls that Keras documents, so that nothing is left to build.
"""

from typing import Any

from tensorflowonspark.errors import SpecError
from tensorflowonspark.keras.feed_tracking import StatePass, has_arriving_rows
from tensorflowonspark.keras.jax.data_adapters import is_dataset, is_share, reads_feed

_BUILT = "_tensorflowonspark_built"  # an attribute of models


def build_without_data(model: Any, data: Any) -> None:
    """Build a compiled model with its loss, metrics and optimizer, if it is not, by the shapes of a dataset or a feed.

    Nothing is built for arrays and others, which Keras can read again.
    """
    metrics = model.metrics if model.compiled else []
    if not metrics or getattr(model, _BUILT, None) is metrics[0]:
        return
    containers = [each for each in metrics if hasattr(each, "metrics")]
    with_metrics = not all(each.built for each in containers)
    if not (with_metrics or model.loss is not None or _is_unbuilt(model)):
        return
    batch = _symbolic_batch(model, data)
    if batch is not None:
        _build(model, batch, with_metrics=with_metrics)
        object.__setattr__(model, _BUILT, metrics[0])  # a new one at each compile


def _is_unbuilt(layer: Any) -> bool:
    return not layer.built or any(map(_is_unbuilt, getattr(layer, "layers", [])))


def _build(model: Any, batch: Any, *, with_metrics: bool) -> None:
    import jax
    import keras

    x, y, weights = keras.utils.unpack_x_y_sample_weight(batch)
    if _is_unbuilt(model):
        with keras.StatelessScope():  # new variables get their values at its end
            jax.eval_shape(lambda x: model(x, training=False), x)
    variables = model.variables

    def call(values: Any, x: Any, y: Any, weights: Any) -> None:
        # What is assigned to variables is dropped.
        with keras.StatelessScope(state_mapping=list(zip(variables, values, strict=True))):
            predicted = model(x, training=False)
            if with_metrics:
                model.compute_metrics(x, y, predicted, sample_weight=weights)
            if model.loss is not None:
                model.compute_loss(x=x, y=y, y_pred=predicted, sample_weight=weights)

    with keras.StatelessScope():
        jax.eval_shape(call, [jax.ShapeDtypeStruct(each.shape, each.dtype) for each in variables], x, y, weights)
    optimizer = model.optimizer
    if optimizer is not None and not optimizer.built:
        optimizer.build(model.trainable_variables)


def _symbolic_batch(model: Any, data: Any) -> Any:
    """Return shapes and dtypes in the structure of a batch; None if only a batch itself can show them."""
    import jax
    import keras

    inputs = getattr(model, "inputs", None) or [None]
    rows = getattr(inputs[0], "shape", [None])[0] or 1  # of a model that takes batches of one size

    def symbol(shape: Any, dtype: Any) -> Any:
        first, *inner = shape
        return jax.ShapeDtypeStruct((first or rows, *inner), dtype)

    if reads_feed(data):
        return data.element_spec(lambda shape, dtype: symbol((None, *shape), dtype))
    specs = [each for each in keras.tree.flatten(data.element_spec) if each is not None] if is_dataset(data) else []
    if not specs or not all(map(_is_of_arrays, specs)):
        return None
    if not any(None in each.shape[1:] for each in specs):
        return keras.tree.map_structure(
            lambda each: None if each is None else symbol(each.shape, each.dtype.as_numpy_dtype), data.element_spec
        )
    if not is_share(data):
        return None
    # A pass over kept rows that does not count: the next one is whole. A stream would not give its first rows again.
    with StatePass.begin():
        batch = None if has_arriving_rows(data) else next(data.as_numpy_iterator(), None)
    if batch is None:
        shapes = [tuple(each.shape) for each in specs]
        raise SpecError(
            f"the dataset has values of several lengths ({shapes}), and no first batch from which the model could be "
            "built: its rows arrive during the training, or it has none here. Feed them with cache='disk' and "
            "start='all_rows', or state the lengths: dataset.map(lambda x, *rest: (tf.ensure_shape(x, (None, length)), "
            "*rest))"
        )
    return keras.tree.map_structure(
        lambda each: None if each is None else symbol((None, *each.shape[1:]), each.dtype), batch
    )


def _is_of_arrays(spec: Any) -> bool:
    """Return whether values of a dataset are arrays of numbers, in rows."""
    return type(spec).__name__ == "TensorSpec" and bool(spec.shape.rank) and spec.dtype.name != "string"
