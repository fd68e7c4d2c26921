"""Functions that hide differences between versions of TensorFlow."""

import sys
from typing import TYPE_CHECKING, Any

from tensorflowonspark import storage
from tensorflowonspark.exports.writing import export, is_of, save
from tensorflowonspark.supervisor.host import local_directory
from tensorflowonspark.v2.deprecation import warn_deprecated

if TYPE_CHECKING:
    import tensorflow as tf

__all__ = ["disable_auto_shard", "export_saved_model", "is_gpu_available"]


def export_saved_model(model: Any, export_dir: str, is_chief: bool = False) -> None:
    """Write a trained model as a SavedModel. Call it on all workers; the chief writes.

    A model of Keras 2 (``tf_keras``) keeps the names of its layers in its signature, and ``load_model`` can load it;
    a model of Keras 3 is written by its own ``export``.

    Parameters
    ----------
    model : keras.Model, tf_keras.Model or tf.Module
        The model.
    export_dir : str
        A path, or a URL of any file system. An existing model is replaced when the new one is complete.
    is_chief : bool
        Whether this process is the chief, or the only one. The others write nothing, or a copy that is removed at
        once: to save a model that is not of Keras 3, TensorFlow reads some variables from all workers together.
    """
    warn_deprecated("compat.export_saved_model", "ctx.export(model, path) in a program of tensorflowonspark.Cluster")
    if "pyspark" in sys.modules:
        storage.use_session()  # in the driver; a node has received its settings
    export(model, export_dir, is_chief, local_directory() or None, _save)


def _save(model: Any, path: str) -> None:
    if is_of("tf_keras", model) and not path.endswith((".keras", ".h5")):
        model.save(path, save_format="tf")
    else:
        save(model, path)


def disable_auto_shard(options: "tf.data.Options") -> None:
    """Make every worker read all files of a dataset, which ``tf.distribute`` would divide among them.

    Parameters
    ----------
    options : tf.data.Options
        The argument of ``dataset.with_options``; it is modified.
    """
    import tensorflow as tf

    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF


def is_gpu_available() -> bool:
    """Return whether TensorFlow sees a GPU in this process."""
    import tensorflow as tf

    return bool(tf.config.list_physical_devices("GPU"))
