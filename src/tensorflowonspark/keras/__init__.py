"""Keras 3 under ``MultiWorkerMirroredStrategy``: what is broken there is repaired before the user's function runs.

Nothing is imported here that the user's program doesn't import: each repair is made in the moment in which the module
that it concerns has been imported, and only if a test of that very version says that it is needed.

- `startup`: a strategy may be made after TensorFlow has started;
- `repair`: the two functions of Keras's trainer that fail on several workers;
- `fitting`: what several workers must agree on around ``fit``: statistics, callbacks that write files;
- `optimizers`, `compiling`: gradients are summed before anything else is done with them, and outside of what XLA
  compiles;
- `own_steps`: models with a ``train_step`` of their own;
- `weighting`: class weights beside sample weights;
- `saving`: what is saved or exported is so outside of a strategy's scope, and as the model predicts;
- `shards`: data sets that hold one worker's share already are not divided a second time; `provenance`: which ones do;
- `adapting`: preprocessing layers that adapt to a worker's share get the state of all workers' rows;
- `counting`, `ledger`: a warning where fewer rows reach the steps of ``fit`` than a feed gave out;
- `predicting`: ``predict`` waits for no other worker;
- `padding`, `metrics`, `losses`: rows that fill up a worker's batches are in no value that is shown. (This for
  ``tf_keras`` as well.)
"""

from types import ModuleType
from typing import Any

import wrapt

__all__ = ["install", "wrap"]

_LAYERS = ("normalization", "discretization", "index_lookup", "text_vectorization")
_TRAINER = "keras.src.backend.tensorflow.trainer"
_TF_KERAS = "tf_keras.src.engine.compile_utils"
_STRATEGY = "tensorflow.python.distribute.distribute_lib"
_COLLECTIVES = "tensorflow.python.distribute.collective_all_reduce_strategy"
_DATASETS = "tensorflow.python.data.ops.dataset_ops"
_ADAPTERS = (
    "keras.src.trainers.data_adapters.generator_data_adapter",
    "keras.src.trainers.data_adapters.py_dataset_adapter",
    "tf_keras.src.engine.data_adapter",
)
_REPAIRS = (  # in this order: what is replaced is wrapped after that
    ("compiling:compile_steps", _TRAINER),
    ("own_steps:note_divided_losses", _TRAINER),
    ("weighting:multiply_class_weights", "keras.src.trainers.data_adapters.tf_dataset_adapter"),
    ("weighting:multiply_class_weights_on_batch", _TRAINER),
    ("optimizers:sum_gradients_first", "keras.src.backend.tensorflow.optimizer"),
    ("optimizers:agree_on_loss_scale", "keras.src.optimizers.loss_scale_optimizer"),
    ("saving:save_outside_scope", "keras.src.saving.saving_lib"),
    ("saving:save_hdf5_outside_scope", "keras.src.legacy.saving.legacy_h5_format"),
    ("saving:export_for_inference", "keras.src.export.saved_model_export_archive"),
    ("saving:export_for_inference", "tf_keras.src.export.export_lib"),
)


def install(program: bytes = b"") -> None:
    """Have the repairs made when TensorFlow and Keras are imported (or now, if they already are).

    Parameters
    ----------
    program : bytes
        The user's function, pickled.
    """

    def start(context: ModuleType) -> None:
        from tensorflowonspark.keras.startup import start_with_collectives

        start_with_collectives(context, program)

    wrapt.register_post_import_hook(start, "tensorflow.python.eager.context")
    wrapt.register_post_import_hook("tensorflowonspark.keras.startup:explain_late_strategy", _COLLECTIVES)
    for function, module in _REPAIRS:
        wrapt.register_post_import_hook(f"tensorflowonspark.keras.{function}", module)
    for module in _LAYERS:
        wrapt.register_post_import_hook(
            "tensorflowonspark.keras.adapting:wrap_layers", f"keras.src.layers.preprocessing.{module}"
        )
    wrapt.register_post_import_hook(
        "tensorflowonspark.keras.adapting:wrap_layers", "tf_keras.src.engine.base_preprocessing_layer"
    )
    wrapt.register_post_import_hook("tensorflowonspark.keras.repair:repair_trainer", _TRAINER)
    wrapt.register_post_import_hook("tensorflowonspark.keras.fitting:wrap_trainer", _TRAINER)
    wrapt.register_post_import_hook("tensorflowonspark.keras.fitting:refuse_parameter_servers", _TRAINER)
    wrapt.register_post_import_hook("tensorflowonspark.keras.predicting:predict_alone", _TRAINER)
    wrapt.register_post_import_hook("tensorflowonspark.keras.shards:teach_strategy", _STRATEGY)
    wrapt.register_post_import_hook("tensorflowonspark.keras.provenance:track_datasets", _DATASETS)
    for adapters in _ADAPTERS:
        wrapt.register_post_import_hook("tensorflowonspark.keras.provenance:track_adapters", adapters)
    wrapt.register_post_import_hook("tensorflowonspark.keras.metrics:skip_padding", _TRAINER)
    wrapt.register_post_import_hook("tensorflowonspark.keras.metrics:skip_padding_in_tf_keras", _TF_KERAS)
    wrapt.register_post_import_hook("tensorflowonspark.keras.losses:count_real_rows", _TRAINER)
    wrapt.register_post_import_hook("tensorflowonspark.keras.losses:count_real_rows_in_tf_keras", _TF_KERAS)


def wrap(module: ModuleType, name: str, wrapper: Any) -> None:
    """Wrap a function of a module, or a method of one of its classes; nothing if this version of it has none."""
    owner: Any = module
    for part in name.split("."):
        owner = getattr(owner, part, None)
    if owner is not None:
        wrapt.wrap_function_wrapper(module, name, wrapper)
