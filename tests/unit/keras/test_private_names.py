"""The private names of TensorFlow and Keras: all are there, and what a node does without one."""

import ast
import importlib.metadata
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest

from tensorflowonspark.errors import RequirementError
from tensorflowonspark.keras import private_names
from tensorflowonspark.keras.private_names import JAX_REPAIRS, REPAIRS, Repair
from tensorflowonspark.keras.session import session
from tests.support import private_uses
from tests.support.paths import ROOT

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

_UNDECLARED = frozenset((  # which only ever becomes shorter
    "_MapDataset", "_OptionsDataset", "_ParallelMapDataset", "_PrefetchDataset", "_SnapshotDataset",
    "_accumulated_gradients", "_batches_count", "_batches_seen_since_last_saving", "_build_input_shape",
    "_call_has_training_arg", "_collective_key_base", "_collective_leader", "_collective_ops_server_def",
    "_communication_options", "_compile_loss", "_conform_to_outputs", "_context", "_current_epoch", "_dataset",
    "_deferred_initialize", "_device", "_device_iterators", "_distribute_strategy", "_drop_remainder",
    "_ema_weights_in_model", "_flat_metrics", "_flat_weighted_metrics", "_flatten_layers", "_flatten_y",
    "_frozen_vocab_size", "_functional", "_global_test_batch", "_global_train_batch", "_gradient_op_type",
    "_has_input_vocabulary", "_inbound_nodes", "_initial_epoch", "_initialized", "_is_adapted", "_iterations",
    "_iterator_resource", "_jax_state", "_keras_history", "_keras_mask", "_last_batch_seen", "_layout",
    "_learning_rate", "_lookup_layer", "_loss_tracker", "_losses", "_metrics", "_multi_device_iterator_resource",
    "_ngrams_arg", "_nodes_by_depth", "_num_workers", "_per_output_metrics", "_preprocess", "_reduction_axes",
    "_server_def", "_token_start_index", "_total_batches_seen", "_total_loss_mean", "_trainable_variables",
    "_training_state", "_user_losses", "_value", "_value_specs", "_variant_tensor", "_weighted_metrics", "_{name}",
    "keras.src.backend.common.stateless_scope.StatelessScope", "keras.src.distribution.distribution_lib.DataParallel",
    "keras.src.distribution.distribution_lib.distribution",
))  # fmt: skip
_MOST = 155  # private names of both libraries


def test_each_private_name_that_is_used_is_declared():
    assert {name: places for name, places in private_uses.undeclared().items() if name not in _UNDECLARED} == {}


def test_private_names_are_few():
    assert len(private_uses.declared()) + len(private_uses.undeclared()) <= _MOST


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
    assert list(private_names.all_problems()) == []


def test_every_repair_declares_names():
    assert [repair.function for repair in (*REPAIRS, *JAX_REPAIRS) if not repair.names] == []


@pytest.mark.slow
def test_names_that_results_depend_on_refuse_several_replicas_and_others_are_warned_of():
    done = subprocess.run([sys.executable, "-c", _WITHOUT], capture_output=True, text=True, check=True, timeout=110)
    version = importlib.metadata.version("keras")
    required, other = (
        f'Keras {version} has no keras.src.{name} needs it; install "keras>=3.10,<3.17", or a release of '
        "TensorFlowOnSpark for this version"
        for name in (
            "saving.saving_lib.get_attr_skipset: saving a model on several workers",
            "callbacks.progbar_logger.ProgbarLogger._update_progbar: the length of a progress bar",
        )
    )
    assert done.stdout.splitlines() == ["one replica trains", f"refused: {required}"]
    assert {required, other} <= set(done.stderr.splitlines())


@pytest.mark.parametrize(
    ("library", "version", "problem"),
    [
        ("keras", "3.16.0.dev2026102704", None),
        ("keras", "3.17.0", 'Keras 3.17.0 is newer than what was tested ("keras>=3.10,<3.17")'),
        ("tensorflow", "2.23.0-dev20261102", "TensorFlow 2.23.0-dev20261102 is newer than what was tested"),
        ("tf_keras", "fork", "tf_keras fork is not among what was tested"),
    ],
)
def test_a_version_that_was_not_tested_is_one_warning(monkeypatch, caplog, library, version, problem):
    monkeypatch.setitem(sys.modules, library, SimpleNamespace(__version__=version))
    private_names.warn_of_untested(library)
    assert len(caplog.messages) == (problem is not None)
    assert all(text.startswith(problem) for text in caplog.messages)


def test_the_extras_end_with_the_newest_version_that_was_tested():
    lines = ROOT.joinpath("pyproject.toml").read_text().splitlines()
    for library, tested in private_names.TESTED.items():
        bound = tested.rpartition("<")[2]
        wanted = [line for line in lines if re.search(rf'"{library}>=', line)]
        assert wanted
        assert all(re.search(rf'"{library}>=[^";]*,<{re.escape(bound)}[";]', line) for line in wanted), wanted


def test_a_missing_module_is_named(monkeypatch, caplog):
    monkeypatch.setattr(session, "problems", [])
    monkeypatch.setitem(sys.modules, "keras", SimpleNamespace(__version__="3.99.0", __path__=[]))
    lost = Repair("keras.src.gone", "fit on several workers", ("name",), "functions:make_functions")
    private_names.test_modules([lost])
    with pytest.raises(RequirementError, match=r"^Keras 3\.99\.0 has no keras\.src\.gone: fit on several workers"):
        private_names.refuse_replicas()
    assert "Keras 3.99.0 has no keras.src.gone" in caplog.text
