"""Training of `KerasEstimator` on a node."""

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorflowonspark.errors import FeedError, SpecError
from tensorflowonspark.keras.hooks import keras_backend
from tensorflowonspark.keras.jax.saving_alone import inference_function, saved_by_one
from tensorflowonspark.keras.preprocessing import family_of
from tensorflowonspark.keras.structure import as_inputs, as_outputs, inputs_of, output_paths
from tensorflowonspark.ml.checks import LabelCheck, check_features, checked_labels, forms_of_tensors, label_checks
from tensorflowonspark.ml.code import Code
from tensorflowonspark.ml.compilation import check_compilation
from tensorflowonspark.ml.inputs import are_in_order, check_dtypes, column_shapes, held, plain_refusals, to_inputs
from tensorflowonspark.ml.model_bundle import ModelBundle, described, require_outputs
from tensorflowonspark.ml.nans import NanRows
from tensorflowonspark.ml.preprocessing_layers import model_up_to, unadapted_layers
from tensorflowonspark.ml.row_files import RowFiles
from tensorflowonspark.ml.serialization import deserialize, is_model, library_of, serialize_model
from tensorflowonspark.node.tracebacks import reported_as
from tensorflowonspark.run_manifest import Record

if TYPE_CHECKING:
    from tensorflowonspark.node.context import Context
    from tensorflowonspark.node.feed.feed import Feed

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainingJob:
    """The model to train, its data, and the settings of the training; sent to every node."""

    model: Any  # serialized, or a function
    model_params: Mapping[str, Any]  # serialized: the arguments of the function
    compiled_with: Mapping[str, Any]  # serialized: optimizer, loss, metrics, loss_weights
    custom_objects: Code
    features: tuple[str, ...]
    arrays: tuple[str, ...]  # features whose values are arrays, vectors or bytes
    labels: tuple[str, ...]
    weight: str | None
    by_column: Mapping[str, Mapping[str, Any]]  # shapes, dtypes, fill
    class_weight: Mapping[int, float]
    batch_size: int
    epochs: int
    seed: int
    steps_per_execution: int
    precision: str | None
    strategy: str
    callbacks: Sequence[Any]
    checkpoints: str | None
    loop: Callable[..., Any] | None
    verbose: int
    files: RowFiles | None = None  # the rows; None if they are fed


@dataclass(frozen=True)
class Trained:
    """The trained model, its history, and the manifest of the run, which the chief returns."""

    bundle: ModelBundle
    history: dict[str, list[float]] = field(default_factory=dict)
    manifest: Record = field(default_factory=dict)


@reported_as("the training")
def train(job: TrainingJob, ctx: "Context") -> Trained | None:
    """Train on this node together with the others; return the result on the chief, and None elsewhere."""
    keras = _keras()
    keras.utils.set_random_seed(job.seed)
    if job.precision:
        keras.mixed_precision.set_global_policy(job.precision)
    with _scope(job, ctx):
        model = _model(job)
        require_outputs(model)
        _compile(model, job)
    feed, other = _feeds(job, ctx)
    nans = NanRows()
    dataset = _dataset(feed, job, model, nans)
    validation = None if other is None else _dataset(other, job, model)
    adapt_layers(model, dataset)
    checkpoints = ctx.checkpoint(job.checkpoints, keep=1) if job.checkpoints and job.loop is None else None
    if job.loop is not None:
        history = job.loop(model, dataset, validation, ctx) or {}
    else:
        callbacks = _callbacks(model, job, nans, checkpoints)
        with plain_refusals():
            history = model.fit(
                dataset,
                validation_data=validation,
                epochs=job.epochs,
                callbacks=callbacks,
                verbose=job.verbose if ctx.is_chief else 0,
            ).history
    with saved_by_one(model, "KerasEstimator.fit", saves=ctx.is_chief):
        bundle = serialize_model(model) if ctx.is_chief or library_of(model) != "keras" else None
    if not ctx.is_chief or bundle is None:
        return None
    loss = deserialize(job.compiled_with.get("loss"), job.custom_objects.load(bundle.kind))
    trained = Trained(described(bundle, model, loss), _floats(history), ctx._record.manifest())
    if checkpoints:  # what can't be made a stage is not lost
        checkpoints.clear()
    return trained


def _feeds(job: TrainingJob, ctx: "Context") -> tuple[Any, Any]:
    """Return the rows to train on, and those to validate on or None."""
    if job.files is None:
        feed: Any = ctx.feed()
        return feed, feed.validation
    feed = ctx.read_parquet(job.files.train, cache=None)
    if job.files.validation is None:
        return feed, None
    validation: Any = ctx.read_parquet(job.files.validation, cache=None)
    validation._share.is_training = False  # its rows are not counted as trained on
    return feed, validation


