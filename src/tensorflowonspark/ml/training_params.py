# mypy: disable-error-code="no-any-return"
"""Params of the estimator: the model, its data, and the settings of its training."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

from pyspark.ml.param import Param, TypeConverters
from pyspark.ml.param.shared import HasLabelCol, HasSeed, HasValidationIndicatorCol, HasWeightCol
from pyspark.sql import DataFrame

from tensorflowonspark.driver.feed.job import Start
from tensorflowonspark.errors import SpecError
from tensorflowonspark.keras.jax.cluster import ALONE
from tensorflowonspark.ml.params import ModelParams, ModelSettings, as_mapping, one_of, param, positive
from tensorflowonspark.ml.serialization import library_of

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Backend", "EstimatorSettings", "Precision", "Strategy", "TrainFn", "TrainingParams"]

_NEED_NO_LENGTH = ("keras", "tensorflowonspark", "tf_keras")  # top-level packages
Backend = Literal["tensorflow", "jax", "torch"]
Precision = Literal["mixed_float16", "mixed_bfloat16", "float32"]
Strategy = Literal["synchronous", "local_sgd", "diloco"]
TrainFn = Callable[[Any, Any, Any, Any], Mapping[str, Sequence[float]] | None]


class EstimatorSettings(ModelSettings, total=False):
    """The params of a `KerasEstimator`, as keyword arguments."""

    model: Any
    labelCol: str
    labelCols: Sequence[str] | None
    weightCol: str | None
    validationIndicatorCol: str | None
    validationData: DataFrame | None
    optimizer: Any
    loss: Any
    metrics: Sequence[Any] | None
    lossWeights: Any
    classWeight: Mapping[int, float] | None
    callbacks: Sequence[Any] | None
    numWorkers: int
    epochs: int
    batchSize: int
    stepsPerExecution: int
    seed: int
    start: Start | None
    strategy: Strategy
    mixedPrecision: Precision | None
    checkpointDir: str | None
    initialModel: Any
    trainFn: TrainFn | None
    backend: Backend | None
    clusterOptions: Mapping[str, Any] | None
    verbose: int


class TrainingParams(ModelParams, HasLabelCol, HasWeightCol, HasValidationIndicatorCol, HasSeed):
    """Params of `KerasEstimator` beside those of the model."""

    model: "Param[Any]" = param("model", "a Keras model, or a function without arguments that returns one.")
    labelCols: "Param[list[str]]" = param(
        "labelCols",
        "several label columns, one for each output of the model. Takes precedence over labelCol.",
        TypeConverters.toListString,
    )
    validationData: "Param[DataFrame]" = param(
        "validationData", "a DataFrame with the same columns to validate on after each epoch."
    )
    optimizer: "Param[Any]" = param("optimizer", "a Keras optimizer or its name, for a model that is not compiled.")
    loss: "Param[Any]" = param(
        "loss", "a Keras loss, its name, or one for each output, for a model that is not compiled."
    )
    metrics: "Param[Sequence[Any]]" = param(
        "metrics", "a list of Keras metrics or their names, for a model that is not compiled."
    )
    lossWeights: "Param[Any]" = param(
        "lossWeights", "weights of the outputs' losses, for a model that is not compiled."
    )
    classWeight: "Param[dict[int, float]]" = param(
        "classWeight", "weight of the rows of each class, by its number.", as_mapping
    )
    callbacks: "Param[list[Any]]" = param("callbacks", "a list of Keras callbacks.", TypeConverters.toList)
    numWorkers: "Param[int]" = param(
        "numWorkers", "nodes that train together; each takes a task slot of Spark.", positive
    )
    epochs: "Param[int]" = param("epochs", "passes over all rows.", positive)
    batchSize: "Param[int]" = param("batchSize", "rows of one step over all workers together.", positive)
    stepsPerExecution: "Param[int]" = param(
        "stepsPerExecution", "steps per execution of Keras's training function, as in Model.compile.", positive
    )
    start: "Param[str]" = param(
        "start",
        "when training begins: with 'all_rows', or with 'first_rows', which the first epoch takes as they arrive. If "
        "unset, the other params decide: 'all_rows' if seed or trainFn is set, or callbacks has classes of your own.",
        one_of(*get_args(Start)),
    )
    strategy: "Param[str]" = param(
        "strategy",
        "how the nodes train one model: 'synchronous', with the sum of their gradients at each step, or apart with "
        "weights that are averaged in rounds: 'local_sgd', or 'diloco' with an outer optimizer.",
        one_of(*get_args(Strategy)),
    )
    mixedPrecision: "Param[str]" = param(
        "mixedPrecision",
        "Keras's dtype policy for a model that a function builds: 'mixed_float16' or 'mixed_bfloat16'.",
        one_of("mixed_float16", "mixed_bfloat16", "float32"),
    )
    checkpointDir: "Param[str]" = param(
        "checkpointDir",
        "a directory on any file system for the state after each epoch, removed when training is complete; "
        "interrupted training resumes from it.",
        TypeConverters.toString,
    )
    initialModel: "Param[Any]" = param("initialModel", "a fitted KerasModel to train further.")
    trainFn: "Param[TrainFn]" = param(
        "trainFn",
        "a training loop of your own, instead of fit: a function of (model, dataset, validation_dataset or None, ctx) "
        "that trains the model, and may return a history as a dict of lists.",
    )
    backend: "Param[str]" = param(
        "backend",
        "Keras's backend on the nodes: 'tensorflow', 'jax' or 'torch' (with one worker). If unset, that of the nodes' "
        "environment, which is TensorFlow by default.",
        one_of(*get_args(Backend)),
    )
    clusterOptions: "Param[dict[str, Any]]" = param(
        "clusterOptions", "further settings of Cluster, as log_level or env.", as_mapping
    )
    verbose: "Param[int]" = param(
        "verbose", "output of Keras on the chief: 0, 1 or 2 (in a notebook by default 2).", TypeConverters.toInt
    )

    def __init__(self) -> None:
        super().__init__()
        self._setDefault(
            seed=0, numWorkers=1, epochs=1, batchSize=32, stepsPerExecution=1, verbose=0, callbacks=[],
            clusterOptions={}, strategy="synchronous",
        )  # fmt: skip

    def setModel(self, value: Any) -> "Self":
        """Set `model`, a Keras model or a function without arguments that returns one."""
        return self._assign(model=value)

    def getModel(self) -> Any:
        """Return `model`, or None if unset."""
        return self._optional("model")

    def setLabelCol(self, value: str) -> "Self":
        """Set `labelCol`, the only column of labels."""
        return self._assign(labelCol=value)

    def setLabelCols(self, value: Sequence[str] | None) -> "Self":
        """Set `labelCols`, several columns of labels."""
        return self._assign(labelCols=value)

    def getLabelCols(self) -> list[str] | None:
        """Return `labelCols`, or None if unset."""
        return self._optional("labelCols")

    def setWeightCol(self, value: str | None) -> "Self":
        """Set `weightCol`, the column of each row's weight."""
        return self._assign(weightCol=value)

    def setValidationIndicatorCol(self, value: str | None) -> "Self":
        """Set `validationIndicatorCol`, a boolean column that selects the rows to validate on."""
        return self._assign(validationIndicatorCol=value)

    def setSeed(self, value: int) -> "Self":
        """Set `seed`."""
        return self._assign(seed=value)

    def setValidationData(self, value: DataFrame | None) -> "Self":
        """Set `validationData`, a DataFrame to validate on."""
        return self._assign(validationData=value)

    def getValidationData(self) -> DataFrame | None:
        """Return `validationData`, or None if unset."""
        return self._optional("validationData")

    def setOptimizer(self, value: Any) -> "Self":
        """Set `optimizer`, a Keras optimizer or its name."""
        return self._assign(optimizer=value)

    def getOptimizer(self) -> Any:
        """Return `optimizer`, or None if unset."""
        return self._optional("optimizer")

    def setLoss(self, value: Any) -> "Self":
        """Set `loss`, a Keras loss, its name, or one for each output."""
        return self._assign(loss=value)

    def getLoss(self) -> Any:
        """Return `loss`, or None if unset."""
        return self._optional("loss")

    def setMetrics(self, value: Sequence[Any] | None) -> "Self":
        """Set `metrics`, Keras metrics or their names."""
        return self._assign(metrics=value)

    def getMetrics(self) -> Sequence[Any] | None:
        """Return `metrics`, or None if unset."""
        return self._optional("metrics")

    def setLossWeights(self, value: Any) -> "Self":
        """Set `lossWeights`, the weights of the outputs' losses."""
        return self._assign(lossWeights=value)

    def getLossWeights(self) -> Any:
        """Return `lossWeights`, or None if unset."""
        return self._optional("lossWeights")

    def setClassWeight(self, value: Mapping[int, float] | None) -> "Self":
        """Set `classWeight`, the weight of each class's rows by its number."""
        return self._assign(classWeight=value)

    def getClassWeight(self) -> dict[int, float] | None:
        """Return `classWeight`, or None if unset."""
        return self._optional("classWeight")

    def setCallbacks(self, value: Sequence[Any] | None) -> "Self":
        """Set `callbacks`, Keras callbacks."""
        return self._assign(callbacks=value)

    def getCallbacks(self) -> list[Any]:
        """Return `callbacks`."""
        return self.getOrDefault("callbacks")

    def setNumWorkers(self, value: int) -> "Self":
        """Set `numWorkers`, the nodes that train together."""
        return self._assign(numWorkers=value)

    def getNumWorkers(self) -> int:
        """Return `numWorkers`."""
        return self.getOrDefault("numWorkers")

    def setEpochs(self, value: int) -> "Self":
        """Set `epochs`, the passes over all rows."""
        return self._assign(epochs=value)

    def getEpochs(self) -> int:
        """Return `epochs`."""
        return self.getOrDefault("epochs")

    def setBatchSize(self, value: int) -> "Self":
        """Set `batchSize`, the rows of one step over all workers together."""
        return self._assign(batchSize=value)

    def getBatchSize(self) -> int:
        """Return `batchSize`."""
        return self.getOrDefault("batchSize")

    def setStepsPerExecution(self, value: int) -> "Self":
        """Set `stepsPerExecution`, the steps per execution of Keras's training function."""
        return self._assign(stepsPerExecution=value)

    def getStepsPerExecution(self) -> int:
        """Return `stepsPerExecution`."""
        return self.getOrDefault("stepsPerExecution")

    def setStart(self, value: Start | None) -> "Self":
        """Set `start`, when training begins."""
        return self._assign(start=value)

    def getStart(self) -> Start | None:
        """Return `start`, or None if unset."""
        return self._optional("start")

    def setStrategy(self, value: Strategy) -> "Self":
        """Set `strategy`, how the nodes train one model."""
        return self._assign(strategy=value)

    def getStrategy(self) -> Strategy:
        """Return `strategy`."""
        return self.getOrDefault("strategy")

    def setMixedPrecision(self, value: Precision | None) -> "Self":
        """Set `mixedPrecision`, Keras's dtype policy."""
        return self._assign(mixedPrecision=value)

    def getMixedPrecision(self) -> Precision | None:
        """Return `mixedPrecision`, or None if unset."""
        return self._optional("mixedPrecision")

    def setCheckpointDir(self, value: str | None) -> "Self":
        """Set `checkpointDir`, the directory of the checkpoints."""
        return self._assign(checkpointDir=value)

    def getCheckpointDir(self) -> str | None:
        """Return `checkpointDir`, or None if unset."""
        return self._optional("checkpointDir")

    def setInitialModel(self, value: Any) -> "Self":
        """Set `initialModel`, a fitted `KerasModel` to train further."""
        return self._assign(initialModel=value)

    def getInitialModel(self) -> Any:
        """Return `initialModel`, or None if unset."""
        return self._optional("initialModel")

    def setTrainFn(self, value: TrainFn | None) -> "Self":
        """Set `trainFn`, a training loop instead of ``fit``."""
        return self._assign(trainFn=value)

    def getTrainFn(self) -> TrainFn | None:
        """Return `trainFn`, or None if unset."""
        return self._optional("trainFn")

    def setBackend(self, value: Backend | None) -> "Self":
        """Set `backend`, Keras's backend on the nodes."""
        return self._assign(backend=value)

    def getBackend(self) -> Backend | None:
        """Return `backend`, or None if unset."""
        return self._optional("backend")

    def setClusterOptions(self, value: Mapping[str, Any] | None) -> "Self":
        """Set `clusterOptions`, further settings of `Cluster`."""
        return self._assign(clusterOptions=value)

    def getClusterOptions(self) -> dict[str, Any]:
        """Return `clusterOptions`."""
        return self.getOrDefault("clusterOptions")

    def setVerbose(self, value: int) -> "Self":
        """Set `verbose`, the output of Keras on the chief."""
        return self._assign(verbose=value)

    def getVerbose(self) -> int:
        """Return `verbose`."""
        return self.getOrDefault("verbose")

    @property
    def _chosen_start(self) -> Start:
        """When training begins: `start`, or what the other params ask for."""
        # A callback of Keras's own needs no number of steps; another may read params["steps"], which is None until all
        # rows have arrived. A loop may ask for the dataset's length.
        own_code = self.getTrainFn() is not None or any(
            type(each).__module__.partition(".")[0] not in _NEED_NO_LENGTH for each in self.getCallbacks()
        )
        return self.getStart() or ("all_rows" if self.isSet("seed") or own_code else "first_rows")

    @property
    def _options_with_backend(self) -> dict[str, Any]:
        """The `clusterOptions`, with the nodes' environment for `backend`.

        Raises
        ------
        SpecError
            If another param excludes the backend.
        """
        options, backend = self.getClusterOptions(), self.getBackend()
        env = dict(options.get("env") or {})
        given = env.get("KERAS_BACKEND")
        if backend is not None and given not in (None, backend):
            raise SpecError(f"backend={backend!r}, and clusterOptions sets KERAS_BACKEND={given!r}: set one of them")
        chosen = backend or given or "tensorflow"
        if chosen != "tensorflow":
            self._check_backend(chosen, env, options)
        if backend is not None:
            env["KERAS_BACKEND"] = backend
        if chosen == "jax" and self.getStrategy() != "synchronous":
            env.setdefault(ALONE, "1")
        return {**options, "env": env} if env else options

    def _check_backend(self, backend: str, env: Mapping[str, str], options: Mapping[str, Any]) -> None:
        if env.get("TF_USE_LEGACY_KERAS", "").lower() in ("1", "true") or library_of(self.getModel()) == "tf_keras":
            raise SpecError(f"backend={backend!r} is for Keras 3, and tf_keras has only TensorFlow")
        if options.get("num_ps"):
            raise SpecError(f"backend={backend!r}: parameter servers are for TensorFlow; leave out num_ps")
        workers = options.get("num_workers", self.getNumWorkers())
        apart = self.getTrainFn() is not None or self.getStrategy() != "synchronous"
        if backend == "torch" and workers != 1 and not apart:
            raise SpecError(
                f"backend='torch' trains on one worker, and numWorkers is {workers}: Keras exchanges no gradients "
                "between processes with torch. Take strategy='diloco', backend='jax' or 'tensorflow', or numWorkers=1"
            )

    @property
    def _label_columns(self) -> list[str]:
        several = self.getLabelCols()
        return [self.getLabelCol()] if several is None else list(several)

    @property
    def _weight_column(self) -> str | None:
        return self._optional("weightCol") or None  # Spark ML takes an empty name for none
