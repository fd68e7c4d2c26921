"""compat, util, gpu_info, marker and TFManager."""

import itertools
import os
import socket
from types import SimpleNamespace

import fsspec
import keras
import numpy as np
import pyspark
import pytest
import tensorflow as tf
import tf_keras

import tensorflowonspark as tfos
from tensorflowonspark import TFManager, compat, gpu_info, marker, util
from tests.support.commands import run_python


def predicted(directory, **inputs):
    signature = tf.saved_model.load(str(directory)).signatures["serving_default"]
    return {name: each.numpy().tolist() for name, each in signature(**inputs).items()}


def test_the_chief_exports_a_model_of_keras_3(tmp_path):
    model = keras.Sequential([keras.Input((2,), name="x"), keras.layers.Dense(1, kernel_initializer="ones")])
    compat.export_saved_model(model, str(tmp_path / "model"), is_chief=True)
    assert predicted(tmp_path / "model", x=tf.constant([[1.0, 2.0]])) == {"output_0": [[3.0]]}


@pytest.mark.deep
def test_a_model_of_keras_2_keeps_its_names(tmp_path):
    layers = [tf_keras.layers.Dense(1, kernel_initializer="ones", input_shape=(2,), name="dense")]
    model = tf_keras.Sequential(layers)
    (tmp_path / "model").mkdir()
    (tmp_path / "model/older").touch()
    compat.export_saved_model(model, str(tmp_path / "model"), True)
    assert predicted(tmp_path / "model", dense_input=tf.constant([[1.0, 2.0]])) == {"dense": [[3.0]]}
    assert not (tmp_path / "model/older").exists()
    again = tf_keras.models.load_model(tmp_path / "model")
    assert again.predict(np.ones((1, 2)), verbose=0).tolist() == [[2.0]]


class Doubling(tf.Module):
    calls = 0

    @tf.function(input_signature=[tf.TensorSpec([None])])
    def double(self, x):
        Doubling.calls += 1
        return 2 * x


def test_a_module_on_any_file_system():
    compat.export_saved_model(Doubling(), "memory://exported/model", is_chief=True)
    files = fsspec.filesystem("memory")
    assert files.exists("/exported/model/saved_model.pb")
    files.rm("/exported", recursive=True)


def test_the_others_write_nothing_that_stays(tmp_path, monkeypatch):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{scratch},/nowhere")
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.export = None  # the others need not call it
    compat.export_saved_model(model, str(tmp_path / "model"))
    before = Doubling.calls
    compat.export_saved_model(Doubling(), str(tmp_path / "model"))
    assert Doubling.calls > before  # what all workers do together was done
    assert os.listdir(tmp_path) == ["scratch"]
    assert os.listdir(scratch) == []


def test_no_auto_sharding():
    options = tf.data.Options()
    compat.disable_auto_shard(options)
    assert options.experimental_distribute.auto_shard_policy == tf.data.experimental.AutoShardPolicy.OFF
    assert tf.data.Dataset.range(3).with_options(options).options() == options


def test_whether_tensorflow_sees_a_gpu():
    assert compat.is_gpu_available() is (len(tf.config.list_physical_devices("GPU")) > 0)


