"""What a node reports of its program's failure, and TensorFlow's threads."""

import os
import re
from bdb import BdbQuit

import pytest
import tensorflow as tf

from tensorflowonspark.config import ClusterSpec
from tensorflowonspark.node.context import Context
from tensorflowonspark.node.feed.feed import Feed
from tensorflowonspark.node.feed.selection import FeatureOptions, Selection
from tensorflowonspark.node.main import _THREADS, _advice, _allow_waiting, _summary
from tests.unit.node.test_selection import contents_of

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
    assert _summary(Exception(text)).startswith(summary)


@pytest.mark.parametrize(
    ("call", "advice"),
    [
        (lambda: Context.dataset(None, 64, feature="x"), r"dataset takes batch_size, .*\(did you mean 'features'\?\)"),
        (lambda: Context.read_parquet(None, "p", column=["x"]), r"read_parquet takes .*\(did you mean 'columns'\?\)"),
        (lambda: Feed.batches(None, 64, lable="y"), r"\(did you mean 'label'\?\)"),
        (lambda: Feed.batches(None, 64, zzz="y"), "on_epoch_end$"),
        (lambda: Selection(None, None, x=1), "^$"),
    ],
)
def test_a_wrong_name_of_an_argument_is_an_error_with_the_right_one(call, advice):
    with pytest.raises(TypeError) as caught:
        call()
    assert re.search(advice, _advice(caught.value))


def test_a_breakpoint_has_no_terminal():
    assert "a node has no terminal for breakpoint()" in _advice(BdbQuit())


def test_columns_of_strings_that_no_loss_takes_are_named():
    """TensorFlow's error names neither the column nor the remedy."""
    contents, _ = contents_of({"x": [1.0], "kind_of_flower": ["rose"]})
    Selection(contents, FeatureOptions(features="x", label="kind_of_flower"))
    with pytest.raises(tf.errors.UnimplementedError) as caught:
        tf.function(lambda y: tf.cast(y, tf.float32))(tf.constant(["rose"]))
    assert re.search(r"'kind_of_flower'.* hold strings, .*StringIndexer", _advice(caught.value))


@pytest.mark.parametrize(
    ("processors", "given", "num_ps", "threads"),
    [(1, None, 1, "2"), (1, None, 0, "2"), (1, "1", 1, "2"), (1, "1", 0, "1"), (1, "4", 1, "4"), (2, None, 1, None)],
)
def test_a_server_of_tensorflow_has_a_thread_beside_one_that_waits(monkeypatch, processors, given, num_ps, threads):
    had = os.sched_getaffinity(0)
    monkeypatch.setenv(_THREADS, given or "")
    if given is None:
        monkeypatch.delenv(_THREADS)
    os.sched_setaffinity(0, sorted(had)[:processors])
    try:
        _allow_waiting(ClusterSpec(num_workers=2, num_ps=num_ps))
        assert os.environ.get(_THREADS) == threads
    finally:
        os.sched_setaffinity(0, had)
