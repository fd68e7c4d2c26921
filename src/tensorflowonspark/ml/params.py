"""Params that the estimator and the model share, with Spark ML's names where it has one."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pyspark.ml.param import Param, Params, TypeConverters
from pyspark.ml.param.shared import HasFeaturesCol, HasPredictionCol, HasProbabilityCol, HasRawPredictionCol
from pyspark.sql import DataFrame

from tensorflowonspark.columns import require_frame
from tensorflowonspark.declarations import choices_of, keywords_of, plain_type, texts_of
from tensorflowonspark.errors import OF_PEERS, SpecError, did_you_mean

if TYPE_CHECKING:
    from typing_extensions import Self

    from tensorflowonspark.keywords import ModelAccessors
else:
    ModelAccessors = object

Invalid = Literal["error", "keep", "skip"]


def positive(value: Any) -> int:
    """Return a value as a positive integer, for a `Param`."""
    number = TypeConverters.toInt(value)
    if number < 1:
        raise TypeError("expected a positive number")
    return int(number)


def one_of(*choices: str) -> Callable[[Any], str]:
    """Return a converter of a `Param` that accepts some strings only."""

    def convert(value: Any) -> str:
        if value not in choices:
            raise TypeError(f"expected one of {', '.join(map(repr, choices))}")
        return str(value)

    return convert


def as_thresholds(value: Any) -> list[float]:
    """Return thresholds of classes, for a `Param`."""
    numbers: list[float] = TypeConverters.toListFloat(value)
    if not all(each >= 0 for each in numbers) or numbers.count(0) > 1:
        raise TypeError("expected a number above 0 for each class, but for one that may be 0")
    return numbers


def as_mapping(value: Any) -> dict[Any, Any]:
    """Return a mapping as a dict, for a `Param`."""
    if not isinstance(value, Mapping):
        raise TypeError("expected a dict, as in {'x': ...}")
    return dict(value)


def is_plain(value: Any) -> bool:
    """Return whether JSON represents a value without loss.

    Examples
    --------
    >>> is_plain({"x": [1, 2]}), is_plain((1, 2))
    (True, False)
    """
    try:
        return bool(json.loads(json.dumps(value)) == value)
    except (TypeError, ValueError):
        return False


@dataclass(kw_only=True)
class ModelSettings:
    """The params of a `KerasModel`, which `has_params` makes of these fields. After a change run ``make keywords``.

    Parameters
    ----------
    featuresCol : str
        The column of features.
    featuresCols : sequence of str, optional
        Several columns of features instead: one for each input of the model, by name, or in order if no name is that
        of an input; or numbers that become one input together. Takes precedence over `featuresCol`.
    predictionCol : str
        The column of predictions; an empty name leaves it out, as in Spark ML.
    probabilityCol : str
        The column of probabilities, which classifiers add; an empty name leaves it out, as in Spark ML.
    rawPredictionCol : str
        The column of a classifier's own outputs; an empty name leaves it out, as in Spark ML.
    thresholds : sequence of float, optional
        A number for each class of a classifier, as in Spark ML: the prediction is the class whose probability, divided
        by its number, is the greatest. All are above 0, but for one that may be 0.
    shapes : mapping, optional
        Shape of one row's value, by column; by default that of the model's input.
    dtypes : mapping, optional
        Dtype of the values that the model receives, by column; by default the column's own.
    fill : mapping, optional
        Value that replaces a null, by column.
    handleInvalid : {"error", "keep", "skip"}
        Handling of rows with a null or a wrong shape. In ``transform``: an error, results that are null ("keep"), or
        none: they are left out ("skip"). In ``fit`` "skip" leaves them out of training, and says how many; with
        "keep", too, they are an error.
    engine : {"keras", "onnx"}
        What computes the model in ``transform``: Keras, or ONNX Runtime on CPUs, which many networks are faster with.
    inferenceBatchSize : int, optional
        Rows per call of the model in ``transform``; by default as many as hold 4 MB, from 32 to 8,192.
    customObjects : mapping, optional
        Your own classes and functions in the model, by name.
    """

    featuresCol: str = "features"
    featuresCols: Annotated[Sequence[str] | None, TypeConverters.toListString] = None
    predictionCol: str = "prediction"
    probabilityCol: str = "probability"
    rawPredictionCol: str = "rawPrediction"
    thresholds: Annotated[Sequence[float] | None, as_thresholds] = None
    shapes: Annotated[Mapping[str, Sequence[int | None]] | None, as_mapping, {}] = None
    dtypes: Annotated[Mapping[str, str] | None, as_mapping, {}] = None
    fill: Annotated[Mapping[str, Any] | None, as_mapping, {}] = None
    handleInvalid: Invalid = "error"
    engine: Literal["keras", "onnx"] = "keras"
    inferenceBatchSize: Annotated[int | None, positive] = None
    customObjects: Annotated[Mapping[str, Any] | None, as_mapping, {}] = None


def has_params(declared: type) -> Callable[[type], type]:
    """Return a decorator that gives a class of stages the params of a dataclass, and a setter and a getter of each.

    A field's ``Annotated`` has the function that converts a value, unless it has the choices of a ``Literal``; and a
    dict or a list that is the value of a param whose default is None. Any other param without a value is None to its
    getter. None unsets a param. What Spark ML has already stays as it is.
    """

    def decorate(stage: type) -> type:
        texts = texts_of(declared)
        for name, each in keywords_of(declared).items():
            text = texts.get(name, "")
            if not hasattr(stage, name):
                setattr(stage, name, Param(Params._dummy(), name, text, _converter(each.annotation)))
            for function in _accessors(name, plain_type(each.annotation), text):
                if not hasattr(stage, function.__name__):
                    function.__module__, function.__qualname__ = (
                        stage.__module__,
                        f"{stage.__qualname__}.{function.__name__}",
                    )
                    setattr(stage, function.__name__, function)
        return stage

    return decorate


def _converter(annotation: Any) -> Callable[[Any], Any] | None:
    choices = choices_of(annotation)
    given = (each for each in getattr(annotation, "__metadata__", ()) if callable(each))
    return one_of(*choices) if choices else next(given, None)


def _accessors(name: str, kind: Any, text: str) -> Iterator[Any]:
    """Yield a param's ``setX``, which returns the stage, and its ``getX``."""

    def set_one(self: Any, value: Any) -> Any:
        return self._assign(**{name: value})

    def get_one(self: Any) -> Any:
        return self._optional(name)

    set_one.__annotations__, get_one.__annotations__ = {"value": kind, "return": "Self"}, {"return": kind}
    for function, prefix, verb in ((set_one, "set", "Set"), (get_one, "get", "Return")):
        function.__name__ = f"{prefix}{name[0].upper()}{name[1:]}"
        function.__doc__ = f"{verb} `{name}`: {text}"
        yield function


