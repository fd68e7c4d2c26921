"""One value of each type that files have, and what a program gets for it."""

import datetime as dt
import uuid
from decimal import Decimal
from typing import NamedTuple

import numpy as np
import pyarrow as pa

MOMENT = dt.datetime(2024, 2, 3, 4, 5, 6)
MICROS = 1_706_933_106_000_000
_UUID = uuid.UUID(int=7)


class Case(NamedTuple):
    """A column of one value; a program's dtype and value; its dtype through Spark, or None where that refuses."""

    column: pa.Array
    dtype: str
    value: object
    spark: str | None = "same"


def _extension(kind: pa.DataType, values: list[object]) -> pa.Array:
    return pa.ExtensionArray.from_storage(kind, pa.array(values, kind.storage_type))


def _encoded(values: list[object]) -> pa.Array:
    return pa.array(values).dictionary_encode()


def cases() -> dict[str, Case]:
    """Return the types that Parquet files of Arrow have, with their largest values where these are numbers."""
    found = {
        "bool": Case(pa.array([True]), "bool", True),
        "float16": Case(pa.array([1.5], pa.float16()), "float16", 1.5, None),
        "float32": Case(pa.array([np.finfo("f4").max], pa.float32()), "float32", np.finfo("f4").max),
        "float64": Case(pa.array([np.finfo("f8").max]), "float64", np.finfo("f8").max),
        "decimal128": Case(pa.array([Decimal("1.25")], pa.decimal128(38, 2)), "float64", 1.25),
        "decimal256": Case(pa.array([Decimal("1.25")], pa.decimal256(60, 2)), "float64", 1.25, None),
        "date32": Case(pa.array([MOMENT.date()], pa.date32()), "int32", 19756),
        "date64": Case(pa.array([MOMENT.date()], pa.date64()), "int32", 19756),
        "text": Case(pa.array(["ä"]), "object", "ä"),
        "large_text": Case(pa.array(["ä"], pa.large_string()), "object", "ä"),
        "binary": Case(pa.array([b"\xff"]), "object", b"\xff"),
        "fixed_binary": Case(pa.array([b"abcd"], pa.binary(4)), "object", b"abcd"),
        "dictionary": Case(_encoded(["a"]), "object", "a"),
        "list_of_dictionary": Case(pa.ListArray.from_arrays([0, 2], _encoded(["a", "b"])), "object", ["a", "b"]),
        "struct_of_dictionary": Case(pa.StructArray.from_arrays([_encoded(["a"])], ["d"]), "object", "a"),
        "list": Case(pa.array([[1, 2]]), "int64", [1, 2]),
        "fixed_list": Case(pa.array([[1, 2]], pa.list_(pa.int64(), 2)), "int64", [1, 2]),
        "list_of_timestamps": Case(pa.array([[MOMENT]], pa.list_(pa.timestamp("ms"))), "int64", [MICROS]),
        "struct_of_timestamps": Case(
            pa.array([{"t": MOMENT}], pa.struct([("t", pa.timestamp("ms"))])), "int64", MICROS
        ),
        "nulls": Case(pa.nulls(1), "int32", -1),
    }
    for bits in (8, 16, 32, 64):
        most, wider = (1 << bits) - 1, {8: "int16", 16: "int32", 32: "int64", 64: "float64"}[bits]
        found[f"int{bits}"] = Case(pa.array([most >> 1], f"int{bits}"), f"int{bits}", most >> 1)
        found[f"uint{bits}"] = Case(pa.array([most], f"uint{bits}"), f"uint{bits}", most, wider)
    for unit in ("s", "ms", "us", "ns"):
        for zone in (None, "Europe/Berlin"):
            column = pa.array([MOMENT], pa.timestamp(unit)).cast(pa.timestamp(unit, zone))
            found[f"timestamp_{unit}_{zone and 'zone'}"] = Case(
                column, "int64", MICROS, None if unit == "ns" else "same"
            )
        found[f"duration_{unit}"] = Case(
            pa.array([dt.timedelta(seconds=7)], pa.duration(unit)), "int64", 7_000_000, "its own unit"
        )
        time = pa.time32(unit) if unit in ("s", "ms") else pa.time64(unit)
        found[f"time_{unit}"] = Case(pa.array([dt.time(0, 0, 7)], time), "int64", 7_000_000_000, None)
    if hasattr(pa, "list_view"):  # of newer versions of Arrow
        tensor = pa.fixed_shape_tensor(pa.float32(), (2, 2))
        found |= {
            "text_view": Case(pa.array(["ä"], pa.string_view()), "object", "ä"),
            "binary_view": Case(pa.array([b"\xff"], pa.binary_view()), "object", b"\xff"),
            "list_view": Case(pa.array([[1, 2]], pa.list_view(pa.int64())), "int64", [1, 2]),
            "large_list_view": Case(pa.array([[1, 2]], pa.large_list_view(pa.int64())), "int64", [1, 2]),
            "tensor": Case(_extension(tensor, [[1.0, 2.0, 3.0, 4.0]]), "float32", [1.0, 2.0, 3.0, 4.0]),
        }
    if hasattr(pa, "bool8"):
        found |= {
            "bool8": Case(_extension(pa.bool8(), [1]), "bool", True, "int8"),
            "uuid": Case(_extension(pa.uuid(), [_UUID.bytes]), "object", _UUID.bytes, None),
        }
    if hasattr(pa, "decimal32"):
        found["decimal32"] = Case(pa.array([Decimal("1.25")], pa.decimal32(9, 2)), "float64", 1.25)
    return found


def of_struct(name: str) -> str:
    """Return the name under which a program finds a column: a field of a struct has a name of its own."""
    return {"struct_of_dictionary": f"{name}.d", "struct_of_timestamps": f"{name}.t"}.get(name, name)
