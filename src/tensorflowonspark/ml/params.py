"""What can be set on the estimator and the model, with Spark ML's names where it has one."""

import difflib
import json
from collections.abc import Mapping
from typing import Any, TypeVar

from pyspark.ml.param import Param, Params, TypeConverters
from pyspark.ml.param.shared import (
    HasFeaturesCol,
    HasLabelCol,
    HasPredictionCol,
    HasProbabilityCol,
    HasRawPredictionCol,
    HasSeed,
    HasValidationIndicatorCol,
    HasWeightCol,
)
from pyspark.sql import DataFrame

from tensorflowonspark.columns import require_frame
from tensorflowonspark.errors import SpecError

__all__ = ["ApplyParams", "TrainParams", "is_plain", "missing_columns"]

Stage = TypeVar("Stage", bound="ApplyParams")


def _positive(value: Any) -> int:
    number = TypeConverters.toInt(value)
    if number < 1:
        raise TypeError(f"{value!r}: expected a number from 1 on")
    return int(number)


def _one_of(*choices: str) -> Any:
    def convert(value: Any) -> str:
        if value not in choices:
            raise TypeError(f"{value!r}: expected one of {', '.join(map(repr, choices))}")
        return str(value)

    return convert


def _mapping(value: Any) -> dict[Any, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{value!r}: expected a dict, as in {{'x': ...}}")
    return dict(value)


def _param(name: str, doc: str, convert: Any = None) -> Any:
    return Param(Params._dummy(), name, doc, convert)


def is_plain(value: Any) -> bool:
    """Whether JSON holds a value as it is."""
    try:
        return bool(json.loads(json.dumps(value)) == value)
    except (TypeError, ValueError):
        return False


class ApplyParams(HasFeaturesCol, HasPredictionCol, HasProbabilityCol, HasRawPredictionCol):
    """What estimator and model have in common."""

    featuresCols = _param(
        "featuresCols",
        "several feature columns: one for each input of the model, by name or in order, or numbers that become one "
        "input together. Takes precedence over featuresCol.",
        TypeConverters.toListString,
    )
    shapes = _param("shapes", "shape of one row's value, by column; by default that of the model's input.", _mapping)
    dtypes = _param("dtypes", "dtype that the model wants, by column.", _mapping)
    fill = _param("fill", "what stands for a null, by column.", _mapping)
    handleInvalid = _param(
        "handleInvalid",
        "what transform does with a row that has a null or a wrong shape: 'error', 'keep' (its results are null) or "
        "'skip' (it is left out).",
        _one_of("error", "keep", "skip"),
    )
    inferenceBatchSize = _param(
        "inferenceBatchSize",
        "rows that transform gives to the model at a time; if it is not set, as many as are 4 MB, from 32 to 8,192.",
        _positive,
    )
    customObjects = _param("customObjects", "classes and functions of your own that the model is made of.", _mapping)

    def __init__(self) -> None:
        super().__init__()
        self._setDefault(handleInvalid="error", shapes={}, dtypes={}, fill={}, customObjects={})

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Give each param its ``setX`` and ``getX``, as Spark ML's own stages have them."""
        super().__init_subclass__(**kwargs)
        for base in cls.__mro__:
            for name, value in list(vars(base).items()):
                if isinstance(value, Param):
                    _add_accessors(cls, name)

    def setParams(self: Stage, **params: Any) -> Stage:  # noqa: N802 - Spark ML's name
        """Set several params at once.

        Raises
        ------
        SpecError
            If there is no such param, or it can't have that value.
        """
        for name, value in params.items():
            if not self.hasParam(name):
                close = difflib.get_close_matches(name, [each.name for each in self.params], 1)
                hint = f": did you mean {close[0]!r}?" if close else ""
                raise SpecError(f"{type(self).__name__} has no param {name!r}{hint} (explainParams() lists all)")
            try:
                self._set(**{name: value})
            except TypeError as error:
                raise SpecError(f"{name}={value!r}: {error}") from None
        return self

    def optional(self, name: str) -> Any:
        """Return a param's value, or None if it has none."""
        return self.getOrDefault(name) if self.isDefined(name) else None

    @property
    def feature_columns(self) -> list[str]:
        """The columns of features, in order."""
        return list(self.getOrDefault("featuresCols")) if self.isSet("featuresCols") else [self.getFeaturesCol()]


def _add_accessors(cls: type, name: str) -> None:
    title = name[0].upper() + name[1:]

    def set_one(self: Any, value: Any) -> Any:
        return self.setParams(**{name: value})

    def get_one(self: Any) -> Any:
        return self.getOrDefault(name)

    for function, prefix, doc in ((set_one, "set", "Set"), (get_one, "get", "Return")):
        method = f"{prefix}{title}"
        if not hasattr(cls, method):
            function.__name__, function.__qualname__ = method, f"{cls.__name__}.{method}"
            function.__doc__ = f"{doc} `{name}`."
            setattr(cls, method, function)


class TrainParams(ApplyParams, HasLabelCol, HasWeightCol, HasValidationIndicatorCol, HasSeed):
    """What the estimator has beside them."""

    model = _param("model", "a Keras model, or a function without arguments that returns one.")
    labelCols = _param(
        "labelCols",
        "several label columns, one for each output of the model. Takes precedence over labelCol.",
        TypeConverters.toListString,
    )
    validationData = _param("validationData", "a DataFrame with the same columns to validate on after each epoch.")
    optimizer = _param("optimizer", "a Keras optimizer or its name, for a model that is not compiled.")
    loss = _param("loss", "a Keras loss, its name, or one for each output, for a model that is not compiled.")
    metrics = _param("metrics", "a list of Keras metrics or their names, for a model that is not compiled.")
    lossWeights = _param("lossWeights", "weights of the outputs' losses, for a model that is not compiled.")
    classWeight = _param("classWeight", "weight of the rows of each class, by its number.", _mapping)
    callbacks = _param("callbacks", "a list of Keras callbacks.", TypeConverters.toList)
    numWorkers = _param("numWorkers", "nodes that train together; each takes a task slot of Spark.", _positive)
    epochs = _param("epochs", "passes over all rows.", _positive)
    batchSize = _param("batchSize", "rows of one step over all workers together.", _positive)
    stepsPerExecution = _param("stepsPerExecution", "steps that run between two looks of Keras.", _positive)
    mixedPrecision = _param(
        "mixedPrecision",
        "Keras's dtype policy for a model that a function builds: 'mixed_float16' or 'mixed_bfloat16'.",
        _one_of("mixed_float16", "mixed_bfloat16", "float32"),
    )
    checkpointDir = _param(
        "checkpointDir",
        "a directory on any file system in which each epoch's state is kept until training is complete; training that "
        "was broken off goes on from there.",
        TypeConverters.toString,
    )
    initialModel = _param("initialModel", "a fitted KerasModel to train further.")
    trainFn = _param(
        "trainFn",
        "a training loop of your own, instead of fit: a function of (model, dataset, validation_dataset or None, ctx) "
        "that trains the model, and may return a history as a dict of lists.",
    )
    clusterOptions = _param("clusterOptions", "further settings of Cluster, as log_level or env.", _mapping)
    verbose = _param("verbose", "what the chief's Keras prints: 0, 1 or 2.", TypeConverters.toInt)

    def __init__(self) -> None:
        super().__init__()
        self._setDefault(
            seed=0, numWorkers=1, epochs=1, batchSize=32, stepsPerExecution=1, verbose=0, callbacks=[],
            clusterOptions={},
        )  # fmt: skip

    @property
    def label_columns(self) -> list[str]:
        """The columns of labels, in order."""
        return list(self.getOrDefault("labelCols")) if self.isSet("labelCols") else [self.getLabelCol()]


def missing_columns(frame: DataFrame, columns: list[str]) -> None:
    """Refuse a DataFrame without some columns.

    Raises
    ------
    SpecError
        It names them, and those that there are; or the type of what is no DataFrame.
    """
    require_frame(frame, "the data")
    missing = [name for name in columns if name not in frame.columns]
    if missing:
        raise SpecError(f"the DataFrame has no column {', '.join(map(repr, missing))}; it has {frame.columns}")
