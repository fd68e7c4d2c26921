"""The estimator: trains a Keras model on the rows of a DataFrame, on one or several nodes."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.ml import Estimator
from pyspark.ml.util import MLReadable, MLWritable
from pyspark.sql import functions as f

from tensorflowonspark.columns import check_schema, quoted, select
from tensorflowonspark.declarations import keywords_of, shows
from tensorflowonspark.driver.feed.feed_settings import Data, FeedSettings
from tensorflowonspark.driver.run import run
from tensorflowonspark.errors import FeedError, SpecError
from tensorflowonspark.keras.structure import inputs_of, output_paths
from tensorflowonspark.ml.checks import ColumnForm, check_features, forms_of, label_checks
from tensorflowonspark.ml.code import code_for
from tensorflowonspark.ml.compilation import check_compilation, check_names
from tensorflowonspark.ml.features import TakenColumns
from tensorflowonspark.ml.fit_tracking import log_fitted, tracked_fit
from tensorflowonspark.ml.inputs import are_in_order, column_shapes, holds_arrays, input_of_each
from tensorflowonspark.ml.invalid_rows import without_invalid
from tensorflowonspark.ml.model import KerasModel
from tensorflowonspark.ml.model_bundle import require_outputs
from tensorflowonspark.ml.node_training import TrainingJob, train
from tensorflowonspark.ml.params import check_columns
from tensorflowonspark.ml.persistence import StageReader, StageWriter
from tensorflowonspark.ml.registration import Registration
from tensorflowonspark.ml.row_files import written_rows
from tensorflowonspark.ml.serialization import is_model, serialize
from tensorflowonspark.ml.spark_adapt import adapted
from tensorflowonspark.ml.training_params import EstimatorSettings, TrainingParams
from tensorflowonspark.settings import with_groups
from tensorflowonspark.terminal import in_notebook

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from typing_extensions import Self, Unpack

    from tensorflowonspark.keywords import EstimatorKeywords, TrainingKeywords

_EPOCHS = 2  # Keras's output of a line for each epoch


@shows(EstimatorSettings)
class KerasEstimator(TrainingParams, Estimator[KerasModel], MLReadable["KerasEstimator"], MLWritable):
    """An estimator that trains a Keras model on the rows of a DataFrame.

    The nodes are tasks of one Spark job, which feed themselves: each holds a task slot until training is complete.
    Every param has a ``setX`` and a ``getX``, and ``fit(df, {est.epochs: 5})`` sets it for one training.

    Parameters
    ----------
    **params
        Those of `EstimatorSettings`.

    Raises
    ------
    SpecError
        If there is no such param, or it can't have that value.

    Examples
    --------
    >>> def build():
    ...     import keras
    ...
    ...     model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2, "softmax")])
    ...     model.compile("adam", "sparse_categorical_crossentropy")
    ...     return model
    >>> rows = [([1.0, 0.0], 0), ([0.0, 1.0], 1)] * 8
    >>> df = spark.createDataFrame(rows, "features array<float>, label int")
    >>> model = KerasEstimator(build, epochs=2, numWorkers=2).fit(df)
    >>> model.transform(df).columns
    ['features', 'label', 'rawPrediction', 'probability', 'prediction']
    """

    def __init__(self, model: Any = None, **params: "Unpack[TrainingKeywords]") -> None:
        super().__init__()
        self._assign(model=model, **params)

    def setParams(self, **params: "Unpack[EstimatorKeywords]") -> "Self":
        """Set several params at once.

        Parameters
        ----------
        **params
            Values by the names of params, as in the constructor; None unsets a param.

        Returns
        -------
        KerasEstimator
            The same stage.

        Raises
        ------
        SpecError
            If there is no such param, or it can't have that value.

        Examples
        --------
        >>> KerasEstimator().setParams(epochs=5, batchSize=64).getBatchSize()
        64
        """
        return self._assign(**params)

    def write(self) -> StageWriter:
        """Return a writer, which `save` uses."""
        return StageWriter(self)

    @classmethod
    def read(cls) -> StageReader["KerasEstimator"]:
        """Return a reader, which `load` uses."""
        return StageReader(cls, lambda _bundle, _metadata: cls())

    def _fit(self, dataset: "DataFrame") -> KerasModel:
        registration = Registration.of(self.getRegisteredModelName(), self.getModelTags(), self.getModelAliases())
        options = {**with_groups(self._cluster_settings), "start": self.getStart()}
        self._check_model()
        frame, validation = self._select_rows(dataset)
        if self.getHandleInvalid() == "skip":
            frame, validation = self._skip_invalid(frame, validation)
        self._check_columns(frame)
        job = self._job(frame, validation)
        feed = {name: options.pop(name) for name in list(options) if name in keywords_of(FeedSettings)}
        directory = self.getCacheDir()
        if directory is not None and feed != {"start": "all_rows"}:
            names = ", ".join(f"{name}={value!r}" for name, value in feed.items() if value != "all_rows")
            raise SpecError(f"cacheDir={directory!r}: the nodes read the rows from files there, without {names}")
        with tracked_fit(self, options) as fit:
            if directory is None:
                data = Data(frame, **{**feed, "validation": validation})
                results = run(dataset.sparkSession, train, job, data=data, **options)
            else:
                with written_rows(directory, frame, validation) as files:
                    results = run(dataset.sparkSession, train, replace(job, files=files), **options)
        trained = results.chief
        # As in Spark ML the model has the estimator's uid, so that param maps of the estimator are the model's too.
        model: KerasModel = self._copyValues(KerasModel(trained.bundle, history=trained.history)._resetUid(self.uid))
        model._manifest = trained.manifest
        log_fitted(fit, model, frame, registration)
        return model

    def _select_rows(self, dataset: "DataFrame") -> "tuple[DataFrame, DataFrame | str | None]":
        """Return the columns to feed, and the rows to validate on: a DataFrame, or the column that marks them."""
        columns = self._taken
        indicator: str | None = self._optional("validationIndicatorCol") or None  # Spark ML takes "" for none
        other = self.getValidationData()
        if indicator and other is not None:
            raise SpecError("set one of validationIndicatorCol and validationData, not both")
        check_columns(dataset, [*columns, *([indicator] if indicator else [])])
        frame = select(dataset, list(dict.fromkeys([*columns, *([indicator] if indicator else [])])))
        check_schema(frame.schema)
        if other is None:
            return frame, indicator
        check_columns(other, columns, "validationData")
        return frame, select(other, columns)

    def _skip_invalid(
        self, frame: "DataFrame", validation: "DataFrame | str | None"
    ) -> "tuple[DataFrame, DataFrame | str | None]":
        """Return the rows without those that have a null, or another shape than `shapes` or the given model has."""
        initial, given, by_column = self.getInitialModel(), self.getModel(), self._by_column
        known = inputs_of(given) if is_model(given) else ()
        inputs = known if initial is None else initial._bundle.inputs
        shapes = column_shapes(inputs, self._feature_columns, self._arrays(frame), by_column["shapes"])
        taken = TakenColumns(tuple(self._taken), {**by_column, "shapes": shapes})
        if validation is not None and not isinstance(validation, str):
            validation = without_invalid(validation, taken, "rows of validationData")
        return without_invalid(frame, taken), validation

    @property
    def _taken(self) -> list[str]:
        """The columns of features, labels and weights."""
        weight = self._weight_column
        return list(dict.fromkeys([*self._feature_columns, *self._label_columns, *([weight] if weight else [])]))

    def _arrays(self, frame: "DataFrame") -> list[str]:
        """Return the columns of features whose values are arrays, vectors or bytes."""
        return [name for name in self._feature_columns if holds_arrays(frame.schema[name].dataType)]

    def _check_model(self) -> None:
        """Refuse a model that can't be trained, before anything starts."""
        initial, given = self.getInitialModel(), self.getModel()
        if given is None and initial is None:
            raise SpecError("no model: KerasEstimator(model=...) takes a Keras model, or a function that builds one")
        if given is not None and not is_model(given) and not callable(given):
            raise SpecError(f"model={given!r}: expected a Keras model, or a function that returns one")
        if initial is not None and not isinstance(initial, KerasModel):
            raise SpecError(f"initialModel={initial!r}: expected a fitted KerasModel")
        if initial is not None:
            initial._bundle.require_keras()
        if is_model(given):
            require_outputs(given)
            input_of_each(inputs_of(given), self._feature_columns)
            if self.getTrainFn() is None:  # which may take any labels
                are_in_order(list(output_paths(given)), self._label_columns, "outputs")
        self._check_model_params(complete=True)
        if self.getCacheDir() is not None and self.getStart() != "all_rows":
            raise SpecError("start='first_rows': with cacheDir training begins when Spark has written all rows")
        if initial is None and is_model(given):
            has_loop = self.getTrainFn() is not None
            check_compilation(given, self._compiled_with, self.getCustomObjects(), has_loop=has_loop)
        else:
            known = self._library if initial is None else initial._bundle.kind
            check_names(self._compiled_with, self.getCustomObjects(), known, built=False)

    def _check_columns(self, frame: "DataFrame") -> None:
        """Refuse columns that a known model can't be trained on, as far as that is known by their types."""
        initial, given = self.getInitialModel(), self.getModel()
        known = inputs_of(given) if is_model(given) else ()
        features = forms_of(frame.schema, self._feature_columns)
        declared = self.getShapes()
        features = {name: ColumnForm(None) if name in declared else form for name, form in features.items()}
        check_features(known if initial is None else initial._bundle.inputs, features)
        if initial is None and is_model(given) and self.getTrainFn() is None:
            loss = self.getLoss()
            labels = forms_of(frame.schema, self._label_columns)
            loss = getattr(given, "loss", None) if loss is None else loss
            for check in label_checks(given, loss, self._label_columns).values():
                check.check(labels[check.column])

    @property
    def _compiled_with(self) -> dict[str, Any]:
        """The arguments of ``compile`` that are set."""
        settings = {
            "optimizer": self.getOptimizer(),
            "loss": self.getLoss(),
            "metrics": self.getMetrics(),
            "loss_weights": self.getLossWeights(),
        }
        return {name: value for name, value in settings.items() if value is not None}

    def _job(self, frame: "DataFrame", validation: "DataFrame | str | None" = None) -> TrainingJob:
        initial, given = self.getInitialModel(), self.getModel()
        try:
            return TrainingJob(
                model=self._serialized_model(given, frame, validation) if initial is None else initial._bundle,
                model_params=serialize(self.getModelParams()),
                compiled_with=serialize(self._compiled_with),
                custom_objects=code_for(self.getCustomObjects()),
                features=tuple(self._feature_columns),
                arrays=tuple(self._arrays(frame)),
                labels=tuple(self._label_columns),
                weight=self._weight_column,
                by_column=self._by_column,
                class_weight=self.getClassWeight() or {},
                batch_size=self.getBatchSize(),
                epochs=self.getEpochs(),
                seed=self.getSeed(),
                steps_per_execution=self.getStepsPerExecution(),
                precision=self.getMixedPrecision(),
                strategy=self.getStrategy(),
                callbacks=serialize(self.getCallbacks()),
                checkpoints=self.getCheckpointDir(),
                loop=serialize(self.getTrainFn()),
                verbose=_EPOCHS if in_notebook() and not self.isSet("verbose") else self.getVerbose(),
            )
        except FeedError as error:
            raise SpecError(str(error)) from error

    def _serialized_model(self, given: Any, frame: "DataFrame", validation: "DataFrame | str | None") -> Any:
        """Return the model in the form that is sent; its preprocessing layers are adapted to the rows to train on."""
        if not is_model(given):
            return serialize(given)
        rows = frame.where(~f.col(quoted(validation))) if isinstance(validation, str) else frame
        with adapted(given, rows, self._feature_columns, self._by_column):
            return serialize(given)
