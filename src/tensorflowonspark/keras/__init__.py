"""Keras 3 under ``MultiWorkerMirroredStrategy``: what is broken there is repaired before the user's function runs.

Nothing is imported here that the user's program doesn't import: each repair is made in the moment in which the module
that it concerns has been imported, and only if a test of that very version says that it is needed.

- `repair`: the two functions of Keras's trainer that fail on several workers;
- `fitting`: what several workers must agree on around ``fit``: statistics, callbacks that write files;
- `shards`: data sets that hold one worker's share already are not divided a second time; `provenance`: which ones do;
- `padding`, `metrics`, `losses`: rows that fill up a worker's batches are in no value that is shown. (This for
  ``tf_keras`` as well.)
"""

import wrapt

__all__ = ["install"]

_TRAINER = "keras.src.backend.tensorflow.trainer"
_TF_KERAS = "tf_keras.src.engine.compile_utils"
_STRATEGY = "tensorflow.python.distribute.distribute_lib"
_DATASETS = "tensorflow.python.data.ops.dataset_ops"
_ADAPTERS = (
    "keras.src.trainers.data_adapters.generator_data_adapter",
    "keras.src.trainers.data_adapters.py_dataset_adapter",
    "tf_keras.src.engine.data_adapter",
)


def install() -> None:
    """Have the repairs made when TensorFlow and Keras are imported (or now, if they already are)."""
    wrapt.register_post_import_hook("tensorflowonspark.keras.repair:repair_trainer", _TRAINER)
    wrapt.register_post_import_hook("tensorflowonspark.keras.fitting:wrap_trainer", _TRAINER)
    wrapt.register_post_import_hook("tensorflowonspark.keras.fitting:refuse_parameter_servers", _TRAINER)
    wrapt.register_post_import_hook("tensorflowonspark.keras.shards:teach_strategy", _STRATEGY)
    wrapt.register_post_import_hook("tensorflowonspark.keras.provenance:track_datasets", _DATASETS)
    for adapters in _ADAPTERS:
        wrapt.register_post_import_hook("tensorflowonspark.keras.provenance:track_adapters", adapters)
    wrapt.register_post_import_hook("tensorflowonspark.keras.metrics:skip_padding", _TRAINER)
    wrapt.register_post_import_hook("tensorflowonspark.keras.metrics:skip_padding_in_tf_keras", _TF_KERAS)
    wrapt.register_post_import_hook("tensorflowonspark.keras.losses:count_real_rows", _TRAINER)
    wrapt.register_post_import_hook("tensorflowonspark.keras.losses:count_real_rows_in_tf_keras", _TF_KERAS)
