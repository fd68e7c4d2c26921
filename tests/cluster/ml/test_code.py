"""Classes and functions of the user's own: they travel with a model to nodes, Spark's workers and other processes."""

import json
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.masters("local"), pytest.mark.timeout(300)]

# A module beside the main program, that nothing but the driver can import; and one that it imports in turn.
HELPERS = "def twice(x):\n    return 2 * x\n"
LAYERS = """
import keras
import helpers

@keras.saving.register_keras_serializable(package="mine")
class Scale(keras.layers.Layer):
    def __init__(self, start="ones", penalty=None, act=None, **kwargs):
        super().__init__(**kwargs)
        self.start, self.penalty = keras.initializers.get(start), keras.regularizers.get(penalty)
        self.act = keras.activations.get(act)

    def build(self, shape):
        self.factor = self.add_weight(shape=(), initializer=self.start, regularizer=self.penalty, name="factor")

    def call(self, x):
        return self.act(helpers.twice(x) * self.factor)

    def get_config(self):
        serialize = keras.saving.serialize_keras_object
        own = {"start": serialize(self.start), "penalty": serialize(self.penalty), "act": serialize(self.act)}
        return {**super().get_config(), **own}

class Halves(keras.initializers.Initializer):
    def __call__(self, shape, dtype=None):
        return keras.ops.full(shape, 0.5, dtype)

@keras.saving.register_keras_serializable()
class Little(keras.regularizers.Regularizer):
    def __init__(self, by=0.0):
        self.by = by

    def __call__(self, x):
        return self.by * keras.ops.sum(x * x)

    def get_config(self):
        return {"by": self.by}

def build():
    inputs = keras.Input((1,))
    model = keras.Model(inputs, keras.layers.Dense(1, name="last")(Scale(Halves())(inputs)))
    model.compile("sgd", "mse")
    return model
"""
MAIN = """
import json, sys
sys.path.insert(0, {folder!r})
from pyspark.sql import SparkSession, functions as f
import keras
from layers import Halves, Little, Scale, build
from tensorflowonspark.ml import KerasEstimator, KerasModel
from tensorflowonspark.frames import map_blocks

FACTOR = 0.5

@keras.saving.register_keras_serializable(package="mine", name="squares")
def half_squares(y, p):
    return FACTOR * keras.ops.square(y - p)

def soft(x):
    return keras.ops.softplus(x) * 0 + x

class Worst(keras.metrics.Metric):
    def __init__(self, name="worst", **kwargs):
        super().__init__(name=name, **kwargs)
        self.value = self.add_weight(shape=(), initializer="zeros", name="value")

    def update_state(self, y, p, sample_weight=None):
        self.value.assign(keras.ops.maximum(self.value, keras.ops.max(keras.ops.abs(y - p))))

    def result(self):
        return keras.ops.convert_to_tensor(self.value)

class Slow(keras.optimizers.SGD):
    pass

class Steps(keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, step):
        return 0.05

    def get_config(self):
        return {{}}

class Tower(keras.Model):
    def train_step(self, data):
        return super().train_step(data)

class Note(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        logs["noted"] = 7.0

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
data = spark.range(0, 32, 1, 2).select(
    f.array((f.col("id") / 32).cast("float")).alias("features"), (f.col("id") / 16 + 1).cast("float").alias("label"))
inputs = keras.Input((1,))
scaled = keras.layers.Lambda(lambda x: x * FACTOR * 2)(Scale(Halves(), Little(0.001), soft)(inputs))
model = Tower(inputs, keras.layers.Dense(1, kernel_initializer="ones")(scaled))
model.compile(Slow(Steps()), half_squares, metrics=[Worst()])
est = KerasEstimator(model, epochs=3, batchSize=8, callbacks=[Note()], numWorkers=2)
fitted = est.fit(data)
assert isinstance(fitted.keras().layers[1], Scale), type(fitted.keras().layers[1]).__mro__
fitted.save({folder!r} + "/fitted")
est.save({folder!r} + "/est")
given = KerasEstimator(build, optimizer=Slow(0.1), loss=half_squares, metrics=[Worst()]).fit(data)
answers = [row.prediction for row in fitted.transform(data).collect()]
built = [row.prediction for row in given.transform(data).collect()]
blocks = [row[2][0] for row in map_blocks(model, data.withColumnRenamed("features", inputs.name)).collect()]
features = keras.ops.array([row.features for row in data.collect()])
expected = fitted.keras().predict(features, verbose=0).ravel().tolist()

# A class that is defined anew, as in a notebook, with the same weights.
class Plus(keras.layers.Layer):
    def call(self, x):
        return x + 1
first = KerasModel.from_keras(keras.Sequential([inputs, Plus()])).transform(data).first().prediction
class Plus(keras.layers.Layer):
    def call(self, x):
        return x + 2
second = KerasModel.from_keras(keras.Sequential([inputs, Plus()])).transform(data).first().prediction
print(json.dumps([answers, expected, fitted.history, len(built), len(blocks), [first, second], fitted.custom_code]))
"""
AGAIN = """
import json, sys
from pyspark.sql import SparkSession, functions as f
from tensorflowonspark.ml import KerasEstimator, KerasModel
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
data = spark.range(0, 32, 1, 2).select(
    f.array((f.col("id") / 32).cast("float")).alias("features"), (f.col("id") / 16 + 1).cast("float").alias("label"))
model = KerasModel.load({folder!r} + "/fitted")
assert "keras" not in sys.modules or not [name for name in sys.modules if name == "layers"]
print(repr(model))
answers = [row.prediction for row in model.transform(data).collect()]
further = KerasEstimator(initialModel=model, batchSize=8).fit(data).history
est = KerasEstimator.load({folder!r} + "/est").setEpochs(1).fit(data).history
print(json.dumps([answers, further, est]))
"""


def ran(program, folder, cwd):
    """Run a program as a notebook runs it: its main module is no file."""
    done = subprocess.run(
        [sys.executable, "-"], input=program.format(folder=str(folder)), capture_output=True, text=True, cwd=cwd,
        check=False,
    )  # fmt: skip
    assert not done.returncode, done.stderr[-4000:]
    return done.stdout.strip().splitlines()


@pytest.mark.slow
def test_all_that_can_be_custom_travels_from_a_notebook_to_nodes_workers_and_other_processes(tmp_path):
    folder, elsewhere = tmp_path / "mine", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    (folder / "helpers.py").write_text(HELPERS)
    (folder / "layers.py").write_text(LAYERS)
    told = json.loads(ran(MAIN, folder, elsewhere)[-1])
    answers, expected, history, built, blocks, (first, second), carries = told
    assert answers == pytest.approx(expected, rel=1e-5)
    assert history["loss"][-1] < history["loss"][0]
    assert history["noted"] == [7.0] * 3
    assert {"loss", "worst"} <= set(history)
    assert (built, blocks) == (32, 32)
    assert second == first + 1
    held = {"Scale", "mine>Scale", "Halves", "Little", "Custom>Little", "mine>squares", "soft", "Worst", "Slow"}
    assert held | {"Steps", "Tower"} <= set(carries)

    (metadata,) = (folder / "fitted" / "metadata").glob("part-*")
    assert set(json.loads(metadata.read_text())["model"]["code"]) == set(carries)
    (folder / "layers.py").unlink()
    *_, text, again = ran(AGAIN, folder, elsewhere)
    assert "with custom code: " in text
    assert "mine>Scale" in text
    same, further, est = json.loads(again)
    assert same == answers
    assert set(further) == {"loss", "worst"}
    assert "noted" in est
