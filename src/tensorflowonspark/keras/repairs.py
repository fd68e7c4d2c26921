"""The repairs of TensorFlow and Keras: the names that each needs, the function that makes it, and what it is for.

Names that stand for themselves are public. This module imports neither library.
"""

import json
import os
from collections.abc import Iterator

from tensorflowonspark.keras.private_names import JAX, Repair, Use, problems_of, too_old

FIT = "fit on several workers"
CLASSES = "class weights beside sample weights"
PADDING = "losses and metrics without padding rows"
LOSSES = "losses of several workers"
STATISTICS = "BatchNormalization(synchronized=True) on several workers"
LAYERS = "what layers compute of a batch on several workers"
OPTIMIZERS = "an optimizer on several workers"
SAVING = "saving a model on several workers"
PATHS = "models that several workers save to one path"
EXPORT = "the export of a model as it predicts"
STRATEGY = "MultiWorkerMirroredStrategy in a node"
SHARES = "a feed under a strategy"
PASSES = "passes over data that begin without a wait"
ADAPT = "adapt of preprocessing layers on several workers"
METRICS = "the metrics of a training"
PLACED = "a layer on another node"
TABLES = "ShardedEmbedding"


def _repair(function: str, module: str, feature: str, *names: str, required: bool = True) -> Repair:
    return Repair(module, feature, names, function, required)


_TRAINER = "keras.src.backend.tensorflow.trainer"
_ADAPTERS = "keras.src.trainers.data_adapters"
_FIT_EVENTS = ("on_epoch_begin", "on_train_batch_end", "on_test_begin", "on_test_end", "on_epoch_end")
_CALLBACKS = (*(f"callbacks.CallbackList.{name}" for name in _FIT_EVENTS), "callbacks.History.on_epoch_end")
_STEPS = ("Model.train_step", "Model.test_step", "utils.unpack_x_y_sample_weight")
_RUNS = ("fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch")
SAVES = ("Model.save", "Model.save_weights", "models.save_model", "saving.save_model")
_ADAPTED = ("Normalization", "Discretization", "TextVectorization", "StringLookup", "IntegerLookup")
# Two classes: that of TensorFlow 2, and that of TensorFlow 1, which is still there.
STRATEGY_CLASSES = tuple(
    f"{place}.MultiWorkerMirroredStrategy" for place in ("distribute", "compat.v1.distribute.experimental")
)
ADAPTS = tuple(f"layers.{name}.adapt" for name in _ADAPTED)

