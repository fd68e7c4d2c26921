"""Mixtures of DataFrames as users state them: checked, and fed as one, with the number of each row's source."""

from collections.abc import Mapping
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

from tensorflowonspark.columns import require_frame, select
from tensorflowonspark.driver.spark.repartition import new_column
from tensorflowonspark.errors import FeedError, SpecError, did_you_mean
from tensorflowonspark.mixture import Mixture, check_alike, parse_mixture

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    Mixed = Mapping[str, tuple[DataFrame, float]]


class MixedFrames(NamedTuple):
    """The rows of all sources, those to validate on (or the column that marks them), and which shares an epoch has."""

    data: "DataFrame"
    validation: "DataFrame | str | None"
    mixture: Mixture


def mix(data: Mapping[Any, Any], validation: Any, epoch_rows: int | None) -> MixedFrames:
    """Return the mixture that a user states: by name a pair of a DataFrame and its share.

    What is not one raises `SpecError`, and a stream `FeedError`.
    """
    from pyspark.sql import functions as f

    frames, mixture = parse_mixture("data", data, epoch_rows)
    for name, frame in frames.items():
        require_frame(frame, f"data[{name!r}][0]")
        if getattr(frame, "isStreaming", False):
            raise FeedError(f"source {name!r} is a stream, which can't be repeated: mix DataFrames that have an end")
    first = next(iter(frames.values()))
    _check_all_alike("source", frames, first)
    mixture = replace(mixture, column=new_column(first, "source"))

    def numbered(frames: "Mapping[str, DataFrame]") -> "DataFrame":
        """Return the rows of all sources, with the columns of the first one and the number of each one's source."""
        found = (
            select(frame, first.columns).withColumn(mixture.column, f.lit(mixture.names.index(name)).cast("int"))
            for name, frame in frames.items()
        )
        return reduce(lambda left, right: left.union(right), found)

    if validation is not None and not isinstance(validation, str):
        validation = numbered(_parse_validation(validation, frames))
    return MixedFrames(numbered(frames), validation, mixture)


def _parse_validation(validation: Any, frames: "Mapping[str, DataFrame]") -> "dict[str, DataFrame]":
    if not isinstance(validation, Mapping):
        raise SpecError(
            "validation: of a mixture each row has a source: pass a dict of DataFrames by the names of sources, as in "
            f"{{{next(iter(frames))!r}: df}}, or the boolean column that marks rows"
        )
    for name, frame in validation.items():
        if name not in frames:
            raise SpecError(f"validation: there is no source {name!r}{did_you_mean(str(name), frames)}: {list(frames)}")
        require_frame(frame, f"validation[{name!r}]")
    if not validation:
        raise SpecError("validation={}: leave it out, or pass rows of a source")
    _check_all_alike("validation", validation, next(iter(frames.values())))
    return dict(validation)


def _check_all_alike(what: str, frames: "Mapping[str, DataFrame]", first: "DataFrame") -> None:
    for name, frame in frames.items():
        check_alike(f"{what} {name!r}", _types(frame), _types(first))


def _types(frame: "DataFrame") -> dict[str, str]:
    return {field.name: field.dataType.simpleString() for field in frame.schema}
