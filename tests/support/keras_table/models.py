"""Models: how they are made, put together, loaded, and what of them is trained."""

import keras
import numpy as np
import tensorflow as tf

from tests.support.keras_table.cells import (
    ON_TENSORFLOW,
    SYNCHRONOUS,
    SYNCHRONOUS_ON_TENSORFLOW,
    cell,
    on,
)
from tests.support.keras_table.columns import JAX, MULTI_WORKER, PARAMETER_SERVER
from tests.support.keras_table.training import linear, mapped, trained, weights_of


def _fitted(column, model, data=None, **compiled):
    """Compile a model that stands, and fit it."""
    with column.scope():
        model.compile(keras.optimizers.Adam(0.02), **{"loss": "mse", **compiled})
    history = model.fit(column.even() if data is None else data, epochs=2, verbose=0).history
    return {"weights": weights_of(model), "history": history}


def _functional():
    inputs = keras.Input((4,))
    hidden = keras.layers.Dense(4, activation="relu")(inputs)
    return keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Add()([hidden, inputs])))


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.first, self.last = keras.layers.Dense(3), keras.layers.Dense(1)

    def call(self, x, training=False):
        return self.last(self.first(x))


def _nested():
    inner = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, activation="tanh")])
    inputs = keras.Input((4,))
    return keras.Model(inputs, keras.layers.Dense(1)(inner(inputs)))


def _shared():
    inputs, layer = keras.Input((4,)), keras.layers.Dense(4)
    return keras.Model(inputs, keras.layers.Dense(1)(layer(layer(inputs))))


def _partly_frozen():
    model = linear()
    model.layers[0].trainable = False
    return model


BUILT = {
    "Sequential": linear,
    "Sequential without an Input": lambda: keras.Sequential([keras.layers.Dense(3), keras.layers.Dense(1)]),
    "functional": _functional,
    "subclassed": Subclassed,
    "nested": _nested,
    "a shared layer": _shared,
    "partly frozen": _partly_frozen,
}


@cell("Models", *BUILT)
def built(column, name):
    return trained(column, BUILT[name])


@cell("Models", "frozen, then thawed and compiled again")
def thawed(column):
    with column.scope():
        model = _partly_frozen()
    first = _fitted(column, model)
    model.layers[0].trainable = True
    return [first, _fitted(column, model)]


@cell("Models", "nothing to train", columns=SYNCHRONOUS)
def nothing(column):
    def build():
        model = linear()
        model.trainable = False
        return model

    return trained(column, build)


@cell("Models", "several inputs as a dict")
def inputs_by_name(column):
    def build():
        one, two = keras.Input((2,), name="one"), keras.Input((2,), name="two")
        joined = keras.layers.Concatenate()([keras.layers.Dense(2)(one), two])
        return keras.Model({"one": one, "two": two}, keras.layers.Dense(1)(joined))

    return trained(column, build, data=mapped(column, lambda x, y: ({"one": x[:, :2], "two": x[:, 2:]}, y)))


@cell("Models", "several inputs as a tuple")
def inputs_in_order(column):
    def build():
        one, two = keras.Input((2,)), keras.Input((2,))
        joined = keras.layers.Concatenate()([keras.layers.Dense(2)(one), two])
        return keras.Model([one, two], keras.layers.Dense(1)(joined))

    return trained(column, build, data=mapped(column, lambda x, y: ((x[:, :2], x[:, 2:]), y)))


def _two_outputs():
    inputs = keras.Input((4,))
    hidden = keras.layers.Dense(3)(inputs)
    return keras.Model(
        inputs, {"a": keras.layers.Dense(1, name="a")(hidden), "b": keras.layers.Dense(1, name="b")(hidden)}
    )


_SHORT_BATCH = (
    "In the loss that Keras shows for one of several outputs a short last batch counts as much as a whole one; here "
    "each row counts the same. The weights, the loss of all outputs and the metrics are equal."
)


@cell(
    "Models",
    "several outputs as a dict, with losses, weights and metrics of their own",
    different=on(SYNCHRONOUS_ON_TENSORFLOW, _SHORT_BATCH),
)
def outputs_by_name(column):
    return trained(
        column,
        _two_outputs,
        loss={"a": "mse", "b": "mae"},
        loss_weights={"a": 1.0, "b": 0.3},
        metrics={"a": ["mae"], "b": ["mse"]},
        data=mapped(column, lambda x, y: (x, {"a": y, "b": -y})),
    )


