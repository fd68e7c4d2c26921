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
@pytest.mark.parametrize("version", [1, 2])
def test_nodes_are_crowded_where_each_has_a_processor_at_most(tmp_path, monkeypatch, version, limit, nodes, expected):
    if limit and version == 2:
        (tmp_path / "cpu.max").write_text(f"{limit}\n")
    elif limit:
        (tmp_path / "cpu").mkdir()
        quota, _, period = limit.replace("max", "-1").partition(" ")
        (tmp_path / "cpu/cpu.cfs_quota_us").write_text(f"{quota}\n")
        (tmp_path / "cpu/cpu.cfs_period_us").write_text(f"{period}\n")
    monkeypatch.setattr(node_process, "_CGROUPS", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: range(8))
    assert node_process.is_crowded(nodes) == expected
