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


_OF_A_LOSS = """Graph execution error:

Detected at node compile_loss/SparseSoftmaxCrossEntropyWithLogits defined at (most recent call last):
  File "train.py", line 11, in <module>

Received a label value of 9 which is outside the valid range of [0, 3).  Label values: 7 8 7 9
\t [[{{node compile_loss/SparseSoftmaxCrossEntropyWithLogits}}]] [Op:__inference_multi_step_on_iterator_1212]
"""


@pytest.mark.parametrize(
    ("text", "summary"),
    [
        (_OF_A_GENERATOR, "TypeError: list indices must be integers or slices, not str, in a function that TensorFlow"),
        ("Graph execution error:\n\nDetected at node MatMul", "Exception: Graph execution error:"),
        (_OF_A_LOSS, "Exception: Received a label value of 9 which is outside the valid range of [0, 3)"),
        ("one\ntwo", "Exception: one"),
        ("", "Exception"),
    ],
)
def test_the_first_line_names_the_cause(text, summary):
    assert _summary(Exception(text)).startswith(f"its program raised {summary}")
