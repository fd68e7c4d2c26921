"""What differs from one TensorFlow to the next, for programs that were written for TensorFlowOnSpark 2.x."""

import sys
from typing import TYPE_CHECKING, Any

from tensorflowonspark import storage
from tensorflowonspark.node.checkpoint.export import export, is_of, save
from tensorflowonspark.supervisor.host import local_directory

from ._old import show_new_way

if TYPE_CHECKING:
    import tensorflow as tf

__all__ = ["disable_auto_shard", "export_saved_model", "is_gpu_available"]


def export_saved_model(model: Any, export_dir: str, is_chief: bool = False) -> None:
    """Write a trained model as a SavedModel; the chief does. Call it on all workers.

    A model of Keras 2 (``tf_keras``) keeps the names of its layers in its signature, and can be loaded again with
    ``load_model``; one of Keras 3 becomes what its ``export`` makes of it.

    Parameters
    ----------
    model : keras.Model, tf_keras.Model or tf.Module
        What to write.
    export_dir : str
        A path, or a URL of any file system. What stood there is replaced, when the new model is complete.
    is_chief : bool
        Whether this process is the chief, or the only one. The others write nothing, or what is removed at once: to
        save a model that is not of Keras 3, TensorFlow reads some variables from all workers together.
    """
    show_new_way("compat.export_saved_model", "ctx.export(model, path) in a program of tensorflowonspark.Cluster")
    if "pyspark" in sys.modules:
        storage.use_session()  # the driver has one; a node has been told its settings
    export(model, export_dir, is_chief, local_directory() or None, _save)


def _save(model: Any, path: str) -> None:
    if is_of("tf_keras", model) and not path.endswith((".keras", ".h5")):
        model.save(path, save_format="tf")
    else:
        save(model, path)


def disable_auto_shard(options: "tf.data.Options") -> None:
    """Let every worker read all files of a dataset, where ``tf.distribute`` would give each of them some.

    Parameters
    ----------
    options : tf.data.Options
        What ``dataset.with_options`` gets; it is changed.
    """
    import tensorflow as tf

    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF


def is_gpu_available() -> bool:
    """Return whether TensorFlow sees a GPU in this process."""
    import tensorflow as tf

    return bool(tf.config.list_physical_devices("GPU"))
