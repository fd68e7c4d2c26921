"""Params of the estimator: the model, its data, and the settings of its training."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pyspark.ml.param import TypeConverters
from pyspark.ml.param.shared import HasLabelCol, HasSeed, HasValidationIndicatorCol, HasWeightCol

from tensorflowonspark.declarations import keywords_of
from tensorflowonspark.driver.feed.feed_settings import FeedSettings
from tensorflowonspark.driver.feed.job import Start
from tensorflowonspark.errors import OF_PEERS, SpecError, did_you_mean
from tensorflowonspark.keras.jax.jax_processes import ALONE
from tensorflowonspark.ml.params import ModelParams, ModelSettings, as_mapping, defaults_of, has_params, positive
from tensorflowonspark.ml.serialization import is_model, library_of
from tensorflowonspark.restart_policy import RestartPolicy
from tensorflowonspark.settings import GROUPS, ClusterSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from typing_extensions import Self

    from tensorflowonspark.keywords import EstimatorAccessors
    from tensorflowonspark.ml.model import KerasModel
else:
    EstimatorAccessors = object

# Settings of a cluster that are params, which `clusterOptions` must not set as well.
_CLUSTER_PARAMS = {"num_workers": "numWorkers", "restarts": "restarts", "gpus_per_node": "gpusPerNode", "env": "env"}
NOT_FITTED = ("num_ps", "evaluator", "epoch_rows")  # settings that an estimator does not have
Backend = Literal["tensorflow", "jax", "torch"]
Precision = Literal["mixed_float16", "mixed_bfloat16", "float32"]
Strategy = Literal["synchronous", "local_sgd", "diloco"]
TrainFn = Callable[[Any, Any, Any, Any], Mapping[str, Sequence[float]] | None]


def as_workers(value: Any) -> int | tuple[int, ...]:
    """Return a number of workers, or the fewest and the most, for a `Param`."""
    return tuple(map(positive, value)) if isinstance(value, (list, tuple)) else positive(value)


def as_restarts(value: Any) -> RestartPolicy | int:
    """Return a `RestartPolicy` or a number of restarts, for a `Param`."""
    if isinstance(value, RestartPolicy):
        return value
    number = int(TypeConverters.toInt(value))
    if number < 0:
        raise TypeError("expected 0 or more restarts, or a RestartPolicy")
    return number


def as_mapping_of_settings(value: Any) -> dict[str, Any]:
    """Return settings of a cluster as a dict, for a `Param`.

    Raises SpecError if a cluster has no setting of a name, a param sets it, or it asks for nodes that don't train.

    Examples
    --------
    >>> as_mapping_of_settings({"logdir": "/logs"})
    Traceback (most recent call last):
    tensorflowonspark.errors.SpecError: clusterOptions: a cluster has no setting 'logdir' (did you mean 'log_dir'?)
    """
    options = as_mapping(value)
    known = [*keywords_of(ClusterSettings), *keywords_of(FeedSettings)]
    known += [each.name for kind in GROUPS.values() for each in fields(kind)]
    params = {**{name: name for name in keywords_of(EstimatorSettings)}, **_CLUSTER_PARAMS}
    params |= {"validation": "validationData"}
    for name in options:
        if name in params:
            raise SpecError(
                f"clusterOptions: {name!r} is a param of its own: KerasEstimator(..., {params[name]}=...) sets it"
            )
        if name not in known:
            others = [each for each in known if each not in params]
            guess = did_you_mean(str(name), others, OF_PEERS)
            raise SpecError(f"clusterOptions: a cluster has no setting {name!r}{guess}")
        if name in NOT_FITTED and options[name]:
            raise SpecError(
                f"clusterOptions: {name}={options[name]!r}, and an estimator trains on workers: use Cluster"
            )
    return options


def as_arguments(value: Any) -> dict[str, Any]:
    """Return the keyword arguments of a function as a dict, for a `Param`."""
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise TypeError("expected a dict of arguments by keyword, as in {'units': 16}")
    return dict(value)


def check_arguments(function: Callable[..., Any], arguments: Mapping[str, Any], *, complete: bool = False) -> None:
    """Refuse arguments that the function which builds a model does not have.

    Nothing is checked if Python does not know its parameters. If `complete`, a function that needs further arguments is
    refused, too. Raises SpecError, with the keyword that was probably meant.

    Examples
    --------
    >>> def build(units=16): ...
    >>> check_arguments(build, {"unit": 8})
    Traceback (most recent call last):
    tensorflowonspark.errors.SpecError: modelParams: build() takes no 'unit' (did you mean 'units'?), but: units
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return
    name = f"{getattr(function, '__name__', function)}()"
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    taken = {each.name: each for each in parameters if each.kind not in variable}
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters)
    for keyword in arguments:
        if keyword not in taken and not takes_any:
            raise SpecError(
                f"modelParams: {name} takes no {keyword!r}{did_you_mean(keyword, taken)}, but: "
                f"{', '.join(taken) or 'no arguments'}"
            )
    needed = [keyword for keyword, each in taken.items() if each.default is each.empty and keyword not in arguments]
    if complete and needed:
        raise SpecError(
            f"{name}, which builds the model, needs {needed[0]!r}: modelParams={{{needed[0]!r}: ...}} gives it"
        )


