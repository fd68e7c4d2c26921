"""What a node reports of its program's failure."""

import pytest

from tensorflowonspark.node.main import _summary

_OF_A_GENERATOR = """Graph execution error:

Detected at node PyFunc defined at (most recent call last):
<stack traces unavailable>
TypeError: list indices must be integers or slices, not str
Traceback (most recent call last):

  File "train.py", line 11, in rows
"""


@pytest.mark.parametrize(
    ("text", "summary"),
    [
        (_OF_A_GENERATOR, "TypeError: list indices must be integers or slices, not str, in a function that TensorFlow"),
        ("Graph execution error:\n\nDetected at node MatMul", "Exception: Graph execution error:"),
        ("one\ntwo", "Exception: one"),
        ("", "Exception"),
    ],
)
def test_the_first_line_names_the_cause(text, summary):
    assert _summary(Exception(text)).startswith(f"its program raised {summary}")