GOES_ON = Use("keras", "a training that goes on at an epoch", ("Model()._initial_epoch",))
REPAIRS = (  # in order: functions are replaced before they are wrapped
    _repair("trackers:track_losses", "keras", LOSSES, "metrics.Mean.update_state", "metrics.Sum.update_state",
            "Model()._loss_tracker", "Model()._compile_loss"),
    _repair("metric_sums:sum_metrics", "keras", LOSSES, "Metric.__init__", "Metric.add_variable",
            "Model.get_metrics_result", "Variable._deferred_initialize"),
    _repair("losses:know_losses", "keras", LOSSES, "Layer.add_loss", "Loss.__call__", "Model.compute_loss",
            "Optimizer.scale_loss", "optimizers.LossScaleOptimizer.scale_loss"),
    _repair("layer_rows:know_rows", "keras", LAYERS, "Layer.__call__"),
    _repair("layer_rows:keep_of_all", "keras", LAYERS, "Variable.assign"),
    _repair("steps:take_steps", "keras", PADDING, *_STEPS, "Model()._losses_override"),
    _repair("gradients:sum_gradients", "tensorflow", LOSSES,
            *(f"GradientTape.{name}" for name in ("gradient", "jacobian", "batch_jacobian"))),
    _repair("worker_step:count_one_replica", "tensorflow", LOSSES, "distribute.Strategy.num_replicas_in_sync",
            "Tensor.__truediv__", "Tensor.__mul__", "Tensor.__rmul__"),
    _repair("randomness:draw_own_numbers", "keras", "random numbers of each worker", "random.SeedGenerator.next"),
    _repair("fitting:multiply_class_weights", f"{_ADAPTERS}.tf_dataset_adapter", CLASSES, "make_class_weight_map_fn",
            required=False),
    _repair("fitting:multiply_class_weights_on_batch", "keras", CLASSES, "Model.train_on_batch", required=False),
    _repair("losses:divide_by_all", "keras.src.losses.loss", LOSSES,
            "reduce_values", "reduce_weighted_values", "apply_mask", "scale_loss_for_distribution"),
    _repair("batch_statistics:reduce_moments", "keras", STATISTICS, "layers.BatchNormalization._moments"),
    _repair("row_weights:spread_weights", "keras.src.losses.loss", "a loss for each pixel or time step of a fed row",
            "reduce_weighted_values"),
    _repair("optimizers:sum_gradients_first", "keras", OPTIMIZERS,
            "Optimizer.apply", "optimizers.LossScaleOptimizer.apply", "Optimizer._all_reduce_sum_gradients"),
    _repair("optimizers:branch_on_all_replicas", "tensorflow", OPTIMIZERS, "__internal__.smart_cond.smart_cond"),
    _repair("devices:place_slots", "keras", PLACED, "Optimizer.add_variable_from_reference",
            "Optimizer()._distribution_strategy", required=False),
    _repair("saving:examine_outside_scope", "keras.src.saving.saving_lib", SAVING, "get_attr_skipset"),
    _repair("saving:save_outside_scope", "keras", SAVING, *SAVES),
    _repair("shared_paths:save_whole", "keras", PATHS, *SAVES, required=False),
    _repair("shared_paths:save_whole", "tf_keras.src.saving.saving_api", PATHS, "save_model", "save_weights",
            required=False),
    _repair("shared_paths:save_whole", "tensorflow", PATHS, "saved_model.save", required=False),
    _repair("saving:export_for_inference", "keras", EXPORT,
            "export.ExportArchive.add_endpoint", "export.ExportArchive.write_out"),
    _repair("saving:export_for_inference", "tf_keras", EXPORT, "export.ExportArchive.add_endpoint", required=False),
    _repair("startup:prepare_strategies", "tensorflow", STRATEGY, *(f"{each}.__init__" for each in STRATEGY_CLASSES),
            "distribute.MultiWorkerMirroredStrategy._collective_key_base", required=False),
    _repair("step_functions:make_functions", "keras", FIT,
            "Model.make_train_function", "Model.make_test_function", "Model.make_predict_function",
            "Model._maybe_symbolic_build"),
    _repair("fitting:wrap_fit", "keras", FIT, "Model.fit", "Model.evaluate", *GOES_ON.names),
    _repair("pass_steps:begin_within_epochs", _TRAINER, FIT, "TFEpochIterator._enumerate_iterator"),
    _repair("fitting:refuse_parameter_servers", "keras", "ParameterServerStrategy with Keras 3",
            *(f"Model.{name}" for name in _RUNS), required=False),
    _repair("fitting:convert_variables", "keras", "int and float of a strategy's variables",
            "Variable.__int__", "Variable.__float__", required=False),
    _repair("fitting:predict_alone", "keras", "predict on several workers", "Model.predict"),
    _repair("pass_steps:show_known_steps", "keras", "the length of a progress bar",
            *(f"callbacks.ProgbarLogger.on_{each}_batch_end" for each in ("train", "test", "predict")), required=False),
    _repair("training_events:follow_fit", "keras", METRICS, *_CALLBACKS, required=False),
    _repair("training_events:follow_fit", "tf_keras", METRICS, *_CALLBACKS, required=False),
    _repair("waiting:measure_collectives", "tensorflow", METRICS,
            "distribute.StrategyExtended.reduce_to", "distribute.StrategyExtended.batch_reduce_to", required=False),
    _repair("shards:distribute_shards_whole", "tensorflow", SHARES,
            "distribute.Strategy.experimental_distribute_dataset"),
    _repair("shards:leave_devices_untuned", "tensorflow", PASSES, "data.Dataset.prefetch", required=False),
    _repair("tensorflow_collectives:keep_options", "tensorflow", "the options of a strategy's reductions",
            "distribute.ReplicaContext.all_reduce", required=False),
    _repair("provenance:track_datasets", "tensorflow", SHARES,
            *(f"data.Dataset.{name}" for name in ("__init__", "__iter__", "_inputs", "_functions")),
            *(f"data.Dataset.{name}" for name in ("from_generator", "save", "load", "snapshot"))),
    _repair("provenance:track_adapters", f"{_ADAPTERS}.generator_data_adapter", SHARES,
            "GeneratorDataAdapter.__init__", "GeneratorDataAdapter.get_tf_dataset"),
    _repair("provenance:track_adapters", f"{_ADAPTERS}.py_dataset_adapter", SHARES,
            "PyDatasetAdapter.__init__", "PyDatasetAdapter.get_tf_dataset"),
    _repair("provenance:track_adapters", "tf_keras.src.engine.data_adapter", SHARES, "GeneratorDataAdapter.__init__"),
    _repair("adapting_together:wrap_layers", "keras", ADAPT, *ADAPTS),
    _repair("adapting_together:wrap_base_layer", "tf_keras.src.engine.base_preprocessing_layer", ADAPT,
            "PreprocessingLayer.adapt"),
    _repair("metric_sums:skip_padding", "keras.src.trainers.compile_utils", PADDING, "CompileMetrics.update_state"),
    _repair("tf_keras:skip_padding", "tf_keras.src.engine.compile_utils", PADDING,
            "MetricsContainer.update_state"),
    _repair("fitting:refuse_without_repairs", "keras", FIT, "Model.fit", "Model.evaluate", "Model.train_on_batch"),
    _repair("tf_keras:divide_by_all", "tf_keras.src.engine.compile_utils", PADDING,
            "LossesContainer.__call__"),
)  # fmt: skip
_ON_ALL_BACKENDS = tuple(repair for repair in REPAIRS if repair.library == "keras" and repair.function in (
    "row_weights:spread_weights", "saving:export_for_inference", "pass_steps:show_known_steps",
    "training_events:follow_fit", "adapting_together:wrap_layers", "shared_paths:save_whole",
))  # fmt: skip
_ON_JAX = "keras.src.backend.jax"
JAX_REPAIRS = (  # in place of those of Keras 3 above, if it has another backend
    _repair("jax.jax_processes:leave_gpus_to_jax", "tensorflow", JAX, "config.set_visible_devices"),
    _repair("jax.jax_processes:share_seed", "keras.src.random.seed_generator", JAX, "make_default_seed"),
    _repair("jax.value_placement:place_without_exchange", f"{_ON_JAX}.distribution_lib", JAX, "distribute_tensor",
            "distribute_data_input"),
    _repair("pass_steps:begin_within_epochs", f"{_ON_JAX}.trainer", JAX, "JAXEpochIterator._enumerate_iterator"),
    _repair("jax.data_adapters:adapt_data", _ADAPTERS, JAX, "get_data_adapter"),
    # These names are public: an older Keras lacks the first.
    _repair("jax.jax_processes:distribute_by_default", "keras", JAX, "distribution.DataParallel.num_model_replicas",
            "distribution.set_distribution", "Variable.__init__"),
    _repair("jax.model_methods:repair_models", "keras", JAX, *(f"Model.{name}" for name in (*_RUNS, "__call__")),
            *_STEPS, "StatelessScope", "tree.map_structure",
            *(f"callbacks.CallbackList.on_{name}" for name in (
                "epoch_begin", "train_batch_begin", "test_batch_begin", "train_batch_end", "test_batch_end",
                "epoch_end", "train_end"))),
    _repair("jax.saving_alone:save_alone", "keras", SAVING, *SAVES, "Model.export", "Variable.value"),
    *_ON_ALL_BACKENDS,
)  # fmt: skip
TORCH_REPAIRS = (
    _repair("exchanging_callbacks:refuse_torch", "keras", "fit with torch", "Model.fit"),
    *_ON_ALL_BACKENDS,
)
OF_BACKENDS = {"tensorflow": REPAIRS, "jax": JAX_REPAIRS, "torch": TORCH_REPAIRS}