@dataclass(kw_only=True)
class TrainingSettings(ModelSettings):
    """The params of a `KerasEstimator` but for the model. After a change run ``make keywords``.

    Parameters
    ----------
    modelParams : mapping, optional
        The arguments of the function that builds the model, by keyword, as in ``{"units": 16, "rate": 0.01}``: a grid
        or a search varies them.
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
    numWorkers : int or (int, int)
        Nodes that train together; each takes a task slot of Spark. Or the fewest and the most, as ``num_workers`` of
        `Cluster`.
    restarts : RestartPolicy or int
        How often the nodes are started again when one has failed, as ``restarts`` of `Cluster`; with `checkpointDir`
        the training goes on after its last complete epoch.
    gpusPerNode : int, optional
        The number of GPUs that Spark assigns to each node, as ``gpus_per_node`` of `Cluster`.
    env : mapping of str to str, optional
        Environment variables of the nodes, as ``env`` of `Cluster`.
    epochs : int
        Passes over all rows.
    batchSize : int
        Rows of one step over all workers together.
    stepsPerExecution : int
        Steps per execution of Keras's training function, as in ``Model.compile``.
    seed : int
        Seed of the initial weights and of the order of rows.
    start : {"all_rows", "first_rows"}
        When training begins, as `start` of ``tensorflowonspark.run``. With "all_rows" each epoch is a full shuffle,
        whose order follows from the seed. With "first_rows" the first epoch takes the rows as they arrive, shuffled
        only among those that arrive together; its number of steps is unknown before its end.
    strategy : {"synchronous", "local_sgd", "diloco"}
        How the nodes train one model: with the sum of their gradients at each step, or apart with weights that are
        averaged in rounds, by `tensorflowonspark.keras.LocalSGD` or `DiLoCo` with their defaults. For other settings
        give the callback in `callbacks` too. Metrics in the history are those of the chief's rows then.
    mixedPrecision : {"mixed_float16", "mixed_bfloat16", "float32"}, optional
        The dtype policy of Keras for a model that a function builds.
    checkpointDir : str, optional
        A directory on any file system for the state after each epoch, removed when training is complete; interrupted
        training resumes from it.
    cacheDir : str, optional
        A directory on a file system that all nodes reach, for rows that are larger than the executors' disks. Spark
        writes the rows there as Parquet files, and the nodes read them anew in each epoch; they are removed at the end.
        By default the nodes keep the rows on the executors' disks.
    initialModel : KerasModel, optional
        A fitted model to train further, instead of `model`.
    trainFn : callable, optional
        A training loop instead of ``fit``: takes the model, the dataset, the validation dataset or None, and the
        node's `Context`; may return a history, values by metric.
    backend : {"tensorflow", "jax", "torch"}, optional
        The backend of Keras on the nodes; by default that of their environment. The fitted model works with any. With
        JAX the executors need jax beside TensorFlow; torch trains on one worker.
    clusterOptions : mapping, optional
        Further settings of the cluster and its feed, each by itself: ``{"log_level": "WARNING", "cache": "memory"}``
        (docs/reference/settings.md). Those that are params are refused here.
    registeredModelName : str, optional
        Where a run of MLflow is active: the name under which the fitted model is registered there, as a new version; in
        Unity Catalog ``catalog.schema.model``. See docs/mlflow.md.
    modelTags : mapping, optional
        Tags of the model that is logged to MLflow, and of its registered version.
    modelAliases : sequence of str, optional
        Aliases that become those of the registered version, as ``["champion"]``.
    verbose : int
        Output of Keras on the chief: 0, 1 or 2; by default 0, and in a notebook 2, a line for each epoch.
    """

    modelParams: Annotated[Mapping[str, Any] | None, as_arguments, {}] = None
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
    numWorkers: Annotated[int | tuple[int, int], as_workers] = 1
    restarts: Annotated[RestartPolicy | int, as_restarts] = 0
    gpusPerNode: Annotated[int | None, positive] = None
    env: Annotated[Mapping[str, str] | None, as_mapping, {}] = None
    epochs: Annotated[int, positive] = 1
    batchSize: Annotated[int, positive] = 32
    stepsPerExecution: Annotated[int, positive] = 1
    seed: int = 0
    start: Start = "all_rows"
    strategy: Strategy = "synchronous"
    mixedPrecision: Precision | None = None
    checkpointDir: Annotated[str | None, TypeConverters.toString] = None
    cacheDir: Annotated[str | None, TypeConverters.toString] = None
    initialModel: "KerasModel | None" = None
    trainFn: TrainFn | None = None
    backend: Backend | None = None
    clusterOptions: Annotated[Mapping[str, Any] | None, as_mapping_of_settings, {}] = None
    registeredModelName: Annotated[str | None, TypeConverters.toString] = None
    modelTags: Annotated[Mapping[str, Any] | None, as_mapping, {}] = None
    modelAliases: Annotated[Sequence[str] | None, TypeConverters.toListString, []] = None
    verbose: Annotated[int, TypeConverters.toInt] = 0


