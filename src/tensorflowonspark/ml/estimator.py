"""The estimator: trains a Keras model on the rows of a DataFrame, on one or several nodes."""

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.ml import Estimator
from pyspark.ml.util import MLReadable, MLReader, MLWritable, MLWriter
from pyspark.sql import functions as f

from tensorflowonspark.columns import check_schema, quoted, select
from tensorflowonspark.driver.feed.job import Start
from tensorflowonspark.driver.run import run
from tensorflowonspark.errors import FeedError, SpecError
from tensorflowonspark.ml.adapting import adapted
from tensorflowonspark.ml.code import code_for
from tensorflowonspark.ml.model import KerasModel
from tensorflowonspark.ml.params import Invalid, check_columns, checked_params
from tensorflowonspark.ml.persistence import StageReader, StageWriter
from tensorflowonspark.ml.serialization import is_model, serialize
from tensorflowonspark.ml.tracking import log_fitted, tracked_fit
from tensorflowonspark.ml.training import TrainingJob, check_compilation, train
from tensorflowonspark.ml.training_params import (
    Backend,
    EstimatorSettings,
    Precision,
    Strategy,
    TrainFn,
    TrainingParams,
)
from tensorflowonspark.ml.transform import holds_arrays
from tensorflowonspark.terminal import in_notebook

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from typing_extensions import Self, Unpack

__all__ = ["KerasEstimator"]

_log = logging.getLogger(__name__)
_EPOCHS = 2  # Keras's output of a line for each epoch


