"""The private names of TensorFlow and Keras that nodes rely on, and what needs each.

A release of TensorFlow or Keras may rename any of them. A node tests those of a module when the module has been
imported, before it is repaired: with a missing name the repair is left out, with a warning, and training on several
replicas is refused if its results would be wrong. ``python -m tensorflowonspark.keras.private_names`` tests all, as
``tfos check`` does. This module imports neither library.
"""

import importlib.metadata
import importlib.util
import json
import logging
import os
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from tensorflowonspark.errors import RequirementError
from tensorflowonspark.keras.session import session

_log = logging.getLogger(__name__)

# The releases with which the tests have run: docs/compatibility.md.
TESTED = {
    "tensorflow": "tensorflow>=2.16,<2.22",
    "keras": "keras>=3.10,<3.16",
    "tf_keras": "tf_keras>=2.16,<2.22",
}
_TESTED_ON_JAX = "keras>=3.15,<3.16"
_SHOWN = {"tensorflow": "TensorFlow", "keras": "Keras"}

FIT = "fit on several workers"
CLASSES = "class weights beside sample weights"
PADDING = "losses and metrics without padding rows"
LOSSES = "losses of several workers"
STATISTICS = "BatchNormalization(synchronized=True) on several workers"
OPTIMIZERS = "an optimizer on several workers"
SAVING = "saving a model on several workers"
PATHS = "models that several workers save to one path"
EXPORT = "the export of a model as it predicts"
STRATEGY = "MultiWorkerMirroredStrategy in a node"
SHARES = "a feed under a strategy"
ADAPT = "adapt of preprocessing layers on several workers"
METRICS = "the metrics of a training"
ITERATORS = "the destruction of iterators beside the steps"
PLACED = "a layer on another node"
TABLES = "ShardedEmbedding"
JAX = "fit on several workers with JAX"


@dataclass(frozen=True)
class Use:
    """A use of names of one module.

    Attributes
    ----------
    module : str
        The module that has the names.
    feature : str
        What needs them.
    names : tuple of str
        Names in the module, as ``"Class.method"``.
    """

    module: str
    feature: str
    names: tuple[str, ...]

    @property
    def library(self) -> str:
        """The package that has the module."""
        return self.module.partition(".")[0]

    def missing(self, module: Any) -> list[str]:
        """Return the names that an imported module lacks."""
        return [name for name in self.names if attribute_of(module, name) is None]


@dataclass(frozen=True)
class Repair(Use):
    """A function that repairs a module after its import.

    Attributes
    ----------
    function : str
        Module and function of ``tensorflowonspark.keras``.
    required : bool
        Whether training on several replicas would be wrong, or would fail, without it.
    versions : (str, str)
        The first version that has the module, and the first one that has not; empty for any.
    """

    function: str = ""
    required: bool = True
    versions: tuple[str, str] = ("", "")

    @property
    def applies(self) -> bool:
        """Whether the installed version is one of those that have the module."""
        first, end = self.versions
        if not first and not end:
            return True
        version = _numbers(_version(self.library))
        return (not first or version >= _numbers(first)) and (not end or version < _numbers(end))


def _repair(
    function: str, module: str, feature: str, *names: str, required: bool = True, versions: tuple[str, str] = ("", "")
) -> Repair:
    return Repair(module, feature, names, function, required, versions)


_TRAINER = "keras.src.backend.tensorflow.trainer"
_OPTIMIZER = "keras.src.backend.tensorflow.optimizer"
_ADAPTERS = "keras.src.trainers.data_adapters"
_LAYERS = "keras.src.layers.preprocessing"
_NORMALIZATION = "keras.src.layers.normalization"
_COLLECTIVES = "tensorflow.python.distribute.collective_all_reduce_strategy"
_OPS = "tensorflow.python.data.ops"
_UNPACK = "data_adapter_utils.unpack_x_y_sample_weight"
_STEPS = ("TensorFlowTrainer.train_step", "TensorFlowTrainer.test_step")
_METHODS = tuple(
    f"TensorFlowTrainer.{name}"
    for name in ("fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch")
)
_FIT_EVENTS = ("on_epoch_begin", "on_train_batch_end", "on_test_begin", "on_epoch_end")
_CALLBACKS = tuple(f"CallbackList.{name}" for name in _FIT_EVENTS)