def defaults_of(declared: type) -> dict[str, Any]:
    """Return the default of each param of a dataclass that has one."""
    empty = {name: _empty(each.annotation) for name, each in keywords_of(declared).items() if each.default is None}
    given = {name: each.default for name, each in keywords_of(declared).items()}
    return {name: value for name, value in {**given, **empty}.items() if value is not None}


def _empty(annotation: Any) -> Any:
    return next((type(each)() for each in getattr(annotation, "__metadata__", ()) if each in ({}, [])), None)


@has_params(ModelSettings)
class ModelParams(HasFeaturesCol, HasPredictionCol, HasProbabilityCol, HasRawPredictionCol, ModelAccessors):
    """Params of `KerasModel`, which `KerasEstimator` has as well and passes on."""

    def __init__(self) -> None:
        super().__init__()
        self._setDefault(**defaults_of(ModelSettings))

    def _assign(self, **values: Any) -> "Self":
        """Set params by name; None unsets one.

        Raises
        ------
        SpecError
            If there is no such param, or it can't have that value.
        """
        for name, value in values.items():
            if not self.hasParam(name):
                known = [each.name for each in self.params]
                kind = type(self).__name__
                raise SpecError(
                    f"{kind} has no param {name!r}{did_you_mean(name, known, OF_PEERS)}: explainParams() lists all"
                )
            if value is None:
                self.clear(self.getParam(name))
                continue
            try:
                converted = self.getParam(name).typeConverter(value)
            except TypeError as error:
                raise SpecError(f"{name}={value!r}: {error}") from None
            self._set(**{name: converted})
        return self

    def _optional(self, name: str) -> Any:
        """Return a param's value, or None if it has none."""
        return self.getOrDefault(name) if self.isDefined(name) else None

    @property
    def _feature_columns(self) -> list[str]:
        several = self.getFeaturesCols()
        return [self.getFeaturesCol()] if several is None else list(several)

    @property
    def _by_column(self) -> dict[str, dict[str, Any]]:
        return {"shapes": self.getShapes(), "dtypes": self.getDtypes(), "fill": self.getFill()}


def check_columns(frame: DataFrame, columns: Sequence[str], what: str = "the DataFrame") -> None:
    """Refuse a DataFrame without some columns; `what` names it in errors.

    Raises SpecError if a column is missing, or `frame` is no DataFrame.
    """
    require_frame(frame, "the data")
    missing = [name for name in columns if name not in frame.columns]
    if missing:
        params = [f"{name}Col" for name in missing if name in ("features", "label")]
        advice = f" (another column is set with {' and '.join(params)})" if params else ""
        guess = did_you_mean(missing[0], frame.columns)
        names = ", ".join(map(repr, missing))
        raise SpecError(f"{what} has no column {names}{guess}; it has {frame.columns}{advice}")
