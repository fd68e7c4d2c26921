"""Keras and TensorFlow as they are in a node: what is replaced there, and when."""

import sys
from types import ModuleType

import pytest

from tensorflowonspark.keras import fitting, hooks
from tests.support.commands import run_python


@pytest.mark.slow
@pytest.mark.parametrize("first", ["steps", "optimizers"])
def test_a_program_that_imports_a_repair_before_tensorflow_is_repaired(first):
    """As a pickle does where the driver has imported that repair: TensorFlow imports Keras in the midst of it.

    No import starts TensorFlow's runtime.
    """
    program = f"""
from tensorflowonspark.keras import hooks; hooks.install()
import tensorflowonspark.keras.{first}
import keras
for name in ("Model.train_step", "Optimizer._all_reduce_sum_gradients"):
    owner, attribute = hooks.place_of(keras, name)
    assert vars(owner)[attribute].__code__.co_filename == hooks.__file__, name
from tensorflow.python.eager import context
assert not context.context()._initialized
"""
    run_python(program)


def test_generated_sources_go_with_the_process(tmp_path):
    import tensorflow as tf
    from tensorflow.python.autograph.pyct import loader

    from tensorflowonspark.keras.hooks import keep_sources

    before = loader.tempfile
    keep_sources(str(tmp_path))
    try:
        assert int(tf.function(lambda x: x + 1 if x > 0 else x)(tf.constant(1))) == 2
        assert list(tmp_path.glob("__autograph_generated_file*.py"))
        keep_sources(str(tmp_path / "gone"))
        assert int(tf.function(lambda x: x - 1 if x > 0 else x)(tf.constant(1))) == 0
    finally:
        loader.tempfile = before


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["rows", "weights", "padding", "tokens"])
def test_tf_keras_divides_losses_by_what_all_replicas_have(kind):
    program = """
import sys
from tensorflowonspark.keras import hooks; hooks.install()
import numpy as np, tensorflow as tf, tf_keras
devices = [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], devices)
ones, tokens = np.ones((4, 1), "f4"), np.tri(4, 3, dtype="f4")[:, :, None]  # 1, 2, 3 and 3 tokens
x, y, weights = {
    "rows": (ones[:3], [9, 0, 0], None),
    "weights": (ones[:3], [9, 0, 1], [1, 3, 2]),
    "padding": (ones, [9, 0, 1, 5], [1, 1, 0.5, -0.0]),
    "tokens": (tokens[:3], np.arange(1, 4)[:, None, None] * tokens[:3], None),
}[sys.argv[1]]
real = np.array([not (each == 0 and np.signbit(each)) for each in weights or [1] * len(x)])
def learned(strategy, *data):
    x, y, weights = (each if each is None else np.array(each, "f4") for each in data)
    with strategy.scope():
        first = [tf_keras.layers.Masking()] if x.ndim == 3 else []
        dense = tf_keras.layers.Dense(1, use_bias=False, kernel_initializer="ones", kernel_regularizer="l2")
        model = tf_keras.Sequential([tf_keras.layers.Input(x.shape[1:]), *first, dense])
        model.compile(tf_keras.optimizers.SGD(0.1), "mse")
    history = model.fit(x, y, sample_weight=weights, batch_size=4, epochs=2, shuffle=False, verbose=0).history
    return [dense.kernel.numpy().item(), *history["loss"]]
two = learned(tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]), x, y, weights)
of_real = (each if each is None else np.array(each)[real] for each in (x, y, weights))
one = learned(tf.distribute.get_strategy(), *of_real)
shown = 1 if x.ndim == 3 else 3  # tf_keras shows each replica's mean over its own time steps
np.testing.assert_allclose(two[:shown], one[:shown], rtol=1e-5)
"""
    run_python(program, kind, TF_USE_LEGACY_KERAS="1")


