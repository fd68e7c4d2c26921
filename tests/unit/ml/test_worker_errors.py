"""Errors in Spark's Python workers: the sentence, and the user's frames."""

import traceback

import pyarrow as pa
import pytest

from tensorflowonspark.ml import predict, row_statistics
from tensorflowonspark.ml.features import TakenColumns
from tensorflowonspark.ml.worker_errors import short_errors


def frames_of(call):
    """Return the functions in the traceback that Spark would show, and the errors in it."""
    try:
        call()
    except Exception as error:
        found = traceback.TracebackException.from_exception(error)
        names = [each.name for each in found.stack[2:]]  # without those of this test
        return names, "".join(found.format()).count("Error: ")
    raise AssertionError("nothing was raised")


def user_function(x):
    raise KeyError(f"in the user's function: {x}")


@short_errors
def calling(function):
    yield predict.call_in_pieces(lambda _: function(1), [1], pa.record_batch({"x": [1]}), 1)


@short_errors
def failing():
    return pa.array([1]).no_such_method()


NULL = pa.record_batch({"x": [1.0, None]})
TAKEN = TakenColumns(("x",), {"shapes": {}, "dtypes": {}, "fill": {}}, skipping="Skip it")
CASES = {
    "an error of a column": (lambda: list(row_statistics.find_moments(TAKEN, (-1,), iter([NULL]))), ["yielding"]),
    "one of the user's function": (
        lambda: list(calling(user_function)),
        ["yielding", "calling", "<lambda>", "user_function"],
    ),
    "a fault without the user's code": (lambda: failing(), ["returning", "failing"]),
}


@pytest.mark.parametrize("case", CASES)
def test_only_the_users_frames_are_shown(case):
    call, names = CASES[case]
    assert frames_of(call) == (names, 1)
