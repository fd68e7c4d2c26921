"""The private names of TensorFlow and Keras: all are there, and what a node does without one."""

import importlib.metadata
import subprocess
import sys
from types import SimpleNamespace

import pytest

from tensorflowonspark.errors import RequirementError
from tensorflowonspark.keras import private_names
from tensorflowonspark.keras.private_names import JAX_REPAIRS, REPAIRS, Repair
from tensorflowonspark.keras.session import session

# A process with hooks, in which names are missing when their modules have been imported.
_WITHOUT = """
import logging, wrapt
logging.basicConfig(format="%(message)s")
def remove_attributes(module):
    del module.get_attr_skipset
def remove_update(module):
    del module.ProgbarLogger._update_progbar
wrapt.register_post_import_hook(remove_attributes, "keras.src.saving.saving_lib")
wrapt.register_post_import_hook(remove_update, "keras.src.callbacks.progbar_logger")
from tensorflowonspark.keras import hooks; hooks.install()
import keras, numpy as np, tensorflow as tf
from tensorflowonspark.errors import RequirementError
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
def fit():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(np.ones((4, 1)), np.ones((4, 1)), verbose=0)
fit()
print("one replica trains")
try:
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        fit()
    print("two replicas train")
except RequirementError as error:
    print("refused:", error)
"""


def test_the_installed_versions_have_all_names():
    assert list(private_names.all_problems()) == []


def test_every_repair_declares_names():
    assert [repair.function for repair in (*REPAIRS, *JAX_REPAIRS) if not repair.names] == []


@pytest.mark.slow
def test_names_that_results_depend_on_refuse_several_replicas_and_others_are_warned_of():
    done = subprocess.run([sys.executable, "-c", _WITHOUT], capture_output=True, text=True, check=True, timeout=110)
    version = importlib.metadata.version("keras")
    required, other = (
        f'Keras {version} has no keras.src.{name} needs it; install "keras>=3.10,<3.16", or a release of '
        "TensorFlowOnSpark for this version"
        for name in (
            "saving.saving_lib.get_attr_skipset: saving a model on several workers",
            "callbacks.progbar_logger.ProgbarLogger._update_progbar: the length of a progress bar",
        )
    )
    assert done.stdout.splitlines() == ["one replica trains", f"refused: {required}"]
    assert {required, other} <= set(done.stderr.splitlines())


def test_a_missing_module_is_named(monkeypatch, caplog):
    monkeypatch.setattr(session, "problems", [])
    monkeypatch.setitem(sys.modules, "keras", SimpleNamespace(__version__="3.99.0", __path__=[]))
    lost = Repair("keras.src.gone", "fit on several workers", ("name",), "functions:make_functions")
    private_names.test_modules([lost])
    with pytest.raises(RequirementError, match=r"^Keras 3\.99\.0 has no keras\.src\.gone: fit on several workers"):
        private_names.refuse_replicas()
    assert "Keras 3.99.0 has no keras.src.gone" in caplog.text
