"""One model for each key of a DataFrame, each trained by the user's function in a process of its own."""

import inspect
import json
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any

import cloudpickle
import pyarrow as pa

from tensorflowonspark import storage
from tensorflowonspark.columns import arrow_type, check_schema, map_in_arrow, plainly_named, require_frame
from tensorflowonspark.errors import SpecError, did_you_mean
from tensorflowonspark.frames.key_tasks import KeyWork, train_keys
from tensorflowonspark.ml.code import WithCode
from tensorflowonspark.settings import check_seconds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

_KEY_TYPES = ("string", "boolean", "date", "timestamp", "binary", "tinyint", "smallint", "int", "bigint")
_PLAIN = (str, bytes, int, float, complex, type(None))
_KEYS_OF_A_MODEL = 500  # that a process trains one after another
_ABOUT = "_fit_each.json"  # Spark reads no file whose name begins so


def fit_each(
    data: "DataFrame",
    by: str | Sequence[str],
    function: Callable[..., Any],
    *,
    build: Callable[[], Any] | None = None,
    output: str | None = None,
    timeout: float | None = None,
    seed: int = 0,
    num_partitions: int | None = None,
) -> "DataFrame":
    """Return a DataFrame with a row for each key: the model that a function trains on the key's rows, or its error.

    The rows of a key come together in a task of Spark. There the function runs in a process of its own for each key,
    forked from one that has imported Keras: so no key takes the time of an import, memory is free after each, and one
    that fails, ends its process or takes too long is a row with an error. TensorFlow has as many threads as the task
    has cores.

    Like a function of `applyInPandas` this is computed when the DataFrame is used, and again at each use: write it, or
    give `output`.

    Parameters
    ----------
    data : DataFrame
        The rows.
    by : str or sequence of str
        The column of the key, or several: of strings, whole numbers, dates, timestamps, booleans, decimals or bytes.
        Null is a key as any other.
    function : callable
        Takes the key, and the other columns of its rows as a dict of NumPy arrays. The key is the column's value, or a
        tuple if `by` is a sequence. The order of the rows is that of their values, column by column from the left.
        Returns a Keras model, a dict of numbers (the metrics), a pair of both, or None.
    build : callable, optional
        Returns a compiled model, which the function takes as third argument and trains: its weights and those of its
        optimizer are as at first for each key. A process then trains many keys, for which TensorFlow traces the
        training step once: by far the most time for a small model. All models have the same layers and first weights.
    output : str, optional
        A directory on a file system that driver and executors share, to which the result of each key is written when
        it is trained, a Parquet file for each. What is there is not trained again, by another attempt of a task or by
        another call, unless the key's rows have changed. Errors are not kept: those keys are tried again.
    timeout : float, optional
        Seconds after which the function is ended for a key.
    seed : int
        With the key it gives the seed of Python's, NumPy's and Keras's random numbers for each key, so that a result
        does not depend on where and after which others a key is trained.
    num_partitions : int, optional
        The number of tasks. By default ``spark.sql.shuffle.partitions``; Spark does not join small ones.

    Returns
    -------
    DataFrame
        The columns of the key, followed by ``rows`` (their number), ``seconds``, ``metrics`` (a map), ``model`` (the
        bytes of a ``.keras`` file) and ``error``, which is null for a key that has succeeded.

    Raises
    ------
    SpecError
        If an argument can't be right, or the results in `output` are of another function, other columns or another
        seed.
    FeedError
        If no array can hold a column's type.

    Examples
    --------
    >>> df = spark.range(6).selectExpr("id % 2 as store", "float(id) as x")
    >>> fitted = fit_each(df, "store", lambda store, rows: {"most": rows["x"].max() / store})
    >>> [(row.store, row.rows, row.metrics, row.error is None) for row in fitted.orderBy("store").collect()]
    [(0, 3, {'most': inf}, True), (1, 3, {'most': 5.0}, True)]
    """
    from pyspark.sql import functions as f

    require_frame(data, "the data")
    keys = _checked_keys(data, by)
    _check_function("function", function, ("key", "rows") if build is None else ("key", "rows", "model"))
    if build is not None:
        _check_function("build", build, ())
    for name, value, least in (("seed", seed, 0), ("num_partitions", num_partitions, 1)):
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
            raise SpecError.of(name, value, f": expected a whole number from {least} on")
    seconds = None if timeout is None else check_seconds("timeout", timeout)
    try:
        program = cloudpickle.dumps(WithCode((function, build, seed)))
    except Exception as error:
        raise SpecError(
            f"the function can't be sent to the executors: {error}. Open connections, sessions and models belong "
            "inside the function"
        ) from error
    types = _result_types(data, keys)
    schema = pa.schema([(each.name, arrow_type(each.dataType)) for each in types])
    storage.use(settings := storage.hadoop_settings(data.sparkSession))
    if output is not None:
        files, within = storage.file_system(output)
        output = within if storage.is_local(files) else output  # a task has another working directory
        code = {"function": code_digest(function), "build": build and code_digest(build)}
        _check_output(output, {**code, "by": list(keys), "columns": data.schema.simpleString(), "seed": seed})
    count = 1 if build is None else _KEYS_OF_A_MODEL
    work = KeyWork(keys, isinstance(by, str), schema, program, count, seed, seconds, output or "", settings)
    plain, _ = plainly_named(data)
    names = [plain.columns[data.columns.index(name)] for name in keys]
    others = [each.name for each in plain.schema if each.name not in names and _has_order(each.dataType)]
    # By their number, so that Spark does not join partitions: a few bytes may be hours of training.
    partitions = num_partitions or int(data.sparkSession.conf.get("spark.sql.shuffle.partitions"))
    together = plain.repartition(partitions, *names).sortWithinPartitions(*map(f.col, names), *map(f.col, others))
    return map_in_arrow(together.toDF(*data.columns), partial(train_keys, work), types)


