"""Models are built by the shapes of a feed's batches, and not by a batch, which a stream has only once.

Keras builds a model, its loss and its metrics with the first batch of a pass, and begins the pass again. Where the
shapes are known, this is done before, by calls that Keras documents, so that nothing is left to build.
"""

from typing import Any

from tensorflowonspark.keras.jax.data_adapters import is_dataset, reads_feed

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
    if reads_feed(data):
        return data.element_spec(lambda shape, dtype: jax.ShapeDtypeStruct((rows, *shape), dtype))
    if not is_dataset(data):
        return None

    def symbol(each: Any) -> Any:
        if type(each).__name__ != "TensorSpec" or each.shape.rank is None:
            raise TypeError
        first, *inner = each.shape
        if None in inner:
            raise TypeError
        return jax.ShapeDtypeStruct((rows if first is None else first, *inner), each.dtype.as_numpy_dtype)

    try:
        return keras.tree.map_structure(lambda each: None if each is None else symbol(each), data.element_spec)
    except (TypeError, ValueError):  # of ragged or sparse values, of any lengths, of strings, or without rows
        return None