def _scope(job: TrainingJob, ctx: "Context") -> AbstractContextManager[Any]:
    """Return the scope of a strategy of all workers, if they train in step; on JAX Keras's distribution needs none."""
    if keras_backend() != "tensorflow":
        return nullcontext()
    import tensorflow as tf

    in_step = job.strategy == "synchronous" and len(ctx.spec.trainers) > 1
    strategy = tf.distribute.MultiWorkerMirroredStrategy() if in_step else tf.distribute.get_strategy()
    scope: AbstractContextManager[Any] = strategy.scope()
    return scope


def adapt_layers(model: Any, dataset: Any) -> None:
    """Adapt the model's preprocessing layers that have no state to the rows of all workers.

    Raises SpecError if a layer needs a state, and the values that it receives are unknown.
    """
    for layer in unadapted_layers(model):
        features = model_up_to(model, layer)
        if features is not None:
            layer.adapt(_features_by(features, dataset))
        elif not getattr(model, "inputs", None) and model.layers[0] is layer and type(model).__name__ == "Sequential":
            layer.adapt(_features_by(None, dataset))
        elif family_of(layer) == "Normalization":
            _log.warning("the layer %r has no mean and variance: adapt it in the function that builds the model", layer)
        else:
            raise SpecError(
                f"the layer {layer.name!r} of the model has no state, and the values that it receives are unknown: "
                "adapt it first, with tfos.adapt(layer, df, 'column') or in the function that builds the model"
            )


def _features_by(model: Any, dataset: Any) -> Any:
    """Return a dataset's features as a model changes them; as they are without one."""
    if keras_backend() == "tensorflow":
        return dataset.map(lambda x, *_: x if model is None else model(x))
    if model is None:
        return _Features(dataset, lambda x: x)
    if keras_backend() == "jax":
        return _Features(dataset, inference_function(model))
    return _Features(dataset, lambda x: _keras().ops.convert_to_numpy(model(x)))


@dataclass(frozen=True)
class _Features:
    """Features as NumPy arrays, changed by a function; a graph of TensorFlow can't call a model on another backend."""

    dataset: Any
    function: Callable[[Any], Any]

    def __iter__(self) -> Iterator[Any]:
        for x, *_ in self.dataset.as_numpy_iterator():
            yield self.function(x)


def _keras() -> Any:
    """Return Keras 3, or tf_keras where the environment asks for it."""
    if os.environ.get("TF_USE_LEGACY_KERAS", "").lower() in ("1", "true"):
        import tf_keras

        return tf_keras
    import keras

    return keras


def _model(job: TrainingJob) -> Any:
    given = deserialize(job.model, job.custom_objects.load())
    model = given if is_model(given) else given(**deserialize(job.model_params, job.custom_objects.load()))
    if not is_model(model):
        raise SpecError(f"model: the function returned {model!r}; expected a Keras model")
    return model


def _compile(model: Any, job: TrainingJob) -> None:
    settings = {
        name: each
        for name, each in deserialize(job.compiled_with, job.custom_objects.load()).items()
        if each is not None
    }
    check_compilation(model, settings, job.custom_objects.load(), has_loop=job.loop is not None)
    if settings:
        if "loss" not in settings and getattr(model, "loss", None) is not None:
            settings["loss"] = model.loss
        model.compile(**{"optimizer": "adam", **settings, "steps_per_execution": job.steps_per_execution})
    elif job.steps_per_execution > 1:
        model.steps_per_execution = job.steps_per_execution