@cell("Models", "several outputs as a list", columns=SYNCHRONOUS, different=on(SYNCHRONOUS_ON_TENSORFLOW, _SHORT_BATCH))
def outputs_in_order(column):
    def build():
        inputs = keras.Input((4,))
        return keras.Model(inputs, [keras.layers.Dense(1)(inputs), keras.layers.Dense(2)(inputs)])

    return trained(column, build, loss=["mse", "mae"], data=mapped(column, lambda x, y: (x, (y[:, None], x[:, :2]))))


@cell("Models", "one output that is not trained", columns=SYNCHRONOUS)
def one_of_two(column):
    return trained(
        column,
        _two_outputs,
        loss={"a": "mse", "b": None},
        data=mapped(column, lambda x, y: (x, {"a": y, "b": y})),
    )


@cell("Models", "a loaded .keras file, trained on")
def loaded(column):
    path = column.place() / f"model-{column.ctx.index if column.ctx else 0}.keras"
    linear().save(path)
    with column.scope():
        model = keras.models.load_model(path)
    return _fitted(column, model)


@cell("Models", "transfer learning: a loaded file, its head replaced")
def transferred(column):
    path = column.place() / f"model-{column.ctx.index if column.ctx else 0}.keras"
    linear().save(path)
    with column.scope():
        base = keras.models.load_model(path)
        base.trainable = False
        hidden = keras.Model(base.inputs, base.layers[0].output)
        model = keras.Sequential([keras.Input((4,)), hidden, keras.layers.Dense(1)])
    return _fitted(column, model)


@cell("Models", "load_weights before and after compile")
def weights_loaded(column):
    path = column.place() / f"model-{column.ctx.index if column.ctx else 0}.weights.h5"
    linear().save_weights(path)
    with column.scope():
        model = linear()
        model.load_weights(path)
    first = _fitted(column, model)
    model.load_weights(path)
    return [first, weights_of(model), _fitted(column, model)]


@cell("Models", "a compiled .keras file, with its optimizer's state")
def state_loaded(column):
    path = column.place() / f"model-{column.ctx.index if column.ctx else 0}.keras"
    before = linear()
    before.compile(keras.optimizers.Adam(0.02), "mse")
    before.fit(column.x, column.y, batch_size=16, shuffle=False, verbose=0)
    before.save(path)
    with column.scope():
        model = keras.models.load_model(path)
    steps = int(np.asarray(model.optimizer.iterations))
    history = model.fit(column.even(), epochs=2, verbose=0).history
    return {"weights": weights_of(model), "history": history, "steps": steps}


@cell("Models", "tf.train.Checkpoint restored", columns=ON_TENSORFLOW)
def checkpoint(column):
    with column.scope():
        model = linear()
    path = tf.train.Checkpoint(model=model).save(
        str(column.place() / f"checkpoint-{column.ctx.index if column.ctx else 0}")
    )
    first = _fitted(column, model)
    tf.train.Checkpoint(model=model).restore(path)
    return [first, weights_of(model)]


@cell("Models", "clone_model")
def cloned(column):
    with column.scope():
        first = linear()
        model = keras.models.clone_model(first)
        model.set_weights(first.get_weights())
    return _fitted(column, model)


@cell("Models", "weights set by hand, before and between")
def set_by_hand(column):
    with column.scope():
        model = linear()
    model.set_weights([np.full(each.shape, 0.1, "f4") for each in model.get_weights()])
    first = _fitted(column, model)
    model.layers[0].kernel.assign(model.layers[0].kernel * 0.5)
    model.layers[1].set_weights([np.ones((3, 1), "f4"), np.zeros(1, "f4")])
    return [first, model.get_weights(), _fitted(column, model)]


@cell("Models", "two models, trained in turn")
def two(column):
    with column.scope():
        one, other = linear(), _functional()
        one.compile("sgd", "mse")
        other.compile("adam", "mae")
    for _ in range(2):
        one.fit(column.even(), verbose=0)
        other.fit(column.even(), verbose=0)
    return [weights_of(one), weights_of(other)]


@cell("Models", "compile twice, fit twice")
def twice(column):
    with column.scope():
        model = linear()
    return [_fitted(column, model), _fitted(column, model, loss="mae", metrics=["mse"])]


