"""Keras 3 under ``MultiWorkerMirroredStrategy``: what is broken there is repaired before the user's function runs.

Nothing is imported here that the user's program doesn't import: each repair is made in the moment in which the module
that it concerns has been imported, and only if a test of that very version says that it is needed.

- `repair`: the two functions of Keras's trainer that fail on several workers;
- `fitting`: what several workers must agree on around ``fit``: statistics, callbacks that write files;
- `shards`: data sets that hold one worker's share already are not divided a second time;
- `adapting`: preprocessing layers that adapt to a worker's share get the state of all workers' rows;
- `padding`, `metrics`, `losses`: rows that fill up a worker's batches are in no value that is shown. (This for
  ``tf_keras`` as well.)
"""

import wrapt

__all__ = ["install"]

_LAYERS = ("normalization", "discretization", "index_lookup", "text_vectorization")
_TRAINER = "keras.src.backend.tensorflow.trainer"
_TF_KERAS = "tf_keras.src.engine.compile_utils"
_STRATEGY = "tensorflow.python.distribute.distribute_lib"


def install() -> None:
    """Have the repairs made when TensorFlow and Keras are imported (or now, if they already are)."""
    for module in _LAYERS:
        wrapt.register_post_import_hook(
            "tensorflowonspark.keras.adapting:wrap_layers", f"keras.src.layers.preprocessing.{module}"
        )
    wrapt.register_post_import_hook(
        "tensorflowonspark.keras.adapting:wrap_layers", "tf_keras.src.engine.base_preprocessing_layer"
    )
    wrapt.register_post_import_hook("tensorflowonspark.keras.repair:repair_trainer", _TRAINER)
    wrapt.register_post_import_hook("tensorflowonspark.keras.fitting:wrap_trainer", _TRAINER)
    wrapt.register_post_import_hook("tensorflowonspark.keras.shards:teach_strategy", _STRATEGY)
    wrapt.register_post_import_hook("tensorflowonspark.keras.metrics:skip_padding", _TRAINER)
    wrapt.register_post_import_hook("tensorflowonspark.keras.metrics:skip_padding_in_tf_keras", _TF_KERAS)
    wrapt.register_post_import_hook("tensorflowonspark.keras.losses:count_real_rows", _TRAINER)
    wrapt.register_post_import_hook("tensorflowonspark.keras.losses:count_real_rows_in_tf_keras", _TF_KERAS)
