"""The private names of TensorFlow and Keras: all are there, and what a node does without one."""

import ast
import importlib.metadata
import json
import re
import subprocess
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import keras
import pytest

from tensorflowonspark.errors import RequirementError
from tensorflowonspark.keras import private_names, resuming_callback
from tensorflowonspark.keras.hooks import wrap
from tensorflowonspark.keras.private_names import Repair
from tensorflowonspark.keras.repairs import JAX_REPAIRS, REPAIRS, all_problems
from tests.support import private_uses
from tests.support.paths import ROOT

# A process with hooks, in which names are missing when their modules have been imported.
_WITHOUT = """
import logging, wrapt
logging.basicConfig(format="%(message)s")
def remove_attributes(module):
    del module.get_attr_skipset
def remove_classes(module):
    del module.make_class_weight_map_fn
wrapt.register_post_import_hook(remove_attributes, "keras.src.saving.saving_lib")
wrapt.register_post_import_hook(remove_classes, "keras.src.trainers.data_adapters.tf_dataset_adapter")
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

# A process with hooks, which notes what they wrap.
_WRAPPING = """
import inspect, json
from tensorflowonspark.keras import hooks, repairs
used, wrap = [], hooks.wrap
def noting(module, name, wrapper):
    if inspect.ismodule(module):  # else it is a class that a repair has found by a declared name
        used.append((module.__name__, name))
    wrap(module, name, wrapper)