@cell("Models", "mixed_bfloat16", tolerance=0.03)
def bfloat(column):
    policy = keras.DTypePolicy("mixed_bfloat16")

    def build():
        return keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, dtype=policy), keras.layers.Dense(1)])

    return trained(column, build)


@cell(
    "Models",
    "mixed_float16 by the global policy, with its loss scale",
    tolerance=5e-3,
    different=on(
        MULTI_WORKER,
        "the scale begins at 32,768, and steps whose gradients overflow are skipped: those of a part of a batch are "
        "smaller, so fewer are",
    ),
)
def mixed(column):
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:

        def build():
            layers = [keras.layers.Dense(3), keras.layers.Dense(1, dtype="float32")]
            return keras.Sequential([keras.Input((4,)), *layers])

        return trained(column, build)
    finally:
        keras.mixed_precision.set_global_policy("float32")


@cell("Models", "float64", tolerance=1e-5)
def double(column):
    def build():
        return keras.Sequential(
            [
                keras.Input((4,), dtype="float64"),
                keras.layers.Dense(3, dtype="float64"),
                keras.layers.Dense(1, dtype="float64"),
            ]
        )

    return trained(column, build)


class OwnStepOnJax(keras.Sequential):
    """A model with a step of its own, as Keras's guide for JAX writes it."""

    def train_step(self, state, data):
        import jax

        trainable, others, optimizer, metrics = state
        x, y, w = data
        gradient = jax.value_and_grad(self.compute_loss_and_updates, has_aux=True)
        (loss, (_, _, others, metrics)), gradients = gradient(
            trainable, others, metrics, x, y, w, training=True, optimizer_variables=optimizer
        )
        trainable, optimizer = self.optimizer.stateless_apply(optimizer, gradients, trainable)
        return {"loss": loss}, (trainable, others, optimizer, metrics)


@cell("Models", "train_step of one's own, as Keras's guide for JAX has it", columns=(JAX,))
def own_step_on_jax(column):
    return trained(column, lambda: OwnStepOnJax([keras.Input((4,)), keras.layers.Dense(1)]))["weights"]


@cell("Models", "train_step of one's own", columns=ON_TENSORFLOW)
def own_step(column):
    class Own(keras.Sequential):
        def train_step(self, data):
            x, y, w = data
            with tf.GradientTape() as tape:
                loss = self.compute_loss(x, y, self(x, training=True), w)
            self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
            return {"loss": loss}

    result = trained(column, lambda: Own([keras.Input((4,)), keras.layers.Dense(1)]))
    return result["weights"]


@cell("Models", "train_step of one's own, with a loss of its own", columns=SYNCHRONOUS_ON_TENSORFLOW)
def own_loss(column):
    class Own(keras.Sequential):
        def train_step(self, data):
            x, y, _ = data
            with tf.GradientTape() as tape:
                loss = keras.ops.mean(keras.ops.square(keras.ops.reshape(y, (-1, 1)) - self(x, training=True)))
            self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
            return {"loss": loss}

    return trained(column, lambda: Own([keras.Input((4,)), keras.layers.Dense(1)]))["weights"]


@cell("Models", "test_step and predict_step of one's own")
def own_others(column):
    class Own(keras.Sequential):
        def test_step(self, data):
            return {**super().test_step(data), "own": 2.0}

        def predict_step(self, data):
            return super().predict_step(data) * 2.0

    with column.scope():
        model = Own([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    return [model.evaluate(column.uneven(), return_dict=True, verbose=0), model.predict(column.x, verbose=0)]


@cell("Models", "GAN: two models and two optimizers, no call()", columns=ON_TENSORFLOW)
def gan(column):
    class Gan(keras.Model):
        def __init__(self):
            super().__init__()
            self.generator = keras.Sequential([keras.Input((2,)), keras.layers.Dense(4)])
            self.critic = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
            self.loss_tracker = keras.metrics.Mean(name="g_loss")

        def compile(self, first, second):
            super().compile()
            self.first, self.second = first, second

        @property
        def metrics(self):
            return [self.loss_tracker]

        def train_step(self, data):
            x = data[0]
            with tf.GradientTape() as tape:
                fake = self.generator(x[:, :2])
                loss = tf.reduce_mean(self.critic(fake) ** 2 + (self.critic(x) - 1) ** 2) / _replicas()
            gradients = tape.gradient(loss, self.critic.trainable_weights)
            self.first.apply_gradients(zip(gradients, self.critic.trainable_weights, strict=True))
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self.critic(self.generator(x[:, :2])) - 1) ** 2) / _replicas()
            gradients = tape.gradient(loss, self.generator.trainable_weights)
            self.second.apply_gradients(zip(gradients, self.generator.trainable_weights, strict=True))
            self.loss_tracker.update_state(loss * _replicas())
            return {"g_loss": self.loss_tracker.result()}

    def _replicas():
        return float(column.strategy.num_replicas_in_sync) if column.strategy else 1.0

    with column.scope():
        model = Gan()
        model.compile(keras.optimizers.SGD(0.02), keras.optimizers.SGD(0.02))
    # In two equal batches: the mean over batches is that over rows.
    history = model.fit(column.even().take(2), epochs=2, verbose=0).history
    return {"weights": weights_of(model.generator) + weights_of(model.critic), "history": history}