REPAIRS = (  # in order: functions are replaced before they are wrapped
    _repair("steps:compile_steps", _TRAINER, "jit_compile=True on several workers", *_STEPS, _UNPACK, "tree.flatten",
            "loss_module.unscale_loss_for_distribution", "base_trainer.Trainer._compute_loss"),
    # Without the last name metrics of several replicas count earlier batches again in each step.
    _repair("own_losses:track_all_rows", _TRAINER, LOSSES, "base_trainer.Trainer.compute_loss",
            "metrics_module.Mean.update_state", "metrics_module.Sum.update_state",
            "base_trainer.backend.Variable._map_synchronization"),
    _repair("own_losses:weigh_gradients", _TRAINER, LOSSES, "tf.GradientTape.gradient"),
    _repair("fitting:multiply_class_weights", f"{_ADAPTERS}.tf_dataset_adapter", CLASSES,
            "make_class_weight_map_fn", _UNPACK, required=False),
    _repair("fitting:multiply_class_weights_on_batch", _TRAINER, CLASSES,
            "TensorFlowTrainer.train_on_batch", "data_adapter_utils.class_weight_to_sample_weights", required=False),
    _repair("losses:divide_by_all", "keras.src.losses.loss", LOSSES,
            "reduce_values", "reduce_weighted_values", "apply_mask", "scale_loss_for_distribution",
            "unscale_loss_for_distribution"),
    _repair("batch_statistics:skip_padding", "keras.src.backend.tensorflow.nn", STATISTICS, "_compute_moments_sync"),
    _repair("batch_statistics:reduce_masked", f"{_NORMALIZATION}.batch_normalization", STATISTICS,
            "BatchNormalization._moments", "backend.epsilon"),
    _repair("row_weights:spread_weights", "keras.src.losses.loss", "a loss for each pixel or time step of a fed row",
            "reduce_weighted_values"),
    _repair("optimizers:sum_gradients_first", _OPTIMIZER, OPTIMIZERS,
            "TFOptimizer._backend_apply_gradients", "TFOptimizer._all_reduce_sum_gradients",
            "TFOptimizer._backend_update_step", "TFOptimizer._backend_reset_gradient_accumulators",
            "TFOptimizer._backend_increment_gradient_accumulators", "TFOptimizer._apply_weight_decay",
            "base_optimizer.BaseOptimizer._clip_gradients", "base_optimizer.BaseOptimizer._get_variable_index",
            "base_optimizer.BaseOptimizer._update_model_variables_moving_average",
            "TFOptimizer._overwrite_model_variables_with_average_value"),
    _repair("devices:place_slots", _OPTIMIZER, PLACED, "TFOptimizer.add_variable_from_reference", required=False),
    _repair("optimizers:agree_on_loss_scale", "keras.src.optimizers.loss_scale_optimizer", OPTIMIZERS,
            "LossScaleOptimizer.apply", "LossScaleOptimizer._stateful_handle_finite_grads"),
    _repair("saving:save_outside_scope", "keras.src.saving.saving_lib", SAVING,
            "save_model", "save_weights_only", "get_attr_skipset"),
    _repair("saving:save_outside_scope", "keras.src.legacy.saving.legacy_h5_format", SAVING,
            "save_model_to_hdf5"),
    _repair("shared_paths:save_whole", "keras.src.saving.saving_lib", PATHS, "save_model", "save_weights_only",
            required=False),
    _repair("shared_paths:save_whole", "keras.src.legacy.saving.legacy_h5_format", PATHS, "save_model_to_hdf5",
            required=False),
    _repair("shared_paths:save_whole", "tf_keras.src.saving.saving_api", PATHS, "save_model", "save_weights",
            required=False),
    _repair("shared_paths:save_whole", "tensorflow.python.saved_model.save", PATHS, "save_and_return_nodes",
            required=False),
    _repair("saving:export_for_inference", "keras.src.export.saved_model_export_archive", EXPORT,
            "SavedModelExportArchive.add_endpoint", "SavedModelExportArchive.write_out", versions=("3.14", "")),
    _repair("saving:export_for_inference", "keras.src.export.saved_model", EXPORT,
            "ExportArchive.add_endpoint", "ExportArchive.write_out", versions=("", "3.14")),
    _repair("saving:export_for_inference", "tf_keras.src.export.export_lib", EXPORT,
            "ExportArchive.add_endpoint", required=False),
    _repair("startup:explain_late_strategy", _COLLECTIVES, STRATEGY,
            "CollectiveAllReduceExtended._initialize_multi_worker", "context.context", required=False),
    _repair("startup:keep_sigterm", _COLLECTIVES, "the end of a program by SIGTERM",
            "CollectiveAllReduceExtended._initialize_multi_worker", required=False),
    _repair("repair:repair_trainer", _TRAINER, FIT,
            "reduce_per_replica", "_collective_all_reduce_multi_worker", "TensorFlowTrainer._maybe_symbolic_build",
            "TensorFlowTrainer._make_function", "tree.map_structure", "base_trainer.backend.KerasTensor"),
    _repair("fitting:wrap_trainer", _TRAINER, FIT,
            "TensorFlowTrainer.fit", "TFEpochIterator._enumerate_iterator", "_collective_all_reduce_multi_worker"),
    _repair("fitting:refuse_parameter_servers", _TRAINER, "ParameterServerStrategy with Keras 3", *_METHODS,
            required=False),
    _repair("fitting:predict_alone", _TRAINER, "predict on several workers",
            "TensorFlowTrainer.predict", "reduce_per_replica", "_collective_all_reduce_multi_worker", "concat"),
    _repair("exchange:refuse_torch", "keras.src.backend.torch.trainer", "fit with torch", "TorchTrainer.fit"),
    _repair("pass_steps:show_known_steps", "keras.src.callbacks.progbar_logger", "the length of a progress bar",
            "ProgbarLogger._update_progbar", required=False),
    _repair("training_events:follow_fit", "keras.src.callbacks.callback_list", METRICS, *_CALLBACKS, required=False),
    _repair("training_events:follow_fit", "tf_keras.src.callbacks", METRICS, *_CALLBACKS, required=False),
    _repair("waiting:measure_collectives", "tensorflow.python.distribute.cross_device_utils", METRICS,
            "CollectiveReplicaLauncher.all_reduce", "CollectiveReplicaLauncher.batch_all_reduce", required=False),
    _repair("shards:distribute_shards_whole", "tensorflow.python.distribute.distribute_lib", SHARES,
            "StrategyBase.experimental_distribute_dataset", "StrategyExtendedV2._in_multi_worker_mode"),
    _repair("collectives:keep_remainders", "tensorflow.python.distribute.values_util", "counts on several workers",
            "on_read_assign_cross_replica", "assign_on_device", "assign_on_each_device",
            "distribute_lib.enter_or_assert_strategy"),
    _repair("collectives:keep_options", _COLLECTIVES, "the options of a strategy's reductions",
            "CollectiveAllReduceExtended._replica_ctx_all_reduce", required=False),
    _repair("iterators:destroy_garbage_in_threads", f"{_OPS}.iterator_ops", ITERATORS,
            "OwnedIterator.__init__", required=False),
    _repair("iterators:destroy_in_threads", f"{_OPS}.multi_device_iterator_ops", ITERATORS,
            "OwnedMultiDeviceIterator.__init__", required=False),
    _repair("provenance:track_datasets", f"{_OPS}.dataset_ops", SHARES,
            *(f"DatasetV2.{name}" for name in ("__iter__", "_inputs", "_functions")),
            *(f"DatasetV2.{name}" for name in ("from_generator", "save", "load", "snapshot"))),
    _repair("provenance:track_adapters", f"{_ADAPTERS}.generator_data_adapter", SHARES,
            "GeneratorDataAdapter.get_tf_dataset"),
    _repair("provenance:track_adapters", f"{_ADAPTERS}.py_dataset_adapter", SHARES, "PyDatasetAdapter.get_tf_dataset"),
    _repair("provenance:track_adapters", "tf_keras.src.engine.data_adapter", SHARES, "GeneratorDataAdapter.__init__"),
    _repair("adapting:wrap_layers", f"{_LAYERS}.normalization", ADAPT, "Normalization.adapt"),
    _repair("adapting:wrap_layers", f"{_LAYERS}.discretization", ADAPT, "Discretization.adapt"),
    _repair("adapting:wrap_layers", f"{_LAYERS}.index_lookup", ADAPT, "IndexLookup.adapt"),
    _repair("adapting:wrap_layers", f"{_LAYERS}.text_vectorization", ADAPT, "TextVectorization.adapt"),
    _repair("adapting:wrap_layers", "tf_keras.src.engine.base_preprocessing_layer", ADAPT, "PreprocessingLayer.adapt"),
    _repair("metrics:skip_padding", _TRAINER, PADDING, "base_trainer.CompileMetrics.update_state"),
    _repair("metrics:skip_padding_in_tf_keras", "tf_keras.src.engine.compile_utils", PADDING,
            "MetricsContainer.update_state"),
    _repair("losses:count_real_rows", _TRAINER, PADDING, *_STEPS, _UNPACK, "metrics_module.Mean.update_state"),
    _repair("fitting:refuse_without_repairs", _TRAINER, FIT, *_METHODS[:2], "TensorFlowTrainer.train_on_batch"),
    _repair("losses:count_real_rows_in_tf_keras", "tf_keras.src.engine.compile_utils", PADDING,
            "LossesContainer.__call__"),
)  # fmt: skip
_ON_JAX = "keras.src.backend.jax"
JAX_REPAIRS = (  # in place of those of Keras 3 above, if JAX is its backend
    _repair("jax.cluster:leave_gpus_to_jax", "tensorflow", JAX, "config.set_visible_devices"),
    _repair("jax.cluster:share_seed", "keras.src.random.seed_generator", JAX, "make_default_seed"),
    _repair("jax.placement:place_without_exchange", f"{_ON_JAX}.distribution_lib", JAX, "distribute_tensor"),
    _repair("jax.training:begin_within_epochs", f"{_ON_JAX}.trainer", JAX, "JAXEpochIterator._enumerate_iterator"),
    _repair("jax.data:adapt_data", _ADAPTERS, JAX, "get_data_adapter"),
    # These names are public: an older Keras lacks the first.
    _repair("jax.cluster:distribute_by_default", "keras", JAX, "distribution.DataParallel.num_model_replicas",
            "distribution.set_distribution", "Variable.__init__"),
    _repair("jax.training:repair_models", "keras", JAX, "Model.fit", "Model.compute_metrics", "StatelessScope",
            "tree.map_structure", "utils.unpack_x_y_sample_weight"),
    _repair("jax.saving:save_alone", "keras", SAVING, "Model.save", "Model.export"),
    *(repair for repair in REPAIRS if repair.library == "keras" and repair.function in (
        "row_weights:spread_weights", "saving:export_for_inference", "pass_steps:show_known_steps",
        "training_events:follow_fit", "adapting:wrap_layers", "shared_paths:save_whole",
    )),
)  # fmt: skip

