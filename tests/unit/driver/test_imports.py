"""What a program is expected to import, by its text."""

import pytest

from tensorflowonspark.config import ClusterConfig, ClusterSpec
from tensorflowonspark.driver.imports import expect_imports
from tensorflowonspark.driver.program import serialize_program


def expected(function):
    """Return whether a framework is expected to be imported, and whether nodes may be forked."""
    config = ClusterConfig(ClusterSpec(1), serialize_program(function, None), warm_nodes=True)
    config = expect_imports(config, function)
    return config.imports_framework, config.warm_nodes


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("import tensorflow as tf", (True, True)),
        ("from keras import layers", (True, True)),
        ("import tf_keras", (True, True)),
        ("import jax", (True, True)),
        ("import tensorflowonspark as tfos", (False, True)),
        ("import torch", (False, True)),
        ("import os, keras\nprint(os.environ['TF_CONFIG'])", (True, True)),
        ("import os\nos.environ['TF_CPP_MIN_LOG_LEVEL'] = '3'\nimport tensorflow", (True, True)),
        ("import os\nos.environ['KERAS_BACKEND'] = 'jax'\nimport keras", (True, False)),
        ("import os\nos.environ.update(TF_ENABLE_ONEDNN_OPTS='0')\nimport tensorflow", (True, False)),
        ("import os\nos.putenv('OMP_NUM_THREADS', '1')\nimport tensorflow", (True, False)),
        ("import keras\nKERAS_DIRECTORY = 'models'", (True, True)),
    ],
)
def test_scripts(tmp_path, text, wanted):
    path = tmp_path / "train.py"
    path.write_text(text)
    assert expected(path) == wanted


def test_functions_of_the_main_program():
    def names_it(args, ctx):
        import tensorflow

        return tensorflow

    def does_not(args, ctx):
        return args

    def sets_a_variable(args, ctx):
        import os

        os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
        import keras

        return keras

    for function in (names_it, does_not, sets_a_variable):
        function.__module__ = "__main__"
    assert [expected(each) for each in (names_it, does_not, sets_a_variable)] == [
        (True, True),
        (False, True),
        (True, False),
    ]


def test_functions_that_are_pickled_by_name(tmp_path, monkeypatch):
    (tmp_path / "training_of_mine.py").write_text("import keras\ndef train(args, ctx): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    import training_of_mine

    assert expected(training_of_mine.train) == (True, True)
    monkeypatch.setattr(training_of_mine, "__file__", str(tmp_path / "of_a_zip_file.py"))
    assert expected(training_of_mine.train) == (False, True)
