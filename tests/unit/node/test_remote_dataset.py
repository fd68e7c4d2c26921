"""Rows of a worker that a coordinator reads."""

import pytest

import tensorflowonspark as tfos

pytestmark = [pytest.mark.masters("local"), pytest.mark.timeout(240)]  # four imports of TensorFlow for each test


def test_a_worker_without_rows_can_not_repeat_them_for_ever():
    from tensorflowonspark.node.ps.remote_dataset import _repeated

    assert list(_repeated(lambda: iter("ab"), 2)) == ["a", "b", "a", "b"]
    with pytest.raises(tfos.FeedError, match="this worker has no rows to repeat"):
        next(_repeated(lambda: iter(()), None))