CONTEXT = _repair(
    "startup:start_with_collectives", "tensorflow.python.eager.context", STRATEGY,
    "context", "Context.ensure_initialized", "Context.configure_collective_ops", "Context.enable_collective_ops",
    "Context.configure_coordination_service", required=False,
)  # fmt: skip
IMPORTS = (  # names that functions use where they need them
    Use("tensorflow.python.eager.context", SAVING, ("eager_mode",)),
    Use("tensorflow.python.eager.context", "ctx.connect", ("context", "get_server_def")),
    Use("tensorflow.python.distribute.multi_worker_util", STRATEGY,
        ("normalize_cluster_spec", "worker_count", "collective_leader")),
    Use("tensorflow.python.distribute.cluster_resolver.tfconfig_cluster_resolver", STRATEGY,
        ("TFConfigClusterResolver",)),
    Use("tensorflow.core.protobuf.tensorflow_server_pb2", STRATEGY, ("ServerDef",)),
    Use("tensorflow.python.training.server_lib", "a program that serves others", ("Server.join",)),
    Use("tensorflow.python.autograph.pyct.loader", "the files of AutoGraph", ("tempfile",)),
    Use("tensorflow.python.data.experimental.ops.distribute", "a feed on several GPUs of a worker",
        ("_LegacyRebatchDataset",)),
    Use("tensorflow.dtensor.python.accelerator_util", "ctx.init_dtensor", ("is_initialized",)),
    Use("tensorflow.python.eager.record", TABLES, ("should_record_backprop",)),
    Use("tensorflow.python.ops.resource_variable_ops", TABLES, ("ResourceVariable",)),
    Use("tensorflow", "ctx.dataset", ("raw_ops.GeneratorDataset",)),
    Use("tensorflow", "a feed for parameter servers", ("raw_ops.PyFunc",)),
    Use("tensorflow", TABLES, (
        "raw_ops.CollectiveAllToAllV2", "raw_ops.CollectiveReduceV2", "raw_ops.CollectiveGatherV2", "raw_ops.SaveV2",
        "raw_ops.MergeV2Checkpoints", "__internal__.EagerTensor")),
    Use("tensorflow", METRICS, ("raw_ops.VarHandleOp", "raw_ops.AssignVariableOp", "raw_ops.ReadVariableOp")),
    Use("keras.src.backend", "a custom train_step on several GPUs of a worker",
        ("KerasTensor", "standardize_dtype", "compute_output_spec")),
    Use("keras.src.backend.config", "the choice of a backend", ("_BACKEND",)),
    Use("keras.src.backend.common.stateless_scope", PADDING, ("in_stateless_scope",)),
    Use("keras.src.trainers.data_adapters.tf_dataset_adapter", FIT, ("TFDatasetAdapter",)),
    Use(f"{_LAYERS}.discretization", ADAPT, ("merge_summaries",)),
)  # fmt: skip
_IMPORTS_ON_JAX = (Use("keras.src.utils.rng_utils", JAX, ("get_random_seed",)),)