@pytest.fixture
def gpus(tmp_path, monkeypatch):
    """Put an nvidia-smi that lists four GPUs on the PATH; return a function that sets those in use."""
    script, busy = tmp_path / "nvidia-smi", tmp_path / "busy"
    script.write_text(
        "#!/bin/sh\ncase $1 in\n"
        "--query-gpu=*) printf '0, GPU-0\\n1, GPU-1\\n2, GPU-2\\n3, GPU-3\\n';;\n"
        f"--query-compute-apps=*) cat {busy};;\nesac\n"
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(gpu_info, "_PAUSE_SECONDS", 0)

    def in_use(*indices):
        busy.write_text("".join(f"GPU-{index}\n" for index in indices))

    in_use()
    return in_use


@pytest.fixture
def visible(monkeypatch):
    """Return a function that calls `single_node_env` as in a new process and returns its visible GPUs."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "what was there before")
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {}}')

    def prepared(*arguments, **named):
        util._choose.cache_clear()
        util.single_node_env(*arguments, **named)
        assert "TF_CONFIG" not in os.environ
        return os.environ["CUDA_VISIBLE_DEVICES"]

    yield prepared
    util._choose.cache_clear()


def test_free_gpus_by_position(gpus):
    assert gpu_info.is_gpu_available() is True
    assert gpu_info.get_gpus(2, 0) == "0,1"
    assert gpu_info.get_gpus(2, worker_index=1, format=gpu_info.AS_LIST) == ["2", "3"]
    gpus(0, 2)
    assert gpu_info.get_gpus(2) == "1,3"
    assert gpu_info.get_gpus(1, 3) == "3"
    assert gpu_info.get_gpus(1) in ("1", "3")


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ((3,), "3 free GPUs are wanted, and this host has 4; free are 0, 3 "),
        ((1, 1), "1 free GPUs are wanted, and this host has 4, of which 1 are for worker_index=1; free are 0, 3 "),
        ((2, 2), "2 free GPUs are wanted, and this host has 4, of which none are for worker_index=2; free are 0, 3"),
    ],
)
def test_too_few_free_gpus(gpus, wanted, message):
    gpus(1, 2)
    with pytest.raises(tfos.RequirementError, match=message):
        gpu_info.get_gpus(*wanted)


def test_a_gpu_that_becomes_free_is_waited_for(gpus, monkeypatch):
    gpus(0, 1, 2, 3)
    slept = []
    monkeypatch.setattr(gpu_info, "time", SimpleNamespace(sleep=lambda seconds: slept.append(gpus(0, 1, 2))))
    assert gpu_info.get_gpus() == "3"
    assert len(slept) == 1


def test_a_format_that_there_is_not(gpus):
    with pytest.raises(tfos.SpecError, match="format='tuple': expected 'string' or 'list'"):
        gpu_info.get_gpus(format="tuple")


def test_a_host_without_gpus(monkeypatch, visible):
    monkeypatch.setenv("PATH", "/nowhere")
    assert gpu_info.is_gpu_available() is False
    assert visible(1) == ""
    with pytest.raises(tfos.RequirementError, match="this host has 0; free are none"):
        gpu_info.get_gpus()


NODES = ["10.0.0.10:4000", "10.0.0.1:4000", "10.0.0.1:4001", "10.0.0.100:4000", "10.0.0.1:4002"]


@pytest.mark.parametrize("order", list(itertools.permutations([1, 2, 4])))
def test_no_two_nodes_of_a_host_take_one_gpu(gpus, visible, order):
    """Whoever comes first, and though the addresses of other hosts begin like this one's."""
    taken = []
    for worker_index in order:
        taken += visible(1, worker_index, NODES).split(",")
        gpus(*taken)
    assert len(set(taken)) == 3


def test_a_node_alone_on_its_host_takes_any_that_is_free(gpus, visible):
    gpus(0, 1, 3)
    assert visible(1, 0, NODES) == "2"
    assert visible(1, 3, NODES) == "2"
    assert visible() == "2"


def test_what_somebody_else_uses_is_passed_over(gpus, visible):
    nodes = ["h1", "h1"]
    gpus(0)
    assert [visible(1, index, nodes) for index in range(2)] == ["2", "1"]
    gpus(0, 2)
    with pytest.raises(tfos.RequirementError, match="of which 0, 2 are for node 0 of 2; free are 1, 3"):
        visible(1, 0, nodes)


def test_a_process_that_is_prepared_again_keeps_its_gpus(gpus, visible):
    assert visible(2, 1) == "2,3"
    gpus(2, 3)  # by itself
    util.single_node_env(2, 1)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "2,3"


def test_none_if_none_is_wanted(gpus, visible):
    assert visible(0) == ""
    assert visible(num_gpus=0, worker_index=1, nodes=NODES) == ""


def test_what_spark_gave_is_taken(gpus, visible, monkeypatch):
    task = SimpleNamespace(resources=lambda: {"gpu": SimpleNamespace(addresses=["5", "7"])})
    monkeypatch.setattr(pyspark.TaskContext, "get", lambda: task)
    assert visible(2) == "5,7"
    assert visible(1, 0, NODES) == "5"


def test_a_node_that_there_is_not(visible):
    with pytest.raises(tfos.SpecError, match="worker_index=5: there are 5 nodes"):
        visible(1, 5, NODES)


def test_the_address_of_this_machine(monkeypatch):
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.2")
    assert util.get_ip_address() == "127.0.0.2"
    monkeypatch.setenv("SPARK_LOCAL_IP", "0.0.0.0")
    with socket.socket() as server:
        server.bind((util.get_ip_address(), 0))  # only an address of one's own can be


def test_markers():
    assert isinstance(marker.EndPartition(), marker.Marker)


def test_queues_are_no_more():
    with pytest.raises(AttributeError, match=r"'start', .*: use ctx.get_data_feed\(\) .* tensorflowonspark.Cluster"):
        TFManager.start(b"key", ["input"])
    assert not hasattr(TFManager, "__wrapped__")


def test_none_of_them_loads_tensorflow():
    program = (
        "import sys\n"
        "from tensorflowonspark import TFManager, compat, dfutil, gpu_info, marker, util\n"
        "print([name for name in ('tensorflow', 'keras', 'pyspark') if name in sys.modules])"
    )
    assert run_python(program).strip() == "[]"
