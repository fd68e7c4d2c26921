"""The estimator: trains a Keras model on a DataFrame's rows, on as many nodes as are wanted."""

from typing import TYPE_CHECKING, Any

from pyspark.ml import Estimator
from pyspark.ml.util import MLReadable, MLReader, MLWritable, MLWriter
from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, BinaryType, UserDefinedType

from tensorflowonspark.columns import check_schema, quoted, select
from tensorflowonspark.driver.run import run
from tensorflowonspark.errors import FeedError, SpecError
from tensorflowonspark.ml.adapting import adapted
from tensorflowonspark.ml.code import code_for
from tensorflowonspark.ml.model import KerasModel
from tensorflowonspark.ml.params import TrainParams, missing_columns
from tensorflowonspark.ml.persistence import EstimatorReader, EstimatorWriter
from tensorflowonspark.ml.serialization import is_model, serialize
from tensorflowonspark.ml.training import TrainingJob, train

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["KerasEstimator"]


class KerasEstimator(TrainParams, Estimator[KerasModel], MLReadable["KerasEstimator"], MLWritable):
    """Trains a Keras model on the rows of a DataFrame.

    The nodes are tasks of one Spark job, which feed themselves: each holds a task slot until training is complete.

    Parameters
    ----------
    model : keras.Model or callable
        A model, compiled or with `optimizer`, `loss` and `metrics` given here; or a function without arguments that
        returns one, which is called on the nodes. TensorFlow is needed in the driver only for the former.
    **params
        All else that can be set: ``KerasEstimator.explainParams()`` lists it. Each has a ``setX`` and a ``getX``.

    Raises
    ------
    SpecError
        If there is no such param.

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

    def __init__(self, model: Any = None, **params: Any) -> None:
        super().__init__()
        self.setParams(**({} if model is None else {"model": model}), **params)

    def _fit(self, dataset: "DataFrame") -> KerasModel:
        frame, validation = self._rows(dataset)
        options = {"num_workers": self.getOrDefault("numWorkers"), **self.getOrDefault("clusterOptions")}
        job = self._job(frame, validation)
        results = run(dataset.sparkSession, train, job, data=frame, validation=validation or None, **options)
        trained = next(each for each in results.values() if each is not None)
        model = KerasModel(trained.artefact, history=trained.history)
        fitted: KerasModel = self._copyValues(model)
        return fitted

    def _rows(self, dataset: "DataFrame") -> tuple["DataFrame", str]:
        """Return the columns that are fed, and the name of that which says what to validate on."""
        columns = [*self.feature_columns, *self.label_columns, *self._weights()]
        indicator = str(self.optional("validationIndicatorCol") or "")
        other: DataFrame | None = self.optional("validationData")
        if indicator and other is not None:
            raise SpecError("set one of validationIndicatorCol and validationData, not both")
        missing_columns(dataset, [*columns, *([indicator] if indicator else [])])
        if other is not None:
            missing_columns(other, columns)
            own, others = (select(each, list(dict.fromkeys(columns))) for each in (dataset, other))
            indicator = next(name for name in ("validates", "validates_", "validates__") if name not in columns)
            frame = own.withColumn(indicator, f.lit(False)).union(others.withColumn(indicator, f.lit(True)))
        else:
            frame = select(dataset, list(dict.fromkeys([*columns, *([indicator] if indicator else [])])))
        check_schema(frame.schema)
        return frame, indicator

    def _weights(self) -> list[str]:
        return [self.getWeightCol()] if self.isDefined("weightCol") and self.getWeightCol() else []

    def _frozen_model(self, given: Any, frame: "DataFrame", validation: str) -> Any:
        """Return a model as it travels, with preprocessing layers that have the state of the rows to train on."""
        if not is_model(given):
            return serialize(given)
        rows = frame.where(~f.col(quoted(validation))) if validation else frame
        by_column = {name: self.getOrDefault(name) for name in ("shapes", "dtypes", "fill")}
        with adapted(given, rows, self.feature_columns, by_column):
            return serialize(given)

    def _job(self, frame: "DataFrame", validation: str = "") -> TrainingJob:
        initial, given = self.optional("initialModel"), self.optional("model")
        if given is None and initial is None:
            raise SpecError("no model: KerasEstimator(model=...) takes a Keras model, or a function that builds one")
        if given is not None and not is_model(given) and not callable(given):
            raise SpecError(f"model={given!r}: expected a Keras model, or a function that returns one")
        if initial is not None and not isinstance(initial, KerasModel):
            raise SpecError(f"initialModel={initial!r}: expected a fitted KerasModel")
        compiled = {"optimizer": "optimizer", "loss": "loss", "metrics": "metrics", "loss_weights": "lossWeights"}
        features = self.feature_columns
        try:
            return TrainingJob(
                model=initial.frozen if initial is not None else self._frozen_model(given, frame, validation),
                compiled_with={name: serialize(self.optional(param)) for name, param in compiled.items() if
                               self.optional(param) is not None},
                custom_objects=code_for(self.getOrDefault("customObjects")),
                features=tuple(features),
                arrays=tuple(name for name in features if holds_arrays(frame, name)),
                labels=tuple(self.label_columns),
                weight=next(iter(self._weights()), None),
                by_column={name: self.getOrDefault(name) for name in ("shapes", "dtypes", "fill")},
                class_weight=self.optional("classWeight") or {},
                batch_size=self.getOrDefault("batchSize"),
                epochs=self.getOrDefault("epochs"),
                seed=self.getOrDefault("seed"),
                steps_per_execution=self.getOrDefault("stepsPerExecution"),
                precision=self.optional("mixedPrecision"),
                callbacks=serialize(self.getOrDefault("callbacks")),
                checkpoints=self.optional("checkpointDir"),
                loop=serialize(self.optional("trainFn")),
                verbose=self.getOrDefault("verbose"),
            )  # fmt: skip
        except FeedError as error:
            raise SpecError(str(error)) from error

    def write(self) -> MLWriter:
        """Return what saves it."""
        return EstimatorWriter(self)

    @classmethod
    def read(cls) -> MLReader["KerasEstimator"]:
        """Return what loads it."""
        return EstimatorReader(cls)


def holds_arrays(frame: "DataFrame", column: str) -> bool:
    """Whether a column's values are arrays, vectors or bytes, so that a shape says something of them."""
    return isinstance(frame.schema[column].dataType, (ArrayType, BinaryType, UserDefinedType))
