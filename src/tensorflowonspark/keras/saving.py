"""Saving and export of models in a node: outside of a strategy's scope, and as they predict.

- **Scope.** Keras makes variables while it saves (a reference optimizer, to compare attributes with). In the scope of
  ``MultiWorkerMirroredStrategy`` all workers exchange the initial value of each variable; but the chief saves alone. So
  Keras's saving functions leave the scope while they run.
- **Placement.** A SavedModel names no device of another node (`Placed`).
- **Inference.** Keras exports ``model(x)`` and not ``model(x, training=False)``: layers whose ``training`` argument is
  True by default (``RandomRotation`` and other augmentation) would still augment in the SavedModel. An endpoint that is
  a layer's ``__call__`` is exported with ``training=False``, as ``predict`` calls it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from tensorflowonspark.keras.hooks import wrap
from tensorflowonspark.keras.inference import inference_call
from tensorflowonspark.keras.repairs import SAVES


@contextmanager
def outside_scope() -> Iterator[None]:
    """Leave the scope of any ``tf.distribute`` strategy for the duration of a block."""
    import tensorflow as tf
    from tensorflow.python.eager import context

    if not tf.distribute.has_strategy() or not tf.distribute.in_cross_replica_context() or not tf.executing_eagerly():
        yield
        return
    # The current graph holds a strategy's scope and its creator of variables, in eager mode too.
    with tf.Graph().as_default(), context.eager_mode():
        yield


def save_outside_scope(keras: ModuleType) -> None:
    """Have Keras save outside of a strategy's scope (called after the import of Keras)."""
    for name in SAVES:
        wrap(keras, name, _outside)


def examine_outside_scope(saving_lib: ModuleType) -> None:
    """Have Keras examine objects outside of a strategy's scope (called after the import of its ``saving_lib``).

    It makes variables there, once in a process, when loading too: within the scope, only the workers that have not
    saved before would make them.
    """
    wrap(saving_lib, "get_attr_skipset", _outside)


def _outside(wrapped: Any, _instance: Any, /, *args: Any, **kwargs: Any) -> Any:
    with outside_scope():
        return wrapped(*args, **kwargs)


def export_for_inference(keras: ModuleType) -> None:
    """Have Keras 3, or ``tf_keras``, export as it predicts, outside of a strategy's scope (called after its import)."""
    archives: set[type] = set()

    def add_endpoint(wrapped: Any, _archive: Any, /, name: str, fn: Any, *rest: Any, **more: Any) -> Any:
        return wrapped(name, _as_predicted(fn), *rest, **more)

    def write_out(wrapped: Any, _archive: Any, /, *args: Any, **kwargs: Any) -> Any:
        from tensorflowonspark.keras.devices import without_placement

        with without_placement(), outside_scope():  # TensorFlow traces the endpoints now
            return wrapped(*args, **kwargs)

    def prepare(archive: Any) -> None:
        if archive in archives:
            return
        archives.add(archive)
        wrap(archive, "add_endpoint", add_endpoint)
        if keras.__name__ != "tf_keras":  # with tf_keras all workers save
            wrap(archive, "write_out", write_out)

    def make(wrapped: Any, _: Any, /, *args: Any, **kwargs: Any) -> Any:
        made = wrapped(*args, **kwargs)
        prepare(type(made))
        return made

    public = keras.export.ExportArchive
    if "__new__" in vars(public):  # since Keras 3.14 it makes an object of another class, which depends on the backend
        wrap(public, "__new__", make)
    else:
        prepare(public)


def _as_predicted(function: Any) -> Any:
    layer = getattr(function, "__self__", None)
    if getattr(function, "__name__", "") != "__call__" or not hasattr(layer, "call"):
        return function
    return inference_call(layer)