@pytest.mark.slow
@pytest.mark.parametrize("converted", [False, True], ids=["tf_keras as it is", "tf_keras as AutoGraph converts it"])
def test_a_loss_of_tf_keras_may_branch_by_its_values(tmp_path, converted):
    """Up to TensorFlow 2.16 AutoGraph converts the functions of tf_keras, too; padding is left out in both cases."""
    (tmp_path / "branches.py").write_text(f"""
from tensorflowonspark.keras import hooks; hooks.install()
import numpy as np, tensorflow as tf, tf_keras
from tensorflow.python.autograph.core import config
if {converted}:
    config.CONVERSION_RULES = tuple(each for each in config.CONVERSION_RULES if not each.matches("tf_keras"))
def loss_of_rows(y, predicted):
    distances = tf.abs(y - predicted)[:, 0]
    if tf.reduce_max(distances) > 0.5:
        distances = distances * 2.0
    return distances
model = tf_keras.Sequential([tf_keras.Input((1,)), tf_keras.layers.Dense(1, kernel_initializer="ones")])
model.compile(tf_keras.optimizers.SGD(0.0), loss_of_rows, metrics=["mae"])
y, weights = np.array([[2.0], [2.0], [9.0], [9.0]]), np.array([1.0, 1.0, -0.0, -0.0], "f4")
history = model.fit(np.ones((4, 1)), y, sample_weight=weights, verbose=0).history
assert history == {{"loss": [2.0], "mae": [1.0]}}, history
""")
    run_python("import sys; sys.path.insert(0, sys.argv[1]); import branches", str(tmp_path))


def test_steps_of_a_division_are_rounded_down():
    bound = {"steps_per_epoch": 0.9 * 100 / 8, "validation_steps": 3, "x": 2.5}
    fitting._take_whole_steps(bound)
    assert bound == {"steps_per_epoch": 11, "validation_steps": 3, "x": 2.5}


def test_a_function_is_wrapped_also_where_it_was_imported_by_name_before(monkeypatch):
    def draw(text):
        return int(text)

    library, part, other = (ModuleType(name) for name in ("library_of_mine", "library_of_mine.part", "another_one"))
    for module in (library, part, other):
        monkeypatch.setitem(sys.modules, module.__name__, module)
        module.draw = draw
    hooks.wrap(library, "draw", lambda wrapped, _, /, text: wrapped(text) + 1)
    assert [each.draw("1") for each in (library, part, other)] == [2, 2, 1]


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_autograph_warns_of_no_function_that_is_wrapped(tmp_path):
    (tmp_path / "steps.py").write_text("""
import logging, sys
from tensorflowonspark.keras import hooks; hooks.install()
import keras, numpy as np, tensorflow as tf, tf_keras
warned = []
logging.getLogger("tensorflow").addFilter(lambda record: warned.append(record.getMessage()))
x, y = tf.ones((4, 2)), tf.ones((4, 1))
tf.data.Dataset.from_tensor_slices([2.0]).save(sys.argv[1] + "/rows")
def own(library):
    class Own(library.Model):
        def train_step(self, data):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self(data[0]) - data[1]) ** 2)
            tape.gradient(loss, self.trainable_variables)
            return super().train_step(data)
        def test_step(self, data):
            return super().test_step(data)
    input = library.layers.Input((2,))
    model = Own(input, library.layers.Dense(1)(input))
    model.compile(library.optimizers.SGD(0.1), "mse", metrics=["mae"])
    model.fit(x, y, verbose=0)
    return model
model, mean, total = own(keras), keras.metrics.Mean(), keras.metrics.Sum()
@tf.function
def step():
    with tf.GradientTape() as tape:
        loss = model.compute_loss(x, y, model(x, training=True))
    if loss > 0.0:
        mean.update_state(loss)
        total.update_state(loss)
    gradients = tape.gradient(loss, model.trainable_variables)
    model.optimizer.apply(gradients, model.trainable_variables)
    model.train_step((x, y))
    model.test_step((x, y))
@tf.function
def read():
    found = 0.0
    for each in tf.data.Dataset.load(sys.argv[1] + "/rows", tf.TensorSpec((), tf.float32)).prefetch(1):
        found += each
    return found
step()
assert mean.result() > 0.0 and total.result() > 0.0 and read() == 2.0
own(tf_keras)
assert warned == [], warned
""")  # AutoGraph reads the source
    run_python("import sys; sys.path.insert(0, sys.argv[1]); import steps", str(tmp_path))