_COORDINATOR = on(PARAMETER_SERVER, "ClusterCoordinator.create_per_worker_dataset")


@cell(
    "Models",
    "a loop of one's own: strategy.run, experimental_distribute_dataset",
    columns=ON_TENSORFLOW,
    refused=_COORDINATOR,
)
def own_loop(column):
    data = column.even()
    if column.strategy:
        data = column.strategy.experimental_distribute_dataset(data)
    return _trained_in_loop(column, data, epochs=2)


def _trained_in_loop(column, data, epochs):
    """Train a small model in a loop with ``strategy.run``; return its weights."""
    with column.scope():
        model = linear()
        optimizer = keras.optimizers.SGD(0.05)

    def step(x, y, w):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(w * (model(x, training=True)[:, 0] - y) ** 2) / 16.0
        optimizer.apply_gradients(
            zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True)
        )

    @tf.function
    def together(batch):
        if column.strategy:
            column.strategy.run(step, args=batch)
        else:
            step(*batch)

    for _ in range(epochs):
        for batch in data:
            together(batch)
    return weights_of(model)


@cell("Models", "distribute_datasets_from_function, into fit", columns=SYNCHRONOUS_ON_TENSORFLOW)
def from_function(column):
    if column.strategy is None:
        return trained(column, data=column.even())
    return trained(column, data=_distributed(column))


def _distributed(column):
    replicas = len(column.strategy.extended.worker_devices)
    data = column.even()
    if replicas > 1:
        data = data.rebatch(16 // replicas)
    return column.strategy.distribute_datasets_from_function(lambda context: data)


@cell(
    "Models",
    "distribute_datasets_from_function, in a loop of one's own",
    columns=ON_TENSORFLOW,
    refused=_COORDINATOR,
)
def from_function_loop(column):
    return _trained_in_loop(column, _distributed(column) if column.strategy else column.even(), epochs=1)


@cell("Models", "keras.Variable and tf.Variable in a model", columns=ON_TENSORFLOW)
def variables(column):
    class Scaled(keras.layers.Layer):
        def build(self, shape):
            self.scale = keras.Variable(1.5, name="scale")
            self.shift = tf.Variable(0.5, name="shift", trainable=False)

        def call(self, x):
            return x * self.scale + self.shift

    return trained(column, lambda: keras.Sequential([keras.Input((4,)), Scaled(), keras.layers.Dense(1)]))


@cell("Models", "saved inside of the scope and loaded again")
def saved_inside(column):
    with column.scope():
        model = linear()
        model.compile("sgd", "mse")
        model.fit(column.even(), verbose=0)
        if column.ctx:
            column.ctx.export(model, str(column.place() / "model.keras"))
        else:
            model.save(column.place() / "model.keras")
    column.meet()
    return weights_of(keras.models.load_model(column.place() / "model.keras"))


@cell("Models", "exported as a SavedModel, and served")
def exported(column):
    with column.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    if column.ctx:
        column.ctx.export(model, str(column.place() / "saved"))
    else:
        model.export(str(column.place() / "saved"), verbose=False)
    column.meet()
    loaded = tf.saved_model.load(str(column.place() / "saved"))
    served = loaded.serve(column.x)
    return [np.asarray(served), model.predict(column.x, verbose=0)]
