"""The layers within a layer or a model, by its attributes; works with Keras 3 and tf_keras, and imports neither."""

from collections.abc import Iterator
from typing import Any

_COLLECTIONS = (list, tuple, set, dict)


def direct_sublayers(layer: Any) -> Iterator[Any]:
    """Yield the layers among the attributes of a layer or model, and in collections there, in order; each once.

    Examples
    --------
    >>> import keras
    >>> layer = keras.layers.Bidirectional(keras.layers.LSTM(2))
    >>> [each.name.partition("_")[0] for each in direct_sublayers(layer)]
    ['forward', 'backward']
    """
    found = {id(each): each for each in _layers_in(vars(layer), _layer_class(layer))}
    yield from (each for each in found.values() if each is not layer)


def all_sublayers(layer: Any) -> Iterator[Any]:
    """Yield a layer, the layers among its attributes, and those within these; each once."""
    seen: set[int] = set()
    pending = [layer]
    while pending:
        each = pending.pop()
        if id(each) not in seen:
            seen.add(id(each))
            yield each
            pending.extend(reversed([*direct_sublayers(each)]))


def own_weights(layer: Any) -> list[Any]:
    """Return the weights of a layer that are of none of its sublayers.

    Examples
    --------
    >>> import keras
    >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    >>> own_weights(model), [each.name for each in own_weights(model.layers[0])]
    ([], ['kernel', 'bias'])
    """
    inner = {id(each) for sublayer in direct_sublayers(layer) for each in sublayer.weights}
    return [each for each in layer.weights if id(each) not in inner]


def _layer_class(layer: Any) -> type:
    """Return the class of Keras, or of tf_keras, from which each layer derives."""
    kinds = (kind for kind in type(layer).__mro__ if kind.__name__ == "Layer")
    return next(kind for kind in kinds if kind.__module__.split(".")[0] in ("keras", "tf_keras"))


def _layers_in(value: Any, kind: type) -> Iterator[Any]:
    if isinstance(value, kind):
        yield value
        return
    values = list(value.values() if isinstance(value, dict) else value)
    for each in [each for each in values if isinstance(each, (kind, *_COLLECTIONS))]:  # a vocabulary may be long
        yield from _layers_in(each, kind)