def _checked_keys(data: "DataFrame", by: str | Sequence[str]) -> tuple[str, ...]:
    keys = (by,) if isinstance(by, str) else tuple(by)
    if data.isStreaming:
        raise SpecError("the data is a stream, whose keys never have all their rows: use it in foreachBatch")
    if not keys or len(set(keys)) < len(keys):
        raise SpecError.of("by", by, ": expected the column of the key, or several, each once")
    for name in keys:
        if name not in data.columns:
            raise SpecError.of("by", by, f": there is no column {name!r}{did_you_mean(name, data.columns)}")
        kind = data.schema[name].dataType.simpleString()
        if kind not in _KEY_TYPES and not kind.startswith(("decimal(", "timestamp_")):
            raise SpecError.of("by", by, f": column {name!r} is of type {kind}, by which rows do not come together")
    if len(keys) == len(data.columns):
        raise SpecError.of("by", by, ": the data has no other column, of which the function could take arrays")
    check_schema(type(data.schema)([each for each in data.schema if each.name not in keys]))
    return keys


def _check_function(name: str, function: Any, parameters: Sequence[str]) -> None:
    try:
        inspect.signature(function).bind(*parameters)
    except ValueError:  # of a builtin, which has no signature
        return
    except TypeError as error:
        raise SpecError.of(name, function, f": expected a function of ({', '.join(parameters)}): {error}") from None


def _result_types(data: "DataFrame", keys: Sequence[str]) -> "StructType":
    from pyspark.sql.types import BinaryType, DoubleType, LongType, MapType, StringType, StructField, StructType

    metrics = MapType(StringType(), DoubleType())
    own = {
        "rows": LongType(),
        "seconds": DoubleType(),
        "metrics": metrics,
        "model": BinaryType(),
        "error": StringType(),
    }
    if clash := next((name for name in keys if name.lower() in own), None):
        raise SpecError(
            f"the key's column {clash!r} has the name of a column of the results ({', '.join(own)}): rename it"
        )
    return StructType([*(data.schema[name] for name in keys), *(StructField(*each) for each in own.items())])


def _has_order(kind: Any) -> bool:
    """Return whether Spark can sort values of a type."""
    if hasattr(kind, "fields"):
        return all(_has_order(each.dataType) for each in kind.fields)
    return _has_order(kind.elementType) if hasattr(kind, "elementType") else not hasattr(kind, "sqlType")


def _check_output(output: str, found: dict[str, Any]) -> None:
    """Write to a directory of what the results are; raise SpecError if they are of something else there."""
    path = f"{output.rstrip('/')}/{_ABOUT}"
    files, within = storage.file_system(path)
    if not files.exists(within):
        storage.publish(path, partial(_write, json.dumps(found)))
    known = json.loads(files.cat_file(within))
    if others := [name for name, value in found.items() if known.get(name) != value]:
        raise SpecError.of(
            "output", output, f": there are results with another {' and another '.join(others)}: give another directory"
        )


def _write(text: str, local: str) -> None:
    Path(local).write_text(text)


def code_digest(function: Any) -> str:
    """Return a hash of a function's code, and of the plain values that it uses from outside.

    It does not depend on the place of the code in a file or notebook. Another version of Python gives another one.

    Examples
    --------
    >>> code_digest(lambda x: x + 1) == code_digest(lambda x: x + 1), code_digest(lambda x: x + 1) == code_digest(len)
    (True, False)
    """
    code = getattr(function, "__code__", None)
    if code is None:
        return sha256(cloudpickle.dumps(function)).hexdigest()
    used = inspect.getclosurevars(function)
    outside = {**used.globals, **used.nonlocals}.items()
    plain = sorted((name, repr(value)) for name, value in outside if isinstance(value, _PLAIN))
    return sha256(repr((_stable(code), function.__defaults__, plain)).encode()).hexdigest()


def _stable(value: Any) -> Any:
    if isinstance(value, CodeType):
        return value.co_code, value.co_names, [_stable(each) for each in value.co_consts]
    return sorted(map(repr, value)) if isinstance(value, frozenset) else value