def _dataset(feed: "Feed", job: TrainingJob, model: Any, nans: NanRows | None = None) -> Any:
    """Return the rows as the model takes them: to train on, with `nans`, which counts them; else to validate on."""
    inputs = inputs_of(model)
    features = job.features[0] if len(job.features) == 1 else list(job.features)
    labels = job.labels[0] if len(job.labels) == 1 else list(job.labels)
    shapes = column_shapes(inputs, job.features, job.arrays, job.by_column["shapes"])
    options: Any = {**job.by_column, "shapes": shapes}
    try:
        dataset = feed.dataset(
            job.batch_size,
            features=features,
            label=labels,
            sample_weight=job.weight,
            shuffle=nans is not None,
            seed=job.seed,
            **options,
        )
    except FeedError as error:
        if not error.skippable:
            raise
        raise FeedError(f"{error}. To train without such rows: handleInvalid='skip'") from None
    spec = dataset.element_spec
    check_dtypes(inputs, _dtypes(spec[0], job.features))
    check_features(inputs, forms_of_tensors(spec[0], job.features))
    checks = {} if job.loop is not None else _checks_of_labels(model, job, spec[1])
    outputs = list(output_paths(model))

    import tensorflow as tf

    taken = held(inputs, keras_backend())

    def arrange(x: Any, y: Any, weight: Any) -> Any:
        x = x if isinstance(x, Mapping) else {job.features[0]: x}
        if nans is not None:
            weight = nans.counted({**x, **(y if isinstance(y, Mapping) else {job.labels[0]: y})}, weight)
        if isinstance(y, Mapping) or (len(outputs) > 1 and job.loop is None):
            y = _by_output(y if isinstance(y, Mapping) else {job.labels[0]: y}, outputs, job.loop is not None)
        y = checked_labels(y, checks)
        if job.class_weight and nans is not None:
            weight *= tf.reshape(_class_weights(y, job.class_weight), [-1, *(1 for _ in weight.shape[1:])])
        weights = dict.fromkeys(y, weight) if isinstance(y, Mapping) else weight
        return as_inputs(model, to_inputs(x, taken)), as_outputs(model, y), as_outputs(model, weights)

    return dataset.map(arrange)


def _checks_of_labels(model: Any, job: TrainingJob, spec: Any) -> dict[str, LabelCheck]:
    """Return the checks of labels by output, after those that need no values."""
    for name, dtype in _dtypes(spec, job.labels).items():
        if dtype == "string":
            raise SpecError(f"label column {name!r} holds strings, of which no loss can be made: index it first "
                            "(StringIndexer)")  # fmt: skip
    checks = label_checks(model, getattr(model, "loss", None), job.labels)
    forms = forms_of_tensors(spec, job.labels)
    for each in checks.values():
        each.check(forms[each.column])
    return checks


def _dtypes(spec: Any, columns: Sequence[str]) -> dict[str, str]:
    """Return the dtypes of columns from the spec of their tensors."""
    by_name = spec if isinstance(spec, Mapping) else {columns[0]: spec}
    return {name: str(by_name[name].dtype.name) for name in columns if name in by_name}


def _by_output(labels: Mapping[str, Any], outputs: Sequence[str], has_loop: bool) -> dict[str, Any]:
    """Return the labels of each output, by name if the names match, else in order; a loop may take any."""
    in_order = not (has_loop and len(labels) != len(outputs)) and are_in_order(outputs, list(labels), "outputs")
    return dict(zip(outputs, labels.values(), strict=True)) if in_order else dict(labels)


def _class_weights(labels: Any, weights: Mapping[int, float]) -> Any:
    """Return the weight of each row's class, which is a number or a one-hot vector."""
    import tensorflow as tf

    if isinstance(labels, Mapping):
        raise SpecError("classWeight: rows have no single class in a model with several outputs; use weightCol")
    one_hot = labels.shape.rank > 1 and labels.shape[-1] != 1
    classes = tf.argmax(labels, -1) if one_hot else tf.cast(tf.reshape(labels, [-1]), tf.int64)
    table = np.ones(max(map(int, weights)) + 1, np.float32)
    for number, weight in weights.items():
        table[int(number)] = weight
    known = classes < len(table)
    return tf.where(known, tf.gather(tf.constant(table), tf.where(known, classes, 0)), 1.0)


def _callbacks(model: Any, job: TrainingJob, nans: NanRows, checkpoints: Any) -> list[Any]:
    """Return the user's callbacks, after those that see a step before them and before the one that saves it."""
    looking, resuming = nans.callback(import_module(library_of(model))), [checkpoints.callback()] if checkpoints else []
    return [looking, *_averaging(job), *job.callbacks, *resuming]


def _averaging(job: TrainingJob) -> list[Any]:
    """Return the callback that averages the weights of the nodes, unless the user has given it."""
    if job.strategy == "synchronous":
        return []
    if _keras().__name__ != "keras":
        raise SpecError(f"strategy={job.strategy!r}: its callback is one of Keras 3; unset TF_USE_LEGACY_KERAS")
    from tensorflowonspark.keras.local_sgd import DiLoCo, LocalSGD

    kind = DiLoCo if job.strategy == "diloco" else LocalSGD
    return [] if any(isinstance(each, kind) for each in job.callbacks) else [kind()]


def _floats(history: Mapping[str, Any]) -> dict[str, list[float]]:
    return {str(name): [float(value) for value in values] for name, values in history.items()}
