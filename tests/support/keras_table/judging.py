"""What a cell has come to: equal, refused, different or wrong."""

import re
from dataclasses import dataclass

import numpy as np

from tests.support.keras_table.columns import JAX, PARAMETER_SERVER
from tests.support.keras_table.datasets import Rows

EQUAL, REFUSED, DIFFERENT, WRONG = "equal", "refused", "different", "wrong"
NOTHING, NOT_RUN = "—", "not run"
_COLOURS = re.compile("\x1b\\[[0-9;]*m")  # of a terminal, in some errors of Keras
REFUSED_BY_COLUMN = {PARAMETER_SERVER: "of Keras 3 does not work under ParameterServerStrategy"}


@dataclass
class Verdict:
    """How a cell is judged, and why."""

    kind: str
    why: str = ""


def judge(cell, column, reference, found, stalled=""):  # noqa: PLR0911 - one return for each kind of cell
    """Compare what the workers found with what one process did.

    Parameters
    ----------
    cell : Cell
        The row of the table.
    column : str
        The column's name.
    reference : tuple
        ``("value", ...)`` or ``("error", message, traceback)``.
    found : list of tuple or None
        The same of each worker; None where a cell did not end.
    stalled : str
        The error that ended the cluster in the midst of it.
    """
    if column not in cell.columns:
        return Verdict(NOTHING)
    errors = [each for each in found if each and each[0] == "error"]
    if errors and len(errors) == len(found):
        refused = _refused(cell, column, reference, errors)
        if refused:
            return Verdict(REFUSED, refused)
    expected = cell.refused.get(column)
    if stalled or None in found:
        return Verdict(WRONG, f"ended the cluster: {stalled[-600:]}; {[each and each[:2] for each in errors]}")
    if expected:
        return Verdict(WRONG, f"should be refused with {expected!r}: {[str(each)[:300] for each in found]}")
    if reference is None or reference[0] == "error":
        return Verdict(WRONG, f"one process: {reference}; here: {[str(each)[:300] for each in found]}")
    if errors:
        return Verdict(WRONG, errors[0][1][:1500])
    problems = differences(reference[1], together([each[1] for each in found]), cell.tolerance)
    for one in found[1:]:
        problems += [
            f"workers differ: {each}"
            for each in differences(*map(_without_rows, (found[0][1], one[1])), cell.tolerance)
        ]
    reason = cell.different.get(column)
    if reason:
        return Verdict(DIFFERENT, reason) if problems else Verdict(WRONG, f"is equal, and should differ: {reason}")
    return Verdict(WRONG, "; ".join(problems[:4])) if problems else Verdict(EQUAL)


def _refused(cell, column, reference, errors):
    """Return why all workers refuse a cell, if that is expected; else an empty text."""
    expected = cell.refused.get(column)
    for text in (expected, REFUSED_BY_COLUMN.get(column)):
        if text and all(text in each[1] for each in errors):
            error = next(line for line in errors[0][1].splitlines() if text in line)
            return (text == expected and cell.because) or _COLOURS.sub("", error)
    if column == JAX and reference and reference[0] == "error":
        return "plain Keras on JAX refuses it, too: " + _COLOURS.sub("", reference[1].splitlines()[0])[:300]
    return ""


def together(values):
    """Return what the first worker found, with the rows of all."""
    first = values[0]
    if isinstance(first, Rows):
        return Rows(sorted(row for each in values for row in each))
    if isinstance(first, dict):
        return {name: together([each[name] for each in values]) for name in first}
    if isinstance(first, (list, tuple)):
        return [together(list(each)) for each in zip(*values, strict=False)] if all(map(len, values)) else first
    return first


def _without_rows(value):
    if isinstance(value, Rows):
        return []
    if isinstance(value, dict):
        return {name: _without_rows(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_rows(each) for each in value]
    return value


def differences(one, other, tolerance, path="", absolute=None):  # noqa: PLR0911 - one for each kind of value
    """Return where two nested values differ; by an absolute tolerance of a fifth of the relative one, or another."""
    if isinstance(one, dict) and isinstance(other, dict):
        if set(one) != set(other):
            return [f"{path}: {sorted(one)} and {sorted(other)}"]
        names = [(name, f"{path}/{name}") for name in one]
        return [each for name, at in names for each in differences(one[name], other[name], tolerance, at, absolute)]
    if isinstance(one, Rows) and isinstance(other, Rows):
        if list(one) == list(other):
            return []
        missing = sorted(set(one) - set(other))
        return [f"{path}: {len(other)} rows instead of {len(one)}; not there: {missing}"]
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        if len(one) != len(other):
            return [f"{path}: {len(one)} and {len(other)} values: {str(one)[:200]} and {str(other)[:200]}"]
        pairs = enumerate(zip(one, other, strict=True))
        return [each for place, pair in pairs for each in differences(*pair, tolerance, f"{path}/{place}", absolute)]
    one, other = np.asarray(one), np.asarray(other)
    if one.shape != other.shape:
        return [f"{path}: shapes {one.shape} and {other.shape}"]
    if one.dtype.kind in "biuf" and tolerance >= 0:
        atol = tolerance / 5 if absolute is None else absolute
        same = np.allclose(one.astype("f8"), other.astype("f8"), rtol=tolerance, atol=atol, equal_nan=True)
    else:
        same = np.array_equal(one, other)
    return [] if same else [f"{path}: {np.ravel(one)[:4]} and {np.ravel(other)[:4]}"]
