"""What a node's processes and GPUs use."""

import os
import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest

from tensorflowonspark.messages import GpuUsage
from tensorflowonspark.supervisor.usage import UsageMeter

_PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "block = b'x' * (200 << 20); print('up', flush=True); input()"])
child.wait()
"""


def test_the_memory_of_descendants_counts():
    parent = subprocess.Popen([sys.executable, "-c", _PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert parent.stdout.readline() == b"up\n"
        found = UsageMeter(parent.pid).measure()
        assert found.memory > 200 << 20
        assert found.processor > 0
    finally:
        parent.communicate(b"\n", timeout=30)
    assert UsageMeter(parent.pid).measure().memory == 0


def test_a_descendant_that_ends_meanwhile_hides_no_other(monkeypatch):
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    ended = psutil.Process(child.pid)
    child.communicate(b"\n", timeout=30)
    own = psutil.Process()
    monkeypatch.setattr(psutil.Process, "children", lambda self, recursive: [ended, own])
    assert UsageMeter(os.getpid()).measure().memory > 1.5 * own.memory_info().rss


class FakeNvml:
    """In place of ``pynvml``, for a host with one GPU."""

    NVMLError = type("NVMLError", (Exception,), {})

    def __init__(self):
        self.broken = False

    def nvmlInit(self):  # noqa: N802
        pass

    def nvmlDeviceGetHandleByIndex(self, number):  # noqa: N802
        if number:
            raise self.NVMLError("no such GPU")
        return "handle"

    nvmlDeviceGetHandleByUUID = nvmlDeviceGetHandleByIndex  # noqa: N815

    def nvmlDeviceGetMemoryInfo(self, handle):  # noqa: N802
        if self.broken:
            raise self.NVMLError("GPU is lost")
        return SimpleNamespace(used=3 << 30, total=8 << 30)

    def nvmlDeviceGetUtilizationRates(self, handle):  # noqa: N802
        return SimpleNamespace(gpu=75)


@pytest.fixture
def nvml(monkeypatch):
    made = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", made)
    return made


def test_the_gpus_that_nvml_finds_are_measured(nvml):
    meter = UsageMeter(1, ["0", "7"])
    assert meter.measure().gpus == (GpuUsage("0", 0.75, 3 << 30, 8 << 30),)
    nvml.broken = True
    assert meter.measure().gpus == ()


def test_without_nvml_no_gpu_is_reported(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert UsageMeter(1, ["0"]).measure().gpus == ()
