"""A limit of the address space that is too low for TensorFlow is named before a node starts."""

import resource

import pytest

from tensorflowonspark.task import launch


@pytest.mark.parametrize(
    ("limit", "problem"),
    [(resource.RLIM_INFINITY, False), (64 << 30, False), (1 << 30, True), (launch._ADDRESS_SPACE, False)],
)
def test_a_low_limit_is_named_with_its_setting(monkeypatch, limit, problem):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    found = launch._memory_problem()
    assert bool(found) is problem
    if problem:
        assert "spark.executor.pyspark.memory" in found
        assert "1024 MiB" in found
        assert "spark.executor.memoryOverhead" in found