def is_whole(repair: Repair, module: ModuleType) -> bool:
    """Return whether a repair fits an imported module; a missing name is warned of, and remembered."""
    if not repair.applies:
        return False
    missing = repair.missing(module)
    if missing:
        _note(repair, missing)
    return not missing


def test_modules(repairs: Iterable[Repair]) -> None:
    """Warn of modules that a library, which has been imported, does not have, and remember them."""
    for repair in repairs:
        absent = repair.module not in sys.modules and ".torch." not in repair.module
        if absent and repair.applies and not _exists(repair.module):
            _note(repair, [""])


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:
        return False


def _note(repair: Repair, missing: Iterable[str]) -> None:
    problem = _problem(repair, missing)
    _log.warning("%s", problem)
    if repair.required:
        session.problems.append(problem)


def refuse_replicas() -> None:
    """Refuse to train on several replicas, if the installed libraries lack a name without which that is wrong.

    Raises
    ------
    RequirementError
        With a line for each feature that lacks one.
    """
    if session.problems:
        raise RequirementError("\n".join(session.problems))


def all_problems(jax: bool = False) -> Iterator[str]:
    """Yield a line for each use whose names are missing, of the libraries that are installed; imports them.

    Parameters
    ----------
    jax : bool
        Whether JAX is the backend of Keras in this process.
    """
    repairs = JAX_REPAIRS if jax else REPAIRS
    fitting = [repair for repair in repairs if repair.applies]
    yield from _problems_of([*fitting, *(_IMPORTS_ON_JAX if jax else [CONTEXT, *IMPORTS])])


