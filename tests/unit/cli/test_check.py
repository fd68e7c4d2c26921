"""The report of ``tfos check --gpu``."""

import pytest

from tensorflowonspark.cli import check, main
from tensorflowonspark.task.environment import ExecutorEnvironment
from tensorflowonspark.task.fabric import Fabric, InfiniBandPort, NcclChoice

PORT = InfiniBandPort("mlx5_0", 1, "ACTIVE", "200 Gb/sec (4X HDR)", "InfiniBand")
OVER_INFINIBAND = NcclChoice("2.27.3+cuda12.9", "IB", ("mlx5_0:1/IB",), gpudirect=True, paths=("P2P/CUMEM",))


@pytest.mark.parametrize(
    ("fabric", "cells"),
    [
        (
            Fabric(("H100", "H100", "A2"), (PORT,), -1, OVER_INFINIBAND),
            [
                "2 x H100, 1 x A2",
                "mlx5_0:1 InfiniBand ACTIVE 200 Gb/sec (4X HDR)",
                "no limit",
                "2.27.3+cuda12.9; between hosts IB (mlx5_0:1/IB) with GPUDirect; between GPUs P2P/CUMEM",
            ],
        ),
        (
            Fabric(("H100",), (), 8 << 20, NcclChoice("2.21.5", "Socket", ("eth0",), gpudirect=False)),
            ["1 x H100", "none", "8 MiB", "2.21.5; between hosts Socket (eth0) without GPUDirect"],
        ),
        (Fabric(("H100",), (), 64 << 10, NcclChoice(problem="x")), ["1 x H100", "none", "64 KiB", "failed"]),
        (Fabric((), (), 2 << 30, None), ["none", "none", "2.0 GiB", "not asked: there is no GPU"]),
    ],
)
def test_a_row_of_what_connects_gpus(fabric, cells):
    empty, head, row = check._fabric_lines([("h7", fabric)])
    assert (empty, head.split()) == ("", ["executor", "GPUs", "InfiniBand", "locked", "memory", "NCCL"])
    assert [each.strip() for each in row.split("  ") if each.strip()] == ["h7", *cells]


def test_this_machine_alone_is_examined_without_a_master(monkeypatch, capsys):
    monkeypatch.setattr(check, "examine_environment", lambda: ({}, []))
    monkeypatch.setattr(check, "find_fabric", lambda: Fabric(("H100",), (PORT,), 8 << 20, None))
    assert main(["check", "--gpu"]) == 1
    output, errors = capsys.readouterr()
    assert "this machine  1 x H100  mlx5_0:1 InfiniBand ACTIVE 200 Gb/sec (4X HDR)  8 MiB" in output
    assert "this machine: a process may lock 8192 KiB of memory" in errors
    assert main(["check"]) == 0


def test_what_a_worker_sends_contains_no_class():
    fields = {
        "gpus": ("H100",),
        "ports": ({"device": "mlx5_0", "port": 1, "state": "ACTIVE", "rate": "200", "link": "InfiniBand"},),
        "locked_memory": 0,
        "nccl": {"version": "2", "network": "IB", "devices": (), "gpudirect": None, "paths": (), "problem": ""},
    }
    facts = {"host": "h", "address": "", "python": "3", "versions": {}, "errors": {}, "gpus": 0}
    facts |= {"shared_memory": None, "open_files": 0, "unreachable": ""}
    found = ExecutorEnvironment.of({**facts, "fabric": fields}, slots=2)
    port = InfiniBandPort("mlx5_0", 1, "ACTIVE", "200", "InfiniBand")
    assert found.fabric == Fabric(("H100",), (port,), 0, NcclChoice("2", "IB"))
    assert (found.slots, ExecutorEnvironment.of({**facts, "fabric": None}).fabric) == (2, None)
