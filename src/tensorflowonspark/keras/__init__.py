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
- `counting`, `ledger`: a warning where fewer rows reach the steps of ``fit`` than a feed gave out;
- `predicting`: ``predict`` waits for no other worker;
- `iterators`: no step waits for the end of an earlier pass's iterator;
- `adapting`: preprocessing layers that adapt to a worker's share get the state of all workers' rows;
- `counts`: what counts loses nothing when it is divided among replicas;
- `padding`, `metrics`, `losses`: rows that fill up a worker's batches are in no value that is shown (this for
  ``tf_keras`` as well); a loss that is one number for a batch is averaged over the workers.
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
from typing import Any

import wrapt

__all__ = ["install", "keep_sources", "repairing_modules", "wrap"]

_TRAINER = "keras.src.backend.tensorflow.trainer"
_TF_KERAS = "tf_keras.src.engine.compile_utils"
_SOURCES = "tensorflow.python.autograph.pyct.loader"
_ADAPTERS = "keras.src.trainers.data_adapters"
_LAYERS = "keras.src.layers.preprocessing"
_REPAIRS = (  # in this order: what is replaced is wrapped after that
    ("steps:compile_steps", _TRAINER),
    ("steps:note_divided_losses", _TRAINER),
    ("fitting:multiply_class_weights", f"{_ADAPTERS}.tf_dataset_adapter"),
    ("fitting:multiply_class_weights_on_batch", _TRAINER),
    ("losses:average_single_values", "keras.src.losses.loss"),
    ("optimizers:sum_gradients_first", "keras.src.backend.tensorflow.optimizer"),
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
    ("shards:teach_strategy", "tensorflow.python.distribute.distribute_lib"),
    ("collectives:keep_remainders", "tensorflow.python.distribute.values_util"),
    ("iterators:end_garbage_apart", "tensorflow.python.data.ops.iterator_ops"),
    ("iterators:end_apart", "tensorflow.python.data.ops.multi_device_iterator_ops"),
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
    of_module: defaultdict[str, list[str]] = defaultdict(list)
    for repair, module in _REPAIRS:
        of_module[module].append(f"{__name__}.{repair}")
    imports = _Imports()
    for module, repairs in of_module.items():
        wrapt.register_post_import_hook(partial(imports.repair, repairs), module)


class _Imports:
    """Repairs modules as they are imported, but never while a module of this package is being imported.

    A program's pickle may name one of them, which then imports TensorFlow, which imports Keras on its way: what would
    repair Keras is not complete yet. (And TensorFlow passes over any error of that import.) The repair then waits.
    """

    def __init__(self) -> None:
        self._ours = [f"{__name__}.{each.name}" for each in pkgutil.iter_modules(__path__)]
        self._complete: set[str] = set()
        self._waiting: list[tuple[Sequence[str], ModuleType]] = []
        for name in self._ours:
            wrapt.register_post_import_hook(self._go_on, name)

    def repair(self, repairs: Sequence[str], module: ModuleType) -> None:
        """Call functions, as ``"module:function"``, with a module that has been imported."""
        for place, repair in enumerate(repairs):
            if any(name in sys.modules and name not in self._complete for name in self._ours):
                self._waiting.append((repairs[place:], module))
                return
            ours, function = repair.split(":")
            getattr(importlib.import_module(ours), function)(module)

    def _go_on(self, ours: ModuleType) -> None:
        self._complete.add(ours.__name__)
        waiting, self._waiting = self._waiting, []
        for repairs, module in waiting:
            self.repair(repairs, module)


def repairing_modules() -> list[str]:
    """Return the names of the modules that make the repairs; they import TensorFlow, and not Keras."""
    return sorted({f"{__name__}.{repair.partition(':')[0]}" for repair, _ in _REPAIRS})


def keep_sources(directory: str) -> None:
    """Have the source files that AutoGraph generates written to a directory that goes with this process.

    TensorFlow writes one for each function that it converts, to the system's temporary directory, and removes them when
    the interpreter ends: those of a process that is killed, as Spark's Python workers are, stay for ever.
    """
    wrapt.register_post_import_hook(partial(_redirect, directory), _SOURCES)


def _redirect(directory: str, loader: Any) -> None:
    def named(*args: Any, **options: Any) -> Any:
        place = directory if directory and Path(directory).is_dir() else None
        return tempfile.NamedTemporaryFile(*args, **{"dir": place, **options})

    loader.tempfile = SimpleNamespace(**{**vars(tempfile), "NamedTemporaryFile": named})


def wrap(module: ModuleType, name: str, wrapper: Any) -> None:
    """Wrap a function of a module, or a method of one of its classes; nothing if this version of it has none."""
    owner: Any = module
    for part in name.split("."):
        owner = getattr(owner, part, None)
    if owner is not None:
        wrapt.wrap_function_wrapper(module, name, wrapper)