class KerasEstimator(TrainingParams, Estimator[KerasModel], MLReadable["KerasEstimator"], MLWritable):
    """An estimator that trains a Keras model on the rows of a DataFrame.

    The nodes are tasks of one Spark job, which feed themselves: each holds a task slot until training is complete.
    Every param has a ``setX`` and a ``getX``, and ``fit(df, {est.epochs: 5})`` sets it for one training.

    Parameters
    ----------
    model : keras.Model or callable
        A model, compiled or with `optimizer`, `loss` and `metrics` given here; or a function without arguments that
        returns one, which the nodes call. The driver needs TensorFlow only for the former.
    featuresCol : str
        The column of features.
    featuresCols : sequence of str, optional
        Several columns of features instead: one for each input of the model, by name or in order, or numbers that
        become one input together.
    labelCol : str
        The column of labels.
    labelCols : sequence of str, optional
        Several columns of labels instead, one for each output of the model.
    weightCol : str, optional
        The column of each row's weight, a number or an array with one for each of its time steps.
    validationIndicatorCol : str, optional
        A boolean column that selects the rows to validate on after each epoch.
    validationData : DataFrame, optional
        A DataFrame with the same columns to validate on, instead of `validationIndicatorCol`.
    optimizer, loss, metrics, lossWeights : optional
        Keras's objects or their names, for a model that is not compiled.
    classWeight : mapping, optional
        Weight of the rows of each class, by its number.
    callbacks : sequence of keras.callbacks.Callback, optional
        Callbacks of ``fit``.
    numWorkers : int
        Nodes that train together.
    epochs : int
        Passes over all rows.
    batchSize : int
        Rows of one step over all workers together.
    stepsPerExecution : int
        Steps per execution of Keras's training function, as in ``Model.compile``.
    seed : int
        Seed of the initial weights and of the order of rows.
    start : {"all_rows", "first_rows"}, optional
        When training begins. With "all_rows" each epoch is a full shuffle, whose order follows from the seed. With
        "first_rows" the first epoch takes the rows as they arrive, shuffled only among those that arrive together;
        its number of steps is unknown before its end. If unset, the estimator chooses: "all_rows" if `seed` is set
        (equal results are wanted), with `trainFn`, and with callbacks of classes that are not Keras's own (which may
        need the number of steps); otherwise "first_rows".
    strategy : {"synchronous", "local_sgd", "diloco"}
        How the nodes train one model: with the sum of their gradients at each step, or apart with weights that are
        averaged in rounds, by `tensorflowonspark.keras.LocalSGD` or `DiLoCo` with their defaults. For other settings
        give the callback in `callbacks` too. Metrics in the history are those of the chief's rows then.
    mixedPrecision : str, optional
        Keras's dtype policy for a model that a function builds: ``mixed_float16`` or ``mixed_bfloat16``.
    checkpointDir : str, optional
        A directory on any file system for the state after each epoch, removed when training is complete; interrupted
        training resumes from it.
    initialModel : KerasModel, optional
        A fitted model to train further, instead of `model`.
    trainFn : callable, optional
        A training loop instead of ``fit``: takes the model, the dataset, the validation dataset or None, and the
        node's `Context`; may return a history, values by metric.
    backend : {"tensorflow", "jax", "torch"}, optional
        Keras's backend on the nodes; by default that of their environment. The fitted model works with any. With JAX
        the executors need jax beside TensorFlow; torch trains on one worker.
    clusterOptions : mapping, optional
        Further settings of `Cluster`, as ``{"log_level": "WARNING"}``.
    verbose : int
        Output of Keras on the chief: 0, 1 or 2; by default 0, and in a notebook 2, a line for each epoch.
    shapes, dtypes, fill : mapping, optional
        The shape of one row's value, the dtype, and the value that replaces a null, by column.
    predictionCol, probabilityCol, rawPredictionCol, handleInvalid, inferenceBatchSize, customObjects
        Params of the fitted `KerasModel`.

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

    @checked_params
    def __init__(  # noqa: PLR0913 - one for each param
        self,
        model: Any = None,
        *,
        featuresCol: str = "features",
        featuresCols: Sequence[str] | None = None,
        labelCol: str = "label",
        labelCols: Sequence[str] | None = None,
        weightCol: str | None = None,
        validationIndicatorCol: str | None = None,
        validationData: "DataFrame | None" = None,
        optimizer: Any = None,
        loss: Any = None,
        metrics: Sequence[Any] | None = None,
        lossWeights: Any = None,
        classWeight: Mapping[int, float] | None = None,
        callbacks: Sequence[Any] | None = None,
        numWorkers: int = 1,
        epochs: int = 1,
        batchSize: int = 32,
        stepsPerExecution: int = 1,
        seed: int = 0,
        start: Start | None = None,
        strategy: Strategy = "synchronous",
        mixedPrecision: Precision | None = None,
        checkpointDir: str | None = None,
        initialModel: KerasModel | None = None,
        trainFn: TrainFn | None = None,
        backend: Backend | None = None,
        clusterOptions: Mapping[str, Any] | None = None,
        verbose: int = 0,
        shapes: Mapping[str, Sequence[int | None]] | None = None,
        dtypes: Mapping[str, str] | None = None,
        fill: Mapping[str, Any] | None = None,
        predictionCol: str = "prediction",
        probabilityCol: str = "probability",
        rawPredictionCol: str = "rawPrediction",
        handleInvalid: Invalid = "error",
        inferenceBatchSize: int | None = None,
        customObjects: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()

    def setParams(self, **params: "Unpack[EstimatorSettings]") -> "Self":
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

    def write(self) -> MLWriter:
        """Return a writer, which `save` uses."""
        return StageWriter(self)

    @classmethod
    def read(cls) -> MLReader["KerasEstimator"]:
        """Return a reader, which `load` uses."""
        return StageReader(lambda _bundle, _metadata: cls())

    def _fit(self, dataset: "DataFrame") -> KerasModel:
        given = self._options_with_backend
        frame, validation = self._select_rows(dataset)
        job = self._job(frame, validation)
        start = self._chosen_start
        _log.info("training begins with %s (start)", start)
        options = {"num_workers": self.getNumWorkers(), "start": start, **given}
        with tracked_fit(self, options) as fit:
            results = run(dataset.sparkSession, train, job, data=frame, validation=validation, **options)
        trained = next(each for each in results.values() if each is not None)
        model: KerasModel = self._copyValues(KerasModel(trained.bundle, history=trained.history))
        log_fitted(fit, model, frame)
        return model

    def _select_rows(self, dataset: "DataFrame") -> "tuple[DataFrame, DataFrame | str | None]":
        """Return the columns to feed, and the rows to validate on: a DataFrame, or the column that marks them."""
        weight = self._weight_column
        columns = [*self._feature_columns, *self._label_columns, *([weight] if weight else [])]
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
        return frame, select(other, list(dict.fromkeys(columns)))

    def _job(self, frame: "DataFrame", validation: "DataFrame | str | None" = None) -> TrainingJob:
        initial, given = self.getInitialModel(), self.getModel()
        if given is None and initial is None:
            raise SpecError("no model: KerasEstimator(model=...) takes a Keras model, or a function that builds one")
        if given is not None and not is_model(given) and not callable(given):
            raise SpecError(f"model={given!r}: expected a Keras model, or a function that returns one")
        if initial is not None and not isinstance(initial, KerasModel):
            raise SpecError(f"initialModel={initial!r}: expected a fitted KerasModel")
        settings = {
            "optimizer": self.getOptimizer(),
            "loss": self.getLoss(),
            "metrics": self.getMetrics(),
            "loss_weights": self.getLossWeights(),
        }
        compiled = {name: value for name, value in settings.items() if value is not None}
        if initial is None and is_model(given):
            has_loop = self.getTrainFn() is not None
            check_compilation(given, compiled, self.getCustomObjects(), has_loop=has_loop)
        features = self._feature_columns
        try:
            return TrainingJob(
                model=self._serialized_model(given, frame, validation)
                if initial is None
                else initial._bundle.to_serialized(),
                compiled_with=serialize(compiled),
                custom_objects=code_for(self.getCustomObjects()),
                features=tuple(features),
                arrays=tuple(name for name in features if holds_arrays(frame.schema[name].dataType)),
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