def _problems_of(uses: Iterable[Use]) -> Iterator[str]:
    absent = {name for name in ("tf_keras", "torch") if importlib.util.find_spec(name) is None}
    for use in uses:
        if use.library in absent or ("torch" in absent and ".torch." in use.module):
            continue
        try:
            missing = use.missing(importlib.import_module(use.module))
        except ImportError:
            missing = [""]
        if missing:
            yield _problem(use, missing)


def _problem(use: Use, missing: Iterable[str]) -> str:
    names = ", ".join(f"{use.module}.{name}".rstrip(".") for name in missing)
    library = use.library
    tested = _TESTED_ON_JAX if use.feature == JAX and library == "keras" else TESTED[library]
    return (
        f"{_SHOWN.get(library, library)} {_version(library)} has no {names}: {use.feature} needs it; install "
        f'"{tested}", or a release of TensorFlowOnSpark for this version'
    )


def _version(library: str) -> str:
    """Return the version of a package, whose import may not be complete."""
    for module in (library, f"{library}.src.version"):
        if version := getattr(sys.modules.get(module), "__version__", ""):
            return str(version)
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return "(of unknown version)"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:2]))


def attribute_of(module: Any, name: str) -> Any:
    """Return a function of a module, or a method of one of its classes; None if there is none."""
    owner = module
    for part in name.split("."):
        owner = getattr(owner, part, None)
    return owner


if __name__ == "__main__":
    print(json.dumps(list(all_problems(jax=os.environ.get("KERAS_BACKEND") == "jax"))))  # noqa: T201
