# mypy: disable-error-code="no-any-return"
"""Params that the estimator and the model share, with Spark ML's names where it has one."""

import functools
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar

from pyspark.ml.param import Param, Params, TypeConverters
from pyspark.ml.param.shared import HasFeaturesCol, HasPredictionCol, HasProbabilityCol, HasRawPredictionCol
from pyspark.sql import DataFrame

from tensorflowonspark.columns import require_frame
from tensorflowonspark.errors import SpecError, did_you_mean

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Invalid", "ModelParams", "ModelSettings", "as_mapping", "check_columns", "checked_params", "is_plain",
           "one_of", "param", "positive"]  # fmt: skip

Function = TypeVar("Function", bound=Callable[..., Any])
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


def as_mapping(value: Any) -> dict[Any, Any]:
    """Return a mapping as a dict, for a `Param`."""
    if not isinstance(value, Mapping):
        raise TypeError("expected a dict, as in {'x': ...}")
    return dict(value)


def param(name: str, doc: str, convert: Callable[[Any], Any] | None = None) -> Any:
    """Return a `Param` that a class of stages declares."""
    return Param(Params._dummy(), name, doc, convert)


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


def checked_params(init: Function) -> Function:
    """Wrap an ``__init__`` of a stage: refuse unknown keyword arguments, and set the params that are given.

    The defaults in the signature are for the reader: a param that is not given stays unset, as Spark ML has it.

    Raises
    ------
    SpecError
        By the wrapped function, if there is no param of a given name, or it can't have the given value.
    """
    known = list(inspect.signature(init).parameters)[1:]

    @functools.wraps(init)
    def checked(self: Any, *args: Any, **kwargs: Any) -> None:
        for name in kwargs:
            if name not in known:
                raise SpecError(_unknown(type(self), name, known))
        init(self, *args, **kwargs)
        given = {**dict(zip(known, args, strict=False)), **kwargs}
        self._assign(**{name: value for name, value in given.items() if self.hasParam(name)})

    return checked  # type: ignore[return-value]


def _unknown(kind: type, name: str, known: Sequence[str]) -> str:
    return f"{kind.__name__} has no param {name!r}{did_you_mean(name, known)}: explainParams() lists all"


class ModelSettings(TypedDict, total=False):
    """The params of a `KerasModel`, as keyword arguments."""

    featuresCol: str
    featuresCols: Sequence[str] | None
    predictionCol: str
    probabilityCol: str
    rawPredictionCol: str
    shapes: Mapping[str, Sequence[int | None]] | None
    dtypes: Mapping[str, str] | None
    fill: Mapping[str, Any] | None
    handleInvalid: Invalid
    inferenceBatchSize: int | None
    customObjects: Mapping[str, Any] | None


