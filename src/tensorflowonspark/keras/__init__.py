"""Repairs of Keras 3 under ``MultiWorkerMirroredStrategy``, made before the user's function runs.

This package imports nothing that the user's program doesn't import: each repair is made when the module that it
concerns has been imported, and only if a test of the installed version shows that it is needed.

- `startup`: a strategy may be made after TensorFlow has started.
- `repair`: replacements of the functions of Keras's trainer that fail on several workers.
- `fitting`, `callbacks`: ``fit`` with statistics, files and restored state that all workers share; ``predict``, which
  waits for no other worker; class weights beside sample weights.
- `steps`, `optimizers`: gradients are summed before anything else, and outside of the graph that XLA compiles; models
  with a custom ``train_step``.
- `metrics`, `losses`: padding rows don't count in any reported value (for ``tf_keras`` as well); a loss that is one
  number for a batch is averaged over the workers.
- `collectives`: reductions and broadcasts over the workers; integer counters keep their remainders; a strategy's own
  communication options hold for gradients.
- `devices`: optimizers' variables are beside the weights of a layer on another node.
- `shards`, `provenance`: a dataset that holds one worker's share is not divided again.
- `feed_tracking`, `row_count`: a warning if fewer rows reach the steps of ``fit`` than a feed returned.
- `iterators`: no step waits for the destruction of an earlier pass's iterator.
- `adapting`, `preprocessing`: preprocessing layers adapt to the rows of all workers.
- `resuming`: the callback of a checkpoint.
- `saving`: models are saved outside of a strategy's scope, and exported as they predict.
"""

import importlib
import pkgutil
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import wrapt

if TYPE_CHECKING:
    from tensorflowonspark.keras.placement import Placed as Placed

__all__ = ["Placed", "install", "keep_sources", "repairing_modules", "wrap"]

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
    ("fitting:show_known_steps", "keras.src.callbacks.progbar_logger"),
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
    of_module: defaultdict[str, list[str]] = defaultdict(list)
    for repair, module in _REPAIRS:
        of_module[module].append(f"{__name__}.{repair}")
    imports = _Imports()
    for module, repairs in of_module.items():
        wrapt.register_post_import_hook(partial(imports.repair, repairs), module)


class _Imports:
    """Repairs modules after their import, but never while a module of this package is being imported.

    A program's pickle may import one of them, which imports TensorFlow, which imports Keras: the module that repairs
    Keras is incomplete then. (And TensorFlow ignores errors of that import.) The repair waits until it is complete.
    """

    def __init__(self) -> None:
        self._own_modules = [f"{__name__}.{each.name}" for each in pkgutil.iter_modules(__path__)]
        self._complete: set[str] = set()
        self._waiting: list[tuple[Sequence[str], ModuleType]] = []
        for name in self._own_modules:
            wrapt.register_post_import_hook(self._on_import, name)

    def repair(self, repairs: Sequence[str], module: ModuleType) -> None:
        """Call functions, as ``"module:function"``, with a module that has been imported."""
        for number, repair in enumerate(repairs):
            if any(name in sys.modules and name not in self._complete for name in self._own_modules):
                self._waiting.append((repairs[number:], module))
                return
            own_module, function = repair.split(":")
            getattr(importlib.import_module(own_module), function)(module)

    def _on_import(self, imported: ModuleType) -> None:
        self._complete.add(imported.__name__)
        waiting, self._waiting = self._waiting, []
        for repairs, module in waiting:
            self.repair(repairs, module)


def repairing_modules() -> list[str]:
    """Return the names of the modules that make the repairs; they import TensorFlow, but not Keras."""
    return sorted({f"{__name__}.{repair.partition(':')[0]}" for repair, _ in _REPAIRS})


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


_PUBLIC = {"Placed": "placement"}  # name: module of this package


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(importlib.import_module(f"{__name__}.{_PUBLIC[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