CONTEXT = _repair(
    "startup:set_up_collectives", "tensorflow.python.eager.context", STRATEGY,
    "Context.config", "Context.enable_collective_ops", "Context.configure_coordination_service",
    required=False,
)  # fmt: skip
IMPORTS = (  # names that functions use where they need them
    Use("tensorflow.python.eager.context", SAVING, ("eager_mode",)),
    Use("tensorflow.python.eager.context", "ctx.connect", ("context", "Context.get_server_def")),
    Use("tensorflow", LOSSES, ("Graph._get_function",)),
    Use("tensorflow", "a program that serves others", ("distribute.Server.join",)),
    Use("tensorflow.python.framework.convert_to_constants", "ONNX", ("convert_variables_to_constants_v2",)),
    Use("tensorflow.python.autograph.pyct.loader", "the files of AutoGraph", ("tempfile",)),
    Use("keras.src.backend.common.masking", PADDING, ("()._keras_mask",)),
    Use("keras.src.utils.rng_utils", "the seed in a manifest", ("get_random_seed",)),
    Use("tensorflow.python.eager.record", TABLES, ("should_record_backprop",)),
    Use("tensorflow.python.ops.resource_variable_ops", TABLES, ("ResourceVariable",)),
    Use("tensorflow", "ctx.dataset", ("raw_ops.GeneratorDataset",)),
    Use("tensorflow", "a feed for parameter servers", ("raw_ops.PyFunc",)),
    Use("tensorflow", TABLES, (
        "raw_ops.CollectiveAllToAllV2", "raw_ops.CollectiveReduceV2", "raw_ops.CollectiveGatherV2", "raw_ops.SaveV2",
        "raw_ops.MergeV2Checkpoints")),
    Use("tensorflow", METRICS, ("raw_ops.VarHandleOp", "raw_ops.AssignVariableOp", "raw_ops.ReadVariableOp")),
    Use("keras.src.backend", "ragged values on several workers", ("KerasTensor",)),
    Use("keras.src.backend.config", "the choice of a backend", ("_BACKEND",)),
    Use("keras.src.trainers.data_adapters.tf_dataset_adapter", FIT, ("TFDatasetAdapter",)),
    Use("keras.src.layers.preprocessing.discretization", ADAPT, ("merge_summaries",)),
    Use("keras.src.saving.serialization_lib", "models where code is refused", ("SafeModeScope",)),
)  # fmt: skip
_STATE = "the state of callbacks in a checkpoint"
ATTRIBUTES = (  # of objects, which functions use where they need them
    GOES_ON,
    Use("keras", _STATE, (
        "callbacks.ModelCheckpoint()._batches_seen_since_last_saving", "callbacks.ModelCheckpoint()._last_batch_seen",
        "callbacks.OrbaxCheckpoint()._total_batches_seen", "callbacks.SwapEMAWeights()._ema_weights_in_model",
        "callbacks.TensorBoard()._global_train_batch", "callbacks.TensorBoard()._global_test_batch")),
    Use("keras", "the columns that a layer which adapts receives", ("Function()._nodes_by_depth",)),
    Use("keras.src.ops.node", "the names of a model's outputs", ("()._keras_history",)),
    Use("keras", PLACED, ("Variable()._value", "Variable._deferred_initialize")),
    Use("tensorflow.python.distribute.input_lib", FIT, ("DistributedIteratorBase()._enable_get_next_as_optional",)),
    Use("tensorflow.python.eager.context", STRATEGY, ("()._context", "Context()._initialized")),
    Use("tf_keras.src.engine.compile_utils", PADDING, (
        "MetricsContainer._conform_to_outputs", "LossesContainer()._user_losses", "LossesContainer()._total_loss_mean",
        "LossesContainer()._per_output_metrics")),
    Use("tf_keras.src.engine.data_adapter", SHARES, ("GeneratorDataAdapter()._dataset",)),
    Use("tf_keras", "a training that goes on", ("Model()._training_state",)),
    Use("tf_keras", _STATE, (
        "callbacks.BackupAndRestore()._batches_count", "callbacks.BackupAndRestore()._current_epoch")),
    Use("tf_keras.src.engine.base_preprocessing_layer", ADAPT, ("PreprocessingLayer()._is_adapted",)),
)  # fmt: skip
_WEIGHTS = "weights in memory once per executor"
DISPENSABLE = (  # the use warns, and does without: Keras before 3.12.4 lacks the first
    Use("keras.src.saving.saving_lib", _WEIGHTS, ("safe_get_h5_dataset",)),
    Use("keras", _WEIGHTS, ("Variable()._initializer",)),
)
_IMPORTS_ON_JAX = (Use("keras.src.utils.rng_utils", JAX, ("get_random_seed",)),)


def all_problems(jax: bool = False) -> Iterator[str]:
    """Yield a line for each use whose names are missing, and for a Keras that is too old; imports what is installed.

    `jax` is whether JAX is the backend of Keras in this process.
    """
    repairs = JAX_REPAIRS if jax else REPAIRS
    yield from too_old("keras")
    yield from problems_of([*repairs, *(_IMPORTS_ON_JAX if jax else [CONTEXT, *IMPORTS, *ATTRIBUTES])])


if __name__ == "__main__":
    print(json.dumps(list(all_problems(jax=os.environ.get("KERAS_BACKEND") == "jax"))))  # noqa: T201
