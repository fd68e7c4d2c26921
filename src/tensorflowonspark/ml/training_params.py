"""Params of the estimator: the model, its data, and the settings of its training."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pyspark.ml.param import TypeConverters
from pyspark.ml.param.shared import HasLabelCol, HasSeed, HasValidationIndicatorCol, HasWeightCol

from tensorflowonspark.declarations import keywords_of
from tensorflowonspark.driver.feed.job import Start
from tensorflowonspark.errors import SpecError, did_you_mean
from tensorflowonspark.keras.jax.cluster import ALONE
from tensorflowonspark.ml.params import ModelParams, ModelSettings, as_mapping, defaults_of, has_params, positive
from tensorflowonspark.ml.serialization import library_of
from tensorflowonspark.settings import ClusterSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tensorflowonspark.keywords import EstimatorAccessors
    from tensorflowonspark.ml.model import KerasModel
else:
    EstimatorAccessors = object

_NEED_NO_LENGTH = ("keras", "tensorflowonspark", "tf_keras")  # top-level packages
Backend = Literal["tensorflow", "jax", "torch"]
Precision = Literal["mixed_float16", "mixed_bfloat16", "float32"]
Strategy = Literal["synchronous", "local_sgd", "diloco"]
TrainFn = Callable[[Any, Any, Any, Any], Mapping[str, Sequence[float]] | None]


def as_mapping_of_settings(value: Any) -> dict[str, Any]:
    """Return settings of a cluster as a dict, for a `Param`.

    Raises
    ------
    SpecError
        If a cluster has no setting of a name.

    Examples
    --------
    >>> as_mapping_of_settings({"logdir": "/logs"})
    Traceback (most recent call last):
    tensorflowonspark.errors.SpecError: clusterOptions: a cluster has no setting 'logdir' (did you mean 'logs'?)
    """
    options = as_mapping(value)
    known = [*keywords_of(ClusterSettings), "report"]
    for name in options:
        if name not in known:
            raise SpecError(f"clusterOptions: a cluster has no setting {name!r}{did_you_mean(str(name), known)}")
    return options


@dataclass(kw_only=True)
class TrainingSettings(ModelSettings):
    """The params of a `KerasEstimator` but for the model. After a change run ``make keywords``.

    Parameters
    ----------
    labelCol : str
        The column of labels.
    labelCols : sequence of str, optional
        Several columns of labels instead, one for each output of the model. Takes precedence over `labelCol`.
    weightCol : str, optional
        The column of each row's weight, a number or an array with one for each of its time steps.
    validationIndicatorCol : str, optional
        A boolean column that selects the rows to validate on after each epoch.
    validationData : DataFrame, optional
        A DataFrame with the same columns to validate on, instead of `validationIndicatorCol`.
    optimizer : keras.optimizers.Optimizer or str, optional
        A Keras optimizer or its name, for a model that is not compiled.
    loss : optional
        A Keras loss, its name, or one for each output, for a model that is not compiled.
    metrics : sequence, optional
        A list of Keras metrics or their names, for a model that is not compiled.
    lossWeights : optional
        Weights of the outputs' losses, for a model that is not compiled.
    classWeight : mapping, optional
        Weight of the rows of each class, by its number.
    callbacks : sequence of keras.callbacks.Callback, optional
        Callbacks of ``fit``.
    numWorkers : int
        Nodes that train together; each takes a task slot of Spark.
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
    mixedPrecision : {"mixed_float16", "mixed_bfloat16", "float32"}, optional
        The dtype policy of Keras for a model that a function builds.
    checkpointDir : str, optional
        A directory on any file system for the state after each epoch, removed when training is complete; interrupted
        training resumes from it.
    initialModel : KerasModel, optional
        A fitted model to train further, instead of `model`.
    trainFn : callable, optional
        A training loop instead of ``fit``: takes the model, the dataset, the validation dataset or None, and the
        node's `Context`; may return a history, values by metric.
    backend : {"tensorflow", "jax", "torch"}, optional
        The backend of Keras on the nodes; by default that of their environment. The fitted model works with any. With
        JAX the executors need jax beside TensorFlow; torch trains on one worker.
    clusterOptions : mapping, optional
        Further settings of `Cluster`, as ``{"log_level": "WARNING"}``, and the ``report`` of ``tensorflowonspark.run``.
    verbose : int
        Output of Keras on the chief: 0, 1 or 2; by default 0, and in a notebook 2, a line for each epoch.
    """

    labelCol: str = "label"
    labelCols: Annotated[Sequence[str] | None, TypeConverters.toListString] = None
    weightCol: str | None = None
    validationIndicatorCol: str | None = None
    validationData: "DataFrame | None" = None
    optimizer: Any = None
    loss: Any = None
    metrics: Sequence[Any] | None = None
    lossWeights: Any = None
    classWeight: Annotated[Mapping[int, float] | None, as_mapping] = None
    callbacks: Annotated[Sequence[Any] | None, TypeConverters.toList, []] = None
    numWorkers: Annotated[int, positive] = 1
    epochs: Annotated[int, positive] = 1
    batchSize: Annotated[int, positive] = 32
    stepsPerExecution: Annotated[int, positive] = 1
    seed: int = 0
    start: Start | None = None
    strategy: Strategy = "synchronous"
    mixedPrecision: Precision | None = None
    checkpointDir: Annotated[str | None, TypeConverters.toString] = None
    initialModel: "KerasModel | None" = None
    trainFn: TrainFn | None = None
    backend: Backend | None = None
    clusterOptions: Annotated[Mapping[str, Any] | None, as_mapping_of_settings, {}] = None
    verbose: Annotated[int, TypeConverters.toInt] = 0


@dataclass(kw_only=True)
class EstimatorSettings(TrainingSettings):
    """All params of a `KerasEstimator`.

    Parameters
    ----------
    model : keras.Model or callable
        A model, compiled or with `optimizer`, `loss` and `metrics` given here; or a function without arguments that
        returns one, which the nodes call. The driver needs TensorFlow only for the former.
    """

    model: Any = None


@has_params(EstimatorSettings)
class TrainingParams(ModelParams, HasLabelCol, HasWeightCol, HasValidationIndicatorCol, HasSeed, EstimatorAccessors):
    """Params of `KerasEstimator` beside those of the model."""

    def __init__(self) -> None:
        super().__init__()
        self._setDefault(**defaults_of(EstimatorSettings))

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
        if "num_workers" in options and self.isSet("numWorkers"):
            given = options["num_workers"]
            raise SpecError(f"numWorkers={self.getNumWorkers()}, and clusterOptions sets num_workers={given}: set one")
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
