"""Import hooks: each repair is made when the module of TensorFlow or Keras that it concerns has been imported.

Nothing is imported that the user's program doesn't import. This module itself imports neither.
"""

import importlib
import os
import pkgutil
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import wrapt

__all__ = ["install", "keep_sources", "keras_backend", "repairing_modules", "wrap"]

_PACKAGE = __name__.rpartition(".")[0]
_TRAINER = "keras.src.backend.tensorflow.trainer"
_TF_KERAS = "tf_keras.src.engine.compile_utils"
_SOURCES = "tensorflow.python.autograph.pyct.loader"
_ADAPTERS = "keras.src.trainers.data_adapters"
_LAYERS = "keras.src.layers.preprocessing"
_REPAIRS = (  # in order: functions are replaced before they are wrapped
    ("steps:compile_steps", _TRAINER),
    ("steps:restore_divided_losses", _TRAINER),
    ("fitting:multiply_class_weights", f"{_ADAPTERS}.tf_dataset_adapter"),
    ("fitting:multiply_class_weights_on_batch", _TRAINER),
    ("losses:average_single_values", "keras.src.losses.loss"),
    ("row_weights:spread_weights", "keras.src.losses.loss"),
    ("optimizers:sum_gradients_first", "keras.src.backend.tensorflow.optimizer"),
    ("devices:place_slots", "keras.src.backend.tensorflow.optimizer"),
    ("optimizers:agree_on_loss_scale", "keras.src.optimizers.loss_scale_optimizer"),
    ("saving:save_outside_scope", "keras.src.saving.saving_lib"),
    ("saving:save_hdf5_outside_scope", "keras.src.legacy.saving.legacy_h5_format"),
    ("saving:export_for_inference", "keras.src.export.saved_model_export_archive"),
    ("saving:export_for_inference", "tf_keras.src.export.export_lib"),
    ("startup:explain_late_strategy", "tensorflow.python.distribute.collective_all_reduce_strategy"),
    ("repair:repair_trainer", _TRAINER),
    ("fitting:wrap_trainer", _TRAINER),
    ("fitting:refuse_parameter_servers", _TRAINER),
    ("fitting:predict_alone", _TRAINER),
    ("exchange:refuse_torch", "keras.src.backend.torch.trainer"),
    ("pass_steps:show_known_steps", "keras.src.callbacks.progbar_logger"),
    ("training_events:follow_fit", "keras.src.callbacks.callback_list"),
    ("training_events:follow_fit", "tf_keras.src.callbacks"),
    ("waiting:measure_collectives", "tensorflow.python.distribute.cross_device_utils"),
    ("shards:distribute_shards_whole", "tensorflow.python.distribute.distribute_lib"),
    ("collectives:keep_remainders", "tensorflow.python.distribute.values_util"),
    ("collectives:keep_options", "tensorflow.python.distribute.collective_all_reduce_strategy"),
    ("iterators:destroy_garbage_in_threads", "tensorflow.python.data.ops.iterator_ops"),
    ("iterators:destroy_in_threads", "tensorflow.python.data.ops.multi_device_iterator_ops"),
    ("provenance:track_datasets", "tensorflow.python.data.ops.dataset_ops"),
    ("provenance:track_adapters", f"{_ADAPTERS}.generator_data_adapter"),
    ("provenance:track_adapters", f"{_ADAPTERS}.py_dataset_adapter"),
    ("provenance:track_adapters", "tf_keras.src.engine.data_adapter"),
    ("adapting:wrap_layers", f"{_LAYERS}.normalization"),
    ("adapting:wrap_layers", f"{_LAYERS}.discretization"),
    ("adapting:wrap_layers", f"{_LAYERS}.index_lookup"),
    ("adapting:wrap_layers", f"{_LAYERS}.text_vectorization"),
    ("adapting:wrap_layers", "tf_keras.src.engine.base_preprocessing_layer"),
    ("metrics:skip_padding", _TRAINER),
    ("metrics:skip_padding_in_tf_keras", _TF_KERAS),
    ("losses:count_real_rows", _TRAINER),
    ("losses:count_real_rows_in_tf_keras", _TF_KERAS),
)
_JAX = "keras.src.backend.jax"
_JAX_REPAIRS = (  # in place of those of Keras 3 above, if JAX is its backend
    ("jax.cluster:leave_gpus_to_jax", "tensorflow"),
    ("jax.cluster:share_seed", "keras.src.random.seed_generator"),
    ("jax.cluster:note_distribution", "keras.src.distribution.distribution_lib"),
    ("jax.cluster:distribute_by_default", f"{_JAX}.core"),
    ("jax.placement:place_without_exchange", f"{_JAX}.distribution_lib"),
    ("jax.placement:keep_shares", "keras.src.distribution.distribution_lib"),
    ("jax.training:repair_trainer", f"{_JAX}.trainer"),
    ("jax.batches:take_batches_of_feeds", _ADAPTERS),
    ("jax.training:multiply_class_weights", f"{_ADAPTERS}.tf_dataset_adapter"),
    ("row_weights:spread_weights", "keras.src.losses.loss"),
    ("jax.saving:save_alone", "keras.src.saving.saving_lib"),
    ("jax.saving:save_alone", "keras.src.legacy.saving.legacy_h5_format"),
    ("jax.saving:save_alone", "keras.src.export.saved_model"),
    ("saving:export_for_inference", "keras.src.export.saved_model_export_archive"),
    ("pass_steps:show_known_steps", "keras.src.callbacks.progbar_logger"),
    ("training_events:follow_fit", "keras.src.callbacks.callback_list"),
    ("adapting:wrap_layers", f"{_LAYERS}.normalization"),
    ("adapting:wrap_layers", f"{_LAYERS}.discretization"),
    ("adapting:wrap_layers", f"{_LAYERS}.index_lookup"),
    ("adapting:wrap_layers", f"{_LAYERS}.text_vectorization"),
)


