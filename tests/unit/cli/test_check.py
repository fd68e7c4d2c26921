"""The report of ``tfos check --gpu``."""

import argparse
from types import SimpleNamespace

import pytest

from tensorflowonspark.cli import check, main, spark
from tensorflowonspark.driver import executor_checks
from tensorflowonspark.driver.spark import resources, spark_names
from tensorflowonspark.task.environment import ExecutorEnvironment
from tensorflowonspark.task.fabric import Fabric, InfiniBandPort, NcclChoice

PORT = InfiniBandPort("mlx5_0", 1, "ACTIVE", "200 Gb/sec (4X HDR)", "InfiniBand")
OVER_INFINIBAND = NcclChoice("2.27.3+cuda12.9", "IB", ("mlx5_0:1/IB",), gpudirect=True, paths=("P2P/CUMEM",))
FACTS = {"host": "h", "address": "", "python": "3", "versions": {}, "errors": {}, "gpus": 0}
FACTS |= {"shared_memory": None, "open_files": 0, "unreachable": "", "fabric": None}


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
        (Fabric(("H200",), (), 2 << 30, None), ["1 x H200", "none", "2.0 GiB", "not asked: there is no TensorFlow"]),
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


@pytest.mark.parametrize("master", ["spark://h1:7077", "local[2]"])
def test_executors_that_no_application_sees_are_explained(monkeypatch, master):
    conf = {"spark.driver.host": "edge"}
    context = SimpleNamespace(
        master=master, applicationId="app-1", getConf=lambda: SimpleNamespace(getAll=conf.items, get=conf.get)
    )
    session = SimpleNamespace(version="4.0.0", sparkContext=context)
    for module, name, found in (
        (spark, "start_session", session),
        (spark, "stop_session", None),
        (spark, "submit_arguments", []),
        (spark_names, "jvm_problems", []),
        (resources, "allocates_dynamically", False),
        (executor_checks, "examine_executors", []),
        (executor_checks, "closed_between", []),
        (check, "own_environment", FACTS),
    ):
        monkeypatch.setattr(module, name, lambda *_, found=found, **__: found)
    report = check.CheckReport()
    check._check_cluster(argparse.Namespace(), report)
    lines = [line.split("  ")[0] for line in report.lines]
    assert ("not in the table" in lines) is (master != "local[2]")
    assert any("can't reach the driver at edge, spark.driver.host" in each for each in report.lines) is (
        master != "local[2]"
    )


def test_what_a_worker_sends_contains_no_class():
    fields = {
        "gpus": ("H100",),
        "ports": ({"device": "mlx5_0", "port": 1, "state": "ACTIVE", "rate": "200", "link": "InfiniBand"},),
        "locked_memory": 0,
        "nccl": {"version": "2", "network": "IB", "devices": (), "gpudirect": None, "paths": (), "problem": ""},
    }
    found = ExecutorEnvironment.of({**FACTS, "fabric": fields}, slots=2)
    port = InfiniBandPort("mlx5_0", 1, "ACTIVE", "200", "InfiniBand")
    assert found.fabric == Fabric(("H100",), (port,), 0, NcclChoice("2", "IB"))
    assert (found.slots, ExecutorEnvironment.of(FACTS).fabric) == (2, None)