hooks.wrap = noting
hooks.install()
import tensorflow, keras, tf_keras
tables = {hooks.keras_backend(), "tensorflow"}  # the repairs of TensorFlow itself are made for any backend
of_tables = [each for name in tables for each in repairs.OF_BACKENDS[name]]
declared = {(each.module, name) for each in [repairs.CONTEXT, *of_tables] for name in each.names}
print(json.dumps([len(used) > 50, sorted(set(used) - declared)]))
"""

# One more needs a reason. Those of tf_keras, which is no longer developed, are counted apart.
_MOST, _MOST_OF_TF_KERAS = 62, 15


def test_each_private_name_that_is_used_is_declared():
    assert private_uses.undeclared() == {}


def test_private_names_are_few():
    of_tf_keras = [each for each in private_uses.declared() if each.startswith("tf_keras.")]
    assert len(private_uses.declared()) - len(of_tf_keras) <= _MOST
    assert len(of_tf_keras) <= _MOST_OF_TF_KERAS


@pytest.mark.parametrize(
    ("source", "used"),
    [
        ("from keras.src import backend\nbackend.KerasTensor", {"keras.src.backend.KerasTensor"}),
        ("from keras.src.x import Known", {"keras.src.x.Known"}),
        ("import tensorflow.python.eager", {"tensorflow.python.eager"}),
        ('find("tf_keras.src.callbacks")', {"tf_keras.src.callbacks"}),
        ("model._one = model._two", {"_one", "_two"}),
        ("self._own = 1\nself._own + self._other", {"_other"}),
        ('getattr(model, "_flat")', {"_flat"}),
        ('wrap(module, "Class._method", f)', {"_method"}),
        ('getattr(layer, f"_{name}")', {"_{name}"}),
        ('"""About model._words."""\nmodel.fit("a _word of text")', set()),
    ],
)
def test_private_names_are_found_in_the_syntax(source, used):
    assert {name for name, _ in private_uses.used_in(ast.parse(source))} == used


def test_the_installed_versions_have_all_names():
    assert list(all_problems()) == []


def test_every_repair_declares_names():
    assert [repair.function for repair in (*REPAIRS, *JAX_REPAIRS) if not repair.names] == []


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_every_name_that_is_wrapped_is_declared(monkeypatch, backend):
    if backend == "jax":
        pytest.importorskip("jax", reason="JAX is installed by users")
    monkeypatch.setenv("KERAS_BACKEND", backend)
    done = subprocess.run([sys.executable, "-c", _WRAPPING], capture_output=True, text=True, check=True, timeout=110)
    assert json.loads(done.stdout) == [True, []]


def test_a_name_that_is_missing_and_not_declared_is_an_error_with_the_version():
    with pytest.raises(
        RequirementError, match=r"Keras 3\.\d+\.\S+ has no keras\.Model\.gone: the repair in .* needs it"
    ):
        wrap(keras, "Model.gone", lambda wrapped: wrapped())


@pytest.mark.slow
def test_names_that_results_depend_on_refuse_several_replicas_and_others_are_warned_of():
    done = subprocess.run([sys.executable, "-c", _WITHOUT], capture_output=True, text=True, check=True, timeout=110)
    version = importlib.metadata.version("keras")
    required, other = (
        f'Keras {version} has no keras.src.{name} needs it; install "keras>=3.10,<3.17", or a release of '
        "TensorFlowOnSpark for this version"
        for name in (
            "saving.saving_lib.get_attr_skipset: saving a model on several workers",
            "trainers.data_adapters.tf_dataset_adapter.make_class_weight_map_fn: class weights beside sample weights",
        )
    )
    assert done.stdout.splitlines() == ["one replica trains", f"refused: {required}"]
    assert {required, other} <= set(done.stderr.splitlines())


@pytest.mark.parametrize(
    ("library", "version", "problem"),
    [
        ("keras", "3.16.0.dev2026102704", None),
        ("keras", "3.9.2", "Keras 3.9.2 is older than what was tested"),
        ("keras", "3.17.0", 'Keras 3.17.0 is newer than what was tested ("keras>=3.10,<3.17")'),
        ("tensorflow", "2.23.0-dev20261102", "TensorFlow 2.23.0-dev20261102 is newer than what was tested"),
        ("tf_keras", "fork", "tf_keras fork is not among what was tested"),
        ("jax", "0.9.2", "JAX 0.9.2 is older than what was tested"),
        ("jax", "0.10.0", None),
        ("jax", "0.12.1", None),
        ("jax", "0.13", "JAX 0.13 is newer than what was tested"),
    ],
)
def test_a_version_that_was_not_tested_is_one_warning(monkeypatch, caplog, library, version, problem):
    monkeypatch.setattr(private_names, "_problems", [])
    monkeypatch.setitem(sys.modules, library, SimpleNamespace(__version__=version))
    private_names.warn_of_untested(library)
    assert len(caplog.messages) == (problem is not None)
    assert all(text.startswith(problem) for text in caplog.messages)
    with pytest.raises(RequirementError) if version == "3.9.2" else nullcontext():
        private_names.refuse_replicas()


def test_a_keras_that_is_too_old_is_a_problem_to_a_check(monkeypatch):
    """It is told before the names that are missing, which may be none."""
    monkeypatch.setitem(private_names.TESTED, "keras", "keras>=3.99,<4")
    assert re.match(
        r'Keras 3\.\d+\.\S+ is too old for several replicas, .*: install "keras>=3\.99,<4"', next(all_problems())
    )


def test_the_extras_end_with_the_newest_version_that_was_tested():
    lines = ROOT.joinpath("pyproject.toml").read_text().splitlines()
    for library, tested in private_names.TESTED.items():
        bound = tested.rpartition("<")[2]
        wanted = [line for line in lines if re.search(rf'"{library}>=', line) and "=='3.11'" not in line]
        assert wanted
        assert all(re.search(rf'"{library}>=[^";]*,<{re.escape(bound)}[";]', line) for line in wanted), wanted


def test_a_missing_module_is_named(monkeypatch, caplog):
    monkeypatch.setattr(private_names, "_problems", [])
    monkeypatch.setitem(sys.modules, "keras", SimpleNamespace(__version__="3.99.0", __path__=[]))
    private_names.test_modules(
        [Repair("keras.src.gone", "fit on several workers", ("name",), "functions:make_functions")]
    )
    with pytest.raises(RequirementError, match=r"^Keras 3\.99\.0 has no keras\.src\.gone: fit on several workers"):
        private_names.refuse_replicas()
    assert "Keras 3.99.0 has no keras.src.gone" in caplog.text


def test_a_training_goes_on_at_its_epoch_or_says_why_it_can_not(monkeypatch):
    keras = pytest.importorskip("keras")
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    resuming_callback._begin_at(model, 3, 0)
    assert model._initial_epoch == 3
    monkeypatch.setattr(private_names, "_has", lambda *_: False)
    with pytest.raises(RequirementError, match=r"has no keras\.Model\(\)\._initial_epoch: a training that goes on"):
        resuming_callback._begin_at(model, 3, 0)