def install(program: bytes = b"") -> None:
    """Make the repairs when TensorFlow and Keras are imported, or now if they are already.

    Parameters
    ----------
    program : bytes
        The user's function, pickled.
    """

    def start(context: ModuleType) -> None:
        from tensorflowonspark.keras.startup import start_with_collectives

        start_with_collectives(context, program)

    wrapt.register_post_import_hook(start, "tensorflow.python.eager.context")
    imports = _Imports()
    for table in (_REPAIRS, _JAX_REPAIRS):
        of_module: defaultdict[str, list[str]] = defaultdict(list)
        for repair, module in table:
            of_module[module].append(f"{_PACKAGE}.{repair}")
        for module, repairs in of_module.items():
            hook = partial(imports.repair, repairs, on_jax=table is _JAX_REPAIRS)
            wrapt.register_post_import_hook(hook, module)


def keras_backend() -> str:
    """Return the backend of Keras 3 in this process: the one that it has, or else will have by the environment."""
    config = sys.modules.get("keras.src.backend.config")
    return str(getattr(config, "_BACKEND", None) or os.environ.get("KERAS_BACKEND") or "tensorflow")


class _Imports:
    """Repairs modules after their import, but never while a module of this package is being imported.

    A program's pickle may import one of them, which imports TensorFlow, which imports Keras: the module that repairs
    Keras is incomplete then. (And TensorFlow ignores errors of that import.) The repair waits until it is complete.
    """

    def __init__(self) -> None:
        self._own_modules = [f"{_PACKAGE}.{each.name}" for each in pkgutil.iter_modules([str(Path(__file__).parent)])]
        self._complete: set[str] = set()
        self._waiting: list[tuple[Sequence[str], ModuleType, bool]] = []
        for name in self._own_modules:
            wrapt.register_post_import_hook(self._on_import, name)

    def repair(self, repairs: Sequence[str], module: ModuleType, on_jax: bool = False) -> None:
        """Call functions, as ``"module:function"``, with a module that has been imported.

        Those for JAX are called if it is the backend of Keras 3, and the others for modules of Keras 3 if it is not.
        """
        if on_jax != (keras_backend() == "jax") and (on_jax or module.__name__.startswith("keras.")):
            return
        for number, repair in enumerate(repairs):
            if any(name in sys.modules and name not in self._complete for name in self._own_modules):
                self._waiting.append((repairs[number:], module, on_jax))
                return
            own_module, function = repair.split(":")
            getattr(importlib.import_module(own_module), function)(module)

    def _on_import(self, imported: ModuleType) -> None:
        self._complete.add(imported.__name__)
        waiting, self._waiting = self._waiting, []
        for repairs, module, on_jax in waiting:
            self.repair(repairs, module, on_jax)


def repairing_modules() -> list[str]:
    """Return the names of the modules that make the repairs; they import TensorFlow, but not Keras."""
    return sorted({f"{_PACKAGE}.{repair.partition(':')[0]}" for repair, _ in _REPAIRS})


def keep_sources(directory: str) -> None:
    """Have AutoGraph write its source files to a directory that is removed with this process.

    TensorFlow writes a file for each function that it converts, to the system's temporary directory, and removes them
    when the interpreter exits: those of a killed process, as Spark's Python workers are, would remain.
    """
    wrapt.register_post_import_hook(partial(_redirect, directory), _SOURCES)


def _redirect(directory: str, loader: Any) -> None:
    def named(*args: Any, **options: Any) -> Any:
        existing = directory if directory and Path(directory).is_dir() else None
        return tempfile.NamedTemporaryFile(*args, **{"dir": existing, **options})

    loader.tempfile = SimpleNamespace(**{**vars(tempfile), "NamedTemporaryFile": named})


def wrap(module: ModuleType, name: str, wrapper: Any) -> None:
    """Wrap a function of a module, or a method of one of its classes; do nothing if this version has none."""
    owner: Any = module
    for part in name.split("."):
        owner = getattr(owner, part, None)
    if owner is not None:
        wrapt.wrap_function_wrapper(module, name, wrapper)
