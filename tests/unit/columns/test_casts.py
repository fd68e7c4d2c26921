"""Every cast of a column: exact for the largest and the smallest value of a type, rounded to a float, or refused."""

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from tensorflowonspark.columns import kind_of, summarize, to_array, to_batch
from tensorflowonspark.errors import FeedError
from tensorflowonspark.node.feed.shard import Shard

INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
FLOATS = ["float16", "float32", "float64"]
_TIMES = {"date": pa.date32(), "timestamp": pa.timestamp("us"), "duration": pa.duration("us"), "time": pa.time64("ns")}


def extremes():
    """Return columns with a type's smallest and largest value, and these as Python's exact numbers."""
    for name in INTEGERS:
        limits = np.iinfo(name)
        yield name, pa.array([limits.min, limits.max], name), [int(limits.min), int(limits.max)]
    for name in FLOATS:
        most = np.finfo(name).max
        yield name, pa.array(np.array([-most, most], name)), [float(-most), float(most)]
    for name, kind in _TIMES.items():
        stored = np.iinfo("int32" if name == "date" else "int64")
        least, most = (0, 86_400 * 10**9 - 1) if name == "time" else (int(stored.min), int(stored.max))
        yield name, pa.array([least, most], stored.dtype.name).cast(kind), [least, most]
    for digits in (18, 19, 20, 38):
        most = 10**digits - 1
        yield f"decimal{digits}", pa.array([Decimal(-most), Decimal(most)], pa.decimal128(digits, 0)), [-most, most]
    yield "bool", pa.array([False, True]), [0, 1]


def outcomes(column, exact, dtype, row):
    """Return "equal", "rounded" or "refused" for one value, by each way that a column goes to a program."""
    one = pa.record_batch({"x": column.slice(row, 1)})
    two = pa.record_batch({"x": pa.concat_arrays([column.slice(row, 1), pa.nulls(1, column.type)])})
    for batch in (one, two):
        kind = kind_of("x", column.type, summarize(batch)["x"], cast=dtype, fill=0)
        rows = Shard([[batch], [batch]]).reader({"x": kind})
        for take in (
            lambda batch=batch, kind=kind: to_array(batch.column("x"), kind),
            lambda rows=rows: rows.take(np.array([0]))["x"],
            lambda rows=rows, batch=batch: rows.take(np.array([0, batch.num_rows]))["x"],
        ):
            try:
                value = take()[0].item()
            except FeedError as error:
                assert str(error).startswith("column 'x' holds ")  # noqa: PT017
                yield "refused"
                continue
            if value == exact[row]:
                yield "equal"
            else:
                assert np.dtype(dtype).kind == "f"
                assert np.isclose(value, float(exact[row]), rtol=1e-3)
                yield "rounded"


def test_every_cast_is_exact_rounded_to_a_float_or_refused():
    counts = dict.fromkeys(("equal", "rounded", "refused"), 0)
    for name, column, exact in extremes():
        for dtype in (*INTEGERS, *FLOATS):
            for row in range(2):
                found = set(outcomes(column, exact, dtype, row))
                assert len(found) == 1, (name, dtype, exact[row], found)
                (outcome,) = found
                if np.dtype(dtype).kind in "iu":
                    limits = np.iinfo(dtype)
                    fits = limits.min <= exact[row] <= limits.max
                    assert outcome == ("equal" if fits else "refused"), (name, dtype, exact[row])
                counts[outcome] += 1
    print(counts)
    assert min(counts.values()) > 20


@pytest.mark.parametrize("value", [np.nan, np.inf, 2.0**63, -1.5e19])
def test_a_float_that_no_integer_is(value):
    batch = pa.record_batch({"x": pa.array([1.0, value])})
    kind = kind_of("x", pa.float64(), summarize(batch)["x"], cast="int64")
    with pytest.raises(FeedError, match="column 'x' holds .*, which int64 can't hold: ask for another dtype"):
        to_array(batch.column("x"), kind)


def test_bytes_are_int8_bit_by_bit():
    batch = pa.record_batch({"x": [b"\xff\x01"]})
    kind = kind_of("x", pa.binary(), summarize(batch)["x"], cast="int8")
    assert to_array(batch.column("x"), kind).tolist() == [[-1, 1]]


def test_integer_results_are_exact_or_refused():
    types = [*INTEGERS, "float32", "float64"]
    for source in INTEGERS:
        for value in (np.iinfo(source).min, np.iinfo(source).max):
            for target in types:
                schema = pa.schema({"y": pa.type_for_alias(target)})
                try:
                    (found,) = to_batch(np.array([value], source), schema, 1).column("y").to_pylist()
                except FeedError as error:
                    assert "result column 'y'" in str(error)  # noqa: PT017
                else:
                    assert int(found) == int(value), (source, target)
