"""Problems of executors, by their environments."""

import sys
from dataclasses import replace

import pytest

from tensorflowonspark.driver.executor_checks import problems_of
from tensorflowonspark.task import environment
from tensorflowonspark.task.environment import ExecutorEnvironment, own_environment
from tensorflowonspark.task.fabric import Fabric, InfiniBandPort, NcclChoice
from tests.support.commands import run_python

VERSIONS = {
    "tensorflowonspark": "3.0.0",
    "tensorflow": "2.21.0",
    "keras": "3.15.1",
    "pyarrow": "26.0.1",
    "numpy": "2.4.6",
}
OWN = ExecutorEnvironment("edge", "", "3.12.1", VERSIONS, {}, 0, 1 << 30, 1 << 20, "")


def there(**changes):
    return replace(OWN, host="h1", address="10.0.0.1", **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"versions": {**VERSIONS, "keras": "3.10.0"}},
            "keras 3.10.0, and on this machine 3.15.1: install one version",
        ),
        (
            {"problems": ("Keras 3.99.0 has no keras.src.gone: fit on several workers needs it",)},
            "Keras 3.99.0 has no keras.src.gone: fit on several workers needs it",
        ),
        (
            {"versions": {**VERSIONS, "tensorflowonspark": "2.2.5"}},
            "TensorFlowOnSpark 2.2.5 is installed in the place of",
        ),
        (
            {"versions": {**VERSIONS, "numpy": "1.26.4"}},
            'pyarrow 26.0.1 refuses NumPy 1.26.4: pip install "pyarrow<26"',
        ),
        (
            {"errors": {"tensorflow": "No module"}},
            "tensorflow can't be imported (No module): install it there, set PYSPARK",
        ),
        (
            {"unreachable": "timed out"},
            "it can't connect to the driver (timed out): open the driver's ports in firewalls",
        ),
        ({"gpus": 2, "shared_memory": 64 << 20}, "/dev/shm has 64 MiB, too few for 2 GPUs"),
        ({"open_files": 512}, "a process may open 512 files: raise the hard limit"),
    ],
)
def test_a_problem_names_the_host_and_the_remedy(changes, message):
    (problem,) = problems_of(OWN, [OWN, there(**changes)])
    assert problem.startswith(f"h1: {message}")


def test_a_problem_of_many_executors_is_one_line():
    executors = [replace(there(open_files=512), host=f"h{number}") for number in range(5)]
    (problem,) = problems_of(OWN, executors)
    assert problem.startswith("h0, h1, h2 and 2 more: a process may open 512 files")


def test_executors_whose_keras_has_two_backends():
    executors = [there(backend="tensorflow"), replace(there(backend="jax"), host="h2")]
    (problem,) = problems_of(replace(OWN, backend="torch"), executors)
    assert problem.startswith("h2: Keras has the backend jax (by KERAS_BACKEND or ~/.keras/keras.json), and tensorflow")
    assert problems_of(OWN, [there(backend="jax"), there(backend=""), there(backend="jax")]) == []


def test_equal_executors_and_another_numpy_are_no_problem():
    assert problems_of(OWN, [there(), there(versions={**VERSIONS, "numpy": "2.0.0"}), there(open_files=-1)]) == []


PORT = InfiniBandPort("mlx5_0", 1, "ACTIVE", "200 Gb/sec (4X HDR)", "InfiniBand")
SOCKETS = NcclChoice("2.27.3", "Socket", ("eth0",))


@pytest.mark.parametrize(
    ("fabric", "message"),
    [
        (
            Fabric(("H100",), (PORT,), 8 << 20, None),
            "a process may lock 8192 KiB of memory, and RDMA locks its buffers",
        ),
        (Fabric((), (replace(PORT, state="DOWN"),), 0, None), "port 1 of mlx5_0 is DOWN: see ibstat"),
        (
            Fabric(("H100",), (PORT,), -1, SOCKETS),
            "NCCL uses sockets (eth0) although mlx5_0 is active: see NCCL_IB_DISABLE",
        ),
        (Fabric(("H100",), (), 0, NcclChoice(problem="no libnccl")), "NCCL can't sum a small array over the GPUs (no"),
    ],
)
def test_a_problem_of_what_connects_gpus(fabric, message):
    (problem,) = problems_of(OWN, [there(fabric=fabric)])
    assert problem.startswith(f"h1: {message}")


def test_what_connects_gpus_is_no_problem():
    over_infiniband = NcclChoice("2.27.3", "IB", ("mlx5_0:1/IB",), gpudirect=True)
    healthy = [Fabric(("H100",), (PORT,), -1, over_infiniband), Fabric(("H100",), (), 1 << 16, SOCKETS)]
    assert problems_of(OWN, [there(fabric=each) for each in [*healthy, None]]) == []


def test_a_package_that_kills_its_process_is_named(monkeypatch, tmp_path):
    (tmp_path / "fatal.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    (tmp_path / "broken.py").write_text("raise ImportError('no libx.so\\nsecond line')")
    (tmp_path / "fine.py").write_text("__version__ = '1.2'; print('chatter')")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    monkeypatch.setattr(environment, "PACKAGES", ("fine", "broken", "fatal", "fine"))
    found = own_environment(("127.0.0.1", 1))
    assert found["versions"] == {"fine": "1.2"}
    assert found["errors"] == {"broken": "ImportError: no libx.so", "fatal": "the import ended with SIGILL"}
    assert "refused" in found["unreachable"]


@pytest.mark.slow
def test_an_environment_has_the_backend_and_what_is_untested(monkeypatch, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import wrapt\n"
        "wrapt.register_post_import_hook(lambda keras: setattr(keras, '__version__', '3.99.1'), 'keras')\n"
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    found = own_environment()
    assert (found["errors"], found["problems"], found["backend"]) == ({}, [], "tensorflow")
    assert [note for note in found["notes"] if "bytecode" not in note] == [
        'Keras 3.99.1 is newer than what was tested ("keras>=3.10,<3.17"): names that it lacks are reported, but not '
        "what it does in another way"
    ]


@pytest.mark.slow
def test_a_backend_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setattr(environment, "PACKAGES", ("keras",))
    monkeypatch.setenv("KERAS_BACKEND", "mxnet")
    assert own_environment()["errors"]["keras"].endswith("; KERAS_BACKEND=mxnet")


def test_the_environment_needs_the_standard_library_alone():
    """Executors run these functions where nothing is installed."""
    program = (
        "import sys; before = set(sys.modules)\n"
        "import tensorflowonspark.task.environment\n"
        "roots = {name.partition('.')[0] for name in set(sys.modules) - before} - {'tensorflowonspark'}\n"
        "print(sorted(name for name in roots if name not in sys.stdlib_module_names))"
    )
    assert run_python(program).strip() == "[]"