class ModelParams(HasFeaturesCol, HasPredictionCol, HasProbabilityCol, HasRawPredictionCol):
    """Params of `KerasModel`, which `KerasEstimator` has as well and passes on."""

    featuresCols: "Param[list[str]]" = param(
        "featuresCols",
        "several feature columns: one for each input of the model, by name or in order, or numbers that become one "
        "input together. Takes precedence over featuresCol.",
        TypeConverters.toListString,
    )
    shapes: "Param[dict[str, Sequence[int | None]]]" = param(
        "shapes", "shape of one row's value, by column; by default that of the model's input.", as_mapping
    )
    dtypes: "Param[dict[str, str]]" = param(
        "dtypes", "dtype of the values that the model receives, by column; by default the column's own.", as_mapping
    )
    fill: "Param[dict[str, Any]]" = param("fill", "value that replaces a null, by column.", as_mapping)
    handleInvalid: "Param[str]" = param(
        "handleInvalid",
        "handling of rows with a null or a wrong shape in transform: 'error', 'keep' (their results are null) or "
        "'skip' (they are left out).",
        one_of("error", "keep", "skip"),
    )
    inferenceBatchSize: "Param[int]" = param(
        "inferenceBatchSize",
        "rows per call of the model in transform; if unset, as many as hold 4 MB, from 32 to 8,192.",
        positive,
    )
    customObjects: "Param[dict[str, Any]]" = param(
        "customObjects", "your own classes and functions in the model, by name.", as_mapping
    )

    def __init__(self) -> None:
        super().__init__()
        self._setDefault(handleInvalid="error", shapes={}, dtypes={}, fill={}, customObjects={})

    def setFeaturesCol(self, value: str) -> "Self":
        """Set `featuresCol`, the only column of features."""
        return self._assign(featuresCol=value)

    def setFeaturesCols(self, value: Sequence[str] | None) -> "Self":
        """Set `featuresCols`, several columns of features."""
        return self._assign(featuresCols=value)

    def getFeaturesCols(self) -> list[str] | None:
        """Return `featuresCols`, or None if unset."""
        return self._optional("featuresCols")

    def setPredictionCol(self, value: str) -> "Self":
        """Set `predictionCol`; an empty name leaves the column out, as in Spark ML."""
        return self._assign(predictionCol=value)

    def setProbabilityCol(self, value: str) -> "Self":
        """Set `probabilityCol`; an empty name leaves the column out, as in Spark ML."""
        return self._assign(probabilityCol=value)

    def setRawPredictionCol(self, value: str) -> "Self":
        """Set `rawPredictionCol`; an empty name leaves the column out, as in Spark ML."""
        return self._assign(rawPredictionCol=value)

    def setShapes(self, value: Mapping[str, Sequence[int | None]] | None) -> "Self":
        """Set `shapes`, the shape of one row's value by column."""
        return self._assign(shapes=value)

    def getShapes(self) -> dict[str, Sequence[int | None]]:
        """Return `shapes`."""
        return self.getOrDefault("shapes")

    def setDtypes(self, value: Mapping[str, str] | None) -> "Self":
        """Set `dtypes`, the dtype that the model receives by column."""
        return self._assign(dtypes=value)

    def getDtypes(self) -> dict[str, str]:
        """Return `dtypes`."""
        return self.getOrDefault("dtypes")

    def setFill(self, value: Mapping[str, Any] | None) -> "Self":
        """Set `fill`, the value that replaces a null by column."""
        return self._assign(fill=value)

    def getFill(self) -> dict[str, Any]:
        """Return `fill`."""
        return self.getOrDefault("fill")

    def setHandleInvalid(self, value: Invalid) -> "Self":
        """Set `handleInvalid`, the handling of rows that the model can't take."""
        return self._assign(handleInvalid=value)

    def getHandleInvalid(self) -> Invalid:
        """Return `handleInvalid`."""
        return self.getOrDefault("handleInvalid")

    def setInferenceBatchSize(self, value: int | None) -> "Self":
        """Set `inferenceBatchSize`, the rows per call of the model in ``transform``."""
        return self._assign(inferenceBatchSize=value)

    def getInferenceBatchSize(self) -> int | None:
        """Return `inferenceBatchSize`, or None if unset."""
        return self._optional("inferenceBatchSize")

    def setCustomObjects(self, value: Mapping[str, Any] | None) -> "Self":
        """Set `customObjects`, your own classes and functions in the model by name."""
        return self._assign(customObjects=value)

    def getCustomObjects(self) -> dict[str, Any]:
        """Return `customObjects`."""
        return self.getOrDefault("customObjects")

    def _assign(self, **values: Any) -> "Self":
        """Set params by name; None unsets one.

        Raises
        ------
        SpecError
            If there is no such param, or it can't have that value.
        """
        for name, value in values.items():
            if not self.hasParam(name):
                raise SpecError(_unknown(type(self), name, [each.name for each in self.params]))
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

    Raises
    ------
    SpecError
        If a column is missing, or `frame` is no DataFrame.
    """
    require_frame(frame, "the data")
    missing = [name for name in columns if name not in frame.columns]
    if missing:
        params = [f"{name}Col" for name in missing if name in ("features", "label")]
        advice = f" (another column is set with {' and '.join(params)})" if params else ""
        guess = did_you_mean(missing[0], frame.columns)
        names = ", ".join(map(repr, missing))
        raise SpecError(f"{what} has no column {names}{guess}; it has {frame.columns}{advice}")
