"""Whether the nodes of a host share one import of TensorFlow: by its processors, and its container's limit of them."""

import os

import pytest

from tensorflowonspark.supervisor import node_process


@pytest.mark.parametrize(
    ("limit", "nodes", "expected"),
    [
        ("", 4, False),
        ("", 8, True),
        ("max 100000", 4, False),
        ("200000 100000", 1, False),
        ("200000 100000", 2, True),
        ("150000 100000", 1, False),
        ("50000 100000", 1, True),
        ("1600000 100000", 8, True),
        ("what is this", 4, False),
    ],
)
def test_nodes_are_crowded_where_each_has_a_processor_at_most(tmp_path, monkeypatch, limit, nodes, expected):
    path = tmp_path / "cpu.max"
    if limit:
        path.write_text(f"{limit}\n")
    monkeypatch.setattr(node_process, "_CONTAINER_LIMIT", path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: range(8))
    assert node_process.is_crowded(nodes) == expected
