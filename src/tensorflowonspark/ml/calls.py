"""Calls of a loaded model: from the features of some rows, arrays by column, to its outputs by name."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from tensorflowonspark.columns import Ragged
from tensorflowonspark.keras.inference import inference_call
from tensorflowonspark.keras.structure import TensorInfo, as_inputs, by_output, input_structure
from tensorflowonspark.ml.inputs import held, plain_refusals, to_inputs

Call = Callable[[Any], dict[str, Any]]


def keras_call(
    model: Any,
    library: str,
    inputs: Sequence[TensorInfo],
    layers: Sequence[str] = (),
    predicting: Callable[[Any], Callable[..., Any]] = inference_call,
) -> Call:
    """Return the function of a model of ``keras`` or ``tf_keras``.

    With `layers`, the outputs are those of these layers; `predicting` is what makes the function of its inputs.
    """
    import tensorflow as tf

    keras = import_module(library)
    if layers:
        model = of_layers(keras, model, layers)
    predict, backend = predicting(model), keras.backend.backend() if library == "keras" else "tensorflow"
    if backend != "tensorflow":  # as other code in this process has imported it
        return _on_other_backend(model, keras, predict, held(inputs, backend))

    @tf.function(reduce_retracing=True)
    def call(features: Any) -> Any:
        return by_output(model, predict(as_inputs(model, to_inputs(features, inputs))))

    def plainly(features: Any) -> dict[str, Any]:
        with plain_refusals():
            return _by_name(call(_tensors(features)), [])

    return plainly


def of_layers(keras: Any, model: Any, layers: Sequence[str]) -> Any:
    """Return the model whose outputs are those of some layers, by the layers' names."""
    return keras.Model(input_structure(model), {name: model.get_layer(name).output for name in layers})


def _on_other_backend(model: Any, keras: Any, predict: Callable[..., Any], inputs: Sequence[TensorInfo]) -> Call:
    """Return the function of a model of Keras 3 on another backend than TensorFlow."""
    import tensorflow as tf

    def call(features: Any) -> dict[str, Any]:
        with plain_refusals():
            taken = as_inputs(model, to_inputs(_tensors(features), inputs))
        results = by_output(model, predict(tf.nest.map_structure(lambda each: each.numpy(), taken)))
        return {name: keras.ops.convert_to_numpy(each) for name, each in results.items()}

    return call


def saved_model_call(directory: str, tags: Sequence[str], signature: str, inputs: Sequence[TensorInfo]) -> Call:
    """Return the function of a SavedModel, which needs its files no more."""
    import tensorflow as tf

    exported = tf.saved_model.load(directory, tags=list(tags) or None)
    # `frames.graphs` exports a function without a signature.
    function = exported.signatures[signature] if signature else exported.function
    types = {each.name: tf.as_dtype(each.dtype) for each in inputs}

    def call(features: Any) -> dict[str, Any]:
        with plain_refusals():
            taken = to_inputs(_tensors(features), inputs)
        if not isinstance(taken, Mapping):
            taken = {inputs[0].name: taken}
        cast = {name: each if each.dtype == types[name] else tf.cast(each, types[name]) for name, each in taken.items()}
        return _by_name(function(**cast), [])

    call.model = exported  # type: ignore[attr-defined] # keeps its variables
    return call


def function_call(function: Callable[[Any], Any], names: Sequence[str]) -> Call:
    """Return the function of a function of the user's, whose outputs have names."""

    def call(features: Any) -> dict[str, Any]:
        if isinstance(features, Mapping):
            features = {name: each.rows() if isinstance(each, Ragged) else each for name, each in features.items()}
        return _by_name(function(features.rows() if isinstance(features, Ragged) else features), names)

    return call


def _tensors(features: Any) -> Any:
    import tensorflow as tf

    if isinstance(features, Mapping):
        return {name: _tensors(each) for name, each in features.items()}
    if isinstance(features, Ragged):
        return tf.RaggedTensor.from_nested_row_splits(features.values, features.splits, validate=False)
    return tf.constant(features)


def _by_name(results: Any, names: Sequence[str]) -> dict[str, Any]:
    if not isinstance(results, Mapping):
        results = dict(zip(names, results if isinstance(results, (list, tuple)) else [results], strict=True))
    return {name: _plain(each) for name, each in results.items()}


def _plain(result: Any) -> Any:
    """Return a tensor as an array, or one of ragged rows as these."""
    if hasattr(result, "nested_row_splits"):
        return Ragged(result.flat_values.numpy(), tuple(each.numpy() for each in result.nested_row_splits))
    if hasattr(result, "dense_shape"):
        import tensorflow as tf

        result = tf.sparse.to_dense(result)
    return result.numpy() if hasattr(result, "numpy") else result
