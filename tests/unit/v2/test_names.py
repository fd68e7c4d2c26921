"""The public names of 2.x: all exist, have one identity, and name a replacement if they are gone."""

import importlib
import pickle
import subprocess
import sys
import warnings

import pytest

import tensorflowonspark
from tensorflowonspark import TFNode, TFSparkNode
from tensorflowonspark.v2 import deprecation

MODULES = [
    "TFCluster",
    "TFNode",
    "TFParallel",
    "TFManager",
    "TFSparkNode",
    "compat",
    "dfutil",
    "gpu_info",
    "marker",
    "pipeline",
    "reservation",
    "util",
]


@pytest.mark.deep
def test_all_modules_are_imported_as_they_were():
    program = "\n".join(
        [
            f"from tensorflowonspark import {', '.join(MODULES)}",
            *(f"import tensorflowonspark.{module}" for module in MODULES),
            "from tensorflowonspark.pipeline import TFEstimator, TFModel",
            "import sys",
            "assert tensorflowonspark.TFCluster is TFCluster",
            "assert 'tensorflow' not in sys.modules",
        ]
    )
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True)


@pytest.mark.parametrize("name", MODULES)
def test_each_module_has_one_identity(name):
    module = importlib.import_module(f"tensorflowonspark.{name}")
    assert module.__name__ == module.__spec__.name == f"tensorflowonspark.{name}"
    assert getattr(tensorflowonspark, name) is module
    for other in ("v2", "v2.names"):
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module(f"tensorflowonspark.{other}.{name}")
    files = [each.__name__ for each in list(sys.modules.values()) if getattr(each, "__file__", "") == module.__file__]
    assert files == [module.__name__]
    for public in module.__all__:
        value = getattr(module, public)
        if isinstance(value, type):  # stands where pickles look for it
            assert getattr(importlib.import_module(value.__module__), value.__name__) is value
            assert pickle.loads(pickle.dumps(value)) is value


def test_what_they_have_in_common_with_the_package_is_not_hidden():
    assert not set(MODULES) & {*tensorflowonspark.__all__, "frames", "ml", "keras"}


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: TFNode.start_cluster_server(None), "tf.distribute"),
        (lambda: TFNode.export_saved_model(None, "x", "serve", {}), "compat.export_saved_model"),
        (lambda: TFNode.next_batch(None, 3), r"ctx.get_data_feed\(\).next_batch"),
        (lambda: TFNode.batch_results(None, []), "batch_results"),
        (lambda: TFNode.terminate(None), "terminate"),
        (lambda: TFSparkNode.TFNodeContext().start_cluster_server(1), "tf.distribute"),
        (lambda: TFSparkNode.TFNodeContext().export_saved_model(None, "x", "serve", {}), "compat.export_saved_model"),
    ],
)
def test_what_was_of_tensorflow_1_names_what_to_use(call, words):
    with pytest.raises(NotImplementedError, match=f"is gone: use .*{words}"):
        call()


@pytest.mark.parametrize(
    ("module", "name"), [("TFSparkNode", "run"), ("reservation", "Server"), ("TFManager", "start")]
)
def test_internals_name_what_to_use(module, name):
    with pytest.raises(AttributeError, match=f"{name}.*(use|ctx.get_data_feed)"):
        getattr(importlib.import_module(f"tensorflowonspark.{module}"), name)


def test_one_warning_shows_the_new_way(monkeypatch):
    monkeypatch.setattr(deprecation, "_warned", set())

    def old_name():
        deprecation.warn_deprecated("old_name", "new_name()")

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        old_name()
        old_name()
    (warning,) = caught
    assert warning.category is DeprecationWarning
    assert "the new way is new_name()" in str(warning.message)
    assert warning.filename == __file__


def test_paths_of_the_default_file_system():
    ctx = TFSparkNode.TFNodeContext(defaultFS="hdfs://name:8020", working_dir="/work")
    assert TFNode.hdfs_path(ctx, "/a/b") == "hdfs://name:8020/a/b"
    assert TFNode.hdfs_path(ctx, "s3a://bucket/x") == "s3a://bucket/x"
    assert ctx.absolute_path("b").startswith("hdfs://name:8020/user/")
    local = TFSparkNode.TFNodeContext(working_dir="/work")
    assert TFNode.hdfs_path(local, "b") == "file:///work/b"
    assert (local.executor_id, local.job_name, local.task_index, local.cluster_spec) == (0, "", 0, {})
    TFNode.release_port(local)