@dataclass(kw_only=True)
class EstimatorSettings(TrainingSettings):
    """All params of a `KerasEstimator`.

    Parameters
    ----------
    model : keras.Model or callable
        A model, compiled or with `optimizer`, `loss` and `metrics` given here; or a function that returns one, which
        the nodes call with `modelParams`. The driver needs TensorFlow only for the former.
    """

    model: Any = None


@has_params(EstimatorSettings)
class TrainingParams(ModelParams, HasLabelCol, HasWeightCol, HasValidationIndicatorCol, HasSeed, EstimatorAccessors):
    """Params of `KerasEstimator` beside those of the model."""

    def __init__(self) -> None:
        super().__init__()
        self._setDefault(**defaults_of(EstimatorSettings))

    def _assign(self, **values: Any) -> "Self":
        super()._assign(**values)
        if values.get("modelParams") is not None:
            self._check_model_params()
        return self

    def _check_model_params(self, *, complete: bool = False) -> None:
        """Refuse `modelParams` that the model does not take; with `complete` also a model that needs further ones.

        Raises
        ------
        SpecError
            If no function builds the model, or it has other parameters.
        """
        given, initial, arguments = self.getModel(), self.getInitialModel(), self.getModelParams()
        if arguments and (initial is not None or is_model(given)):
            built = "model is a Keras model" if initial is None else "initialModel takes the place of one"
            raise SpecError(f"modelParams are the arguments of a function that builds the model, and {built}")
        if initial is None and callable(given) and not is_model(given):
            check_arguments(given, arguments, complete=complete)

    @property
    def _cluster_settings(self) -> dict[str, Any]:
        """The settings of the cluster: the `clusterOptions`, and the params that are settings of a cluster.

        Raises
        ------
        SpecError
            If another param excludes the backend.
        """
        params = {setting: self._optional(name) for setting, name in _CLUSTER_PARAMS.items()}
        given = {**params, "env": self._environment}
        return {**self.getClusterOptions(), **{name: value for name, value in given.items() if value is not None}}

    @property
    def _environment(self) -> dict[str, str] | None:
        """The environment of the nodes: `env`, and what `backend` adds to it; None if it is empty."""
        env, backend = dict(self.getEnv()), self.getBackend()
        given = env.get("KERAS_BACKEND")
        if backend is not None and given not in (None, backend):
            raise SpecError(f"backend={backend!r}, and env sets KERAS_BACKEND={given!r}: set one of them")
        chosen = backend or given or "tensorflow"
        if chosen != "tensorflow":
            self._check_backend(chosen)
        if backend is not None:
            env["KERAS_BACKEND"] = backend
        if chosen == "jax" and self.getStrategy() != "synchronous":
            env.setdefault(ALONE, "1")
        return env or None

    @property
    def _library(self) -> str:
        """The Keras that builds a model on the nodes, by their environment."""
        legacy = dict(self.getEnv()).get("TF_USE_LEGACY_KERAS", "").lower()
        return "tf_keras" if legacy in ("1", "true") else "keras"

    def _check_backend(self, backend: str) -> None:
        if "tf_keras" in (self._library, library_of(self.getModel())):
            raise SpecError(f"backend={backend!r} is for Keras 3, and tf_keras has only TensorFlow")
        workers = self.getNumWorkers()
        apart = self.getTrainFn() is not None or self.getStrategy() != "synchronous"
        if backend == "torch" and workers != 1 and not apart:
            raise SpecError(
                f"backend='torch' trains on one worker, and numWorkers is {workers}: Keras exchanges no gradients "
                "between processes with torch up to 3.15.1, and later ones are not tested here. "
                "Take strategy='diloco', backend='jax' or 'tensorflow', or numWorkers=1"
            )

    @property
    def _label_columns(self) -> list[str]:
        several = self.getLabelCols()
        return [self.getLabelCol()] if several is None else list(several)

    @property
    def _weight_column(self) -> str | None:
        return self._optional("weightCol") or None  # Spark ML takes an empty name for none
