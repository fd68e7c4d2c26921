"""What connects GPUs: the kernel's view of InfiniBand, and NCCL's log."""

import sys

import pytest

from tensorflowonspark.task import fabric
from tensorflowonspark.task.fabric import InfiniBandPort, NcclChoice, find_fabric, infiniband_ports, parse_nccl

# NCCL prints each line with the host, the process and its GPU.
INFINIBAND = """
h7:31842:31842 [0] NCCL INFO Bootstrap: Using eth0:10.0.4.19<0>
h7:31842:31842 [0] NCCL INFO cudaDriverVersion 12090
h7:31842:31842 [0] NCCL INFO NCCL version 2.27.3+cuda12.9
h7:31842:31905 [0] NCCL INFO NET/Plugin: Could not find: libnccl-net.so. Using internal net plugin.
h7:31842:31905 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.4.19<0>
h7:31842:31905 [0] NCCL INFO Using network IB
h7:31842:31906 [1] NCCL INFO Using network IB
h7:31842:31905 [0] NCCL INFO NET/IB : GPU Direct RDMA Enabled for HCA 0 'mlx5_0'
h7:31842:31905 [0] NCCL INFO NET/IB : GPU Direct RDMA {} for HCA 1 'mlx5_1'
h7:31842:31905 [0] NCCL INFO Channel 00/24 : 0 1
h7:31842:31905 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
h7:31842:31906 [1] NCCL INFO Channel 00/0 : 1[1] -> 0[0] via P2P/CUMEM
h7:31842:31906 [1] NCCL INFO Channel 01/0 : 1[1] -> 0[0] [send] via NET/IB/0/GDRDMA
"""
SOCKETS = """
NCCL version 2.21.5+cuda12.4
h8:7:7 [0] NCCL INFO NET/IB : No device found.
h8:7:7 [0] NCCL INFO NET/IB : Using [RO]; OOB eth0:10.0.4.20<0>
h8:7:7 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.4.20<0> [1]eth1:10.9.4.20<0>
h8:7:7 [0] NCCL INFO Using network Socket
"""


def test_nccl_over_infiniband():
    choice = parse_nccl(INFINIBAND.format("Enabled"))
    assert choice == NcclChoice(
        "2.27.3+cuda12.9",
        "IB",
        ("mlx5_0:1/IB", "mlx5_1:1/IB"),
        gpudirect=True,
        paths=("P2P/CUMEM", "NET/IB/0/GDRDMA"),
    )
    assert parse_nccl(INFINIBAND.format("Disabled")).gpudirect is False


def test_nccl_over_sockets_and_a_plugin():
    assert parse_nccl(SOCKETS) == NcclChoice("2.21.5+cuda12.4", "Socket", ("eth0", "eth1"))
    assert parse_nccl("h:1:1 [0] NCCL INFO Using network AWS Libfabric\n").network == "AWS Libfabric"
    assert parse_nccl("nothing of NCCL\n") == NcclChoice()


@pytest.mark.parametrize(
    ("program", "problem"),
    [
        ("print('h:1:1 [0] NCCL INFO x'); import sys; sys.exit('there is no libnccl.so')", "there is no libnccl.so"),
        ("import os; print('h:1:1 [0] NCCL INFO x', flush=True); os._exit(3)", "it ended with exit code 3"),
        ("import os; os.kill(os.getpid(), 9)", "it ended with exit code -9"),
    ],
)
def test_why_nccl_did_not_run(program, problem):
    assert fabric._run_nccl([sys.executable, "-c", program]).problem == problem


@pytest.mark.slow
def test_a_tensorflow_that_sees_no_gpu_is_the_problem(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert fabric._run_nccl().problem == "TensorFlow sees no GPU: install tensorflow[and-cuda]"


@pytest.mark.slow
def test_the_program_that_calls_nccl_runs_on_cpus(monkeypatch):
    program = fabric._PROGRAM.replace('list_physical_devices("GPU")', 'list_physical_devices("CPU")')
    assert fabric._run_nccl([sys.executable, "-c", program]) == NcclChoice()


def test_nccl_that_hangs_is_ended(monkeypatch):
    monkeypatch.setattr(fabric, "_NCCL_SECONDS", 0.2)
    assert fabric._run_nccl([sys.executable, "-c", "import time; time.sleep(60)"]).problem == "it took more than 0.2 s"


def test_nccl_is_asked_for_its_log(monkeypatch):
    monkeypatch.setenv("NCCL_DEBUG_FILE", "/tmp/elsewhere")
    program = (
        "import os\n"
        "assert 'NCCL_DEBUG_FILE' not in os.environ and 'NET' in os.environ['NCCL_DEBUG_SUBSYS']\n"
        "print('h:1:1 [0] NCCL', os.environ['NCCL_DEBUG'], 'Using network IB')\n"
    )
    assert fabric._run_nccl([sys.executable, "-c", program]) == NcclChoice(network="IB")


def make_port(devices, name, port, state, link, rate):
    folder = devices / name / "ports" / str(port)
    folder.mkdir(parents=True)
    for file, text in {"state": state, "link_layer": link, "rate": rate}.items():
        (folder / file).write_text(f"{text}\n")


def test_ports_of_infiniband_devices(tmp_path):
    make_port(tmp_path, "mlx5_1", 1, "1: DOWN", "Ethernet", "40 Gb/sec (4X QDR)")
    make_port(tmp_path, "mlx5_0", 2, "2: INIT", "InfiniBand", "10 Gb/sec (4X SDR)")
    make_port(tmp_path, "mlx5_0", 1, "4: ACTIVE", "InfiniBand", "200 Gb/sec (4X HDR)")
    (tmp_path / "mlx5_2" / "ports" / "1").mkdir(parents=True)  # a device that is about to vanish
    first, second, third = infiniband_ports(tmp_path)
    assert first == InfiniBandPort("mlx5_0", 1, "ACTIVE", "200 Gb/sec (4X HDR)", "InfiniBand")
    assert (second.device, second.port, second.is_active) == ("mlx5_0", 2, False)
    assert (third.device, third.link, third.is_active) == ("mlx5_1", "Ethernet", False)
    assert infiniband_ports(tmp_path / "missing") == ()


@pytest.mark.parametrize("gpus", [(), ("H200",)])
def test_a_host_without_a_gpu_or_without_tensorflow_runs_no_nccl(monkeypatch, tmp_path, gpus):
    monkeypatch.setattr(fabric, "gpu_names", lambda: gpus)
    monkeypatch.setattr(fabric, "find_spec", lambda _: None)
    monkeypatch.setattr(fabric, "_DEVICES", str(tmp_path))
    found = find_fabric()
    assert (found.gpus, found.ports, found.nccl) == (gpus, (), None)
    assert found.locked_memory == -1 or found.locked_memory > 0
