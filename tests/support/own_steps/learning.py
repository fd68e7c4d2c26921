"""Steps that differ in how they learn: meta-learning, attacks on inputs, physics, several optimizers, adapted parts."""

import keras
import tensorflow as tf

from tests.support.own_steps.generative import Several, fit, sgd, small
from tests.support.own_steps.place import small_sgd
from tests.support.own_steps.programs import JAX, TENSORFLOW, program
from tests.support.own_steps.stepping import Stepping, stepping, train_stepping

ops = keras.ops
Dense, Input = keras.layers.Dense, keras.Input


def _square(y, y_pred):
    return ops.mean(ops.square(y_pred[:, 0] - y))


@program("maml")
def maml(place):
    """An inner step with the gradient of one half of the features, the outer step through it."""

    class Learns(Stepping):
        def train_step(self, data):
            x, y, _ = data
            kernel, bias = self.trainable_variables
            with tf.GradientTape() as outer:
                with tf.GradientTape() as inner:
                    inner_loss = _square(y, self(x["x"]))
                by_kernel, by_bias = inner.gradient(inner_loss, [kernel, bias])
                adapted = ops.matmul(x["other"], kernel - 0.2 * by_kernel) + bias - 0.2 * by_bias
                loss = _square(y, adapted)
            gradients = outer.gradient(loss, [kernel, bias])
            self.optimizer.apply_gradients(zip(gradients, [kernel, bias], strict=True))
            self.tracker.update_state(loss)
            return {"own_loss": self.tracker.result()}

    return train_stepping(place, Learns, data=place.dataset(["x", "other"], "y"))


@program("maml_first_order")
def first_order(place):
    """The same without the second derivative: weights are moved, and moved back."""

    class Learns(Stepping):
        def train_step(self, data):
            x, y, _ = data
            variables = self.trainable_variables
            before = [tf.identity(each) for each in variables]
            with tf.GradientTape() as tape:
                loss = _square(y, self(x["x"]))
            for variable, each in zip(variables, tape.gradient(loss, variables), strict=True):
                variable.assign_sub(0.2 * each)
            with tf.GradientTape() as tape:
                loss = _square(y, self(x["other"]))
            gradients = tape.gradient(loss, variables)
            for variable, value in zip(variables, before, strict=True):
                variable.assign(value)
            self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
            self.tracker.update_state(loss)
            return {"own_loss": self.tracker.result()}

    return train_stepping(place, Learns, data=place.dataset(["x", "other"], "y"))


@program("example_reptile")
def reptile(place):
    """Keras's example of Reptile: some inner steps, then a part of the way to where they led."""

    class Reptile(Stepping):
        def train_step(self, data):
            x, y, _ = data
            variables = self.trainable_variables
            before = [tf.identity(each) for each in variables]
            for _ in range(3):
                with tf.GradientTape() as tape:
                    loss = _square(y, self(x))
                for variable, each in zip(variables, tape.gradient(loss, variables), strict=True):
                    variable.assign_sub(0.1 * each)
            for variable, value in zip(variables, before, strict=True):
                variable.assign(value + 0.5 * (variable - value))
            self.tracker.update_state(loss)
            return {"own_loss": self.tracker.result()}

    return train_stepping(place, Reptile)


@program("lookahead")
def lookahead(place):
    """Slow weights that follow in each second step."""

    class Looks(Several):
        def __init__(self, **parts):
            super().__init__(**parts)
            self.number = self.add_weight((), "zeros", dtype="int32", trainable=False)

        def train_step(self, data):
            x, y, _ = data
            with tf.GradientTape() as tape:
                loss = _square(y, self.fast(x))
            self.step_of(self.optimizer, tape, loss, self.fast)
            self.number.assign_add(1)
            due = ops.cast(ops.equal(self.number % 2, 0), "float32")
            for fast, slow in zip(self.fast.weights, self.slow.weights, strict=True):
                slow.assign(slow + due * 0.5 * (fast - slow))
                fast.assign(due * slow + (1 - due) * fast)
            return self.show(loss=loss)

    def build():
        model = Looks(fast=small(4, 3, 1), slow=small(4, 3, 1))
        model.compile(sgd())
        return model

    return fit(place, build, place.dataset("x", "y"))


@program("fgsm")
def fgsm(place):
    """Adversarial training: inputs are moved by the sign of the loss's gradient for them."""

    class Attacked(Stepping):
        def train_step(self, data):
            x, y, _ = data
            with tf.GradientTape() as tape:
                tape.watch(x)
                loss = self.loss_of(x, y, self(x))
            moved = x + 0.2 * tf.sign(tape.gradient(loss, x))
            with tf.GradientTape() as tape:
                loss = self.loss_of(x, y, self(x)) + self.loss_of(moved, y, self(moved))
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            self.tracker.update_state(loss)
            return {"own_loss": self.tracker.result()}

    return train_stepping(place, Attacked)


@program("fgm_of_a_mean")
def fgm(place):
    """Inputs are moved by the gradient itself of a mean, which a worker's share of the rows makes larger."""

    class Attacked(Stepping):
        def train_step(self, data):
            x, y, _ = data
            with tf.GradientTape() as tape:
                tape.watch(x)
                loss = self.loss_of(x, y, self(x))
            moved = x + 2.0 * tape.gradient(loss, x)
            with tf.GradientTape() as tape:
                loss = self.loss_of(moved, y, self(moved))
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            self.tracker.update_state(loss)
            return {"own_loss": self.tracker.result()}

    return train_stepping(place, Attacked)


@program("adversarial_regularization")
def adversarial(place):
    """Neural structured learning: the neighbour by the normalized gradient of each row's own loss."""

    class Neighbours(Stepping):
        def train_step(self, data):
            x, y, _ = data
            with tf.GradientTape() as tape:
                with tf.GradientTape() as inner:
                    inner.watch(x)
                    rows = ops.square(self(x)[:, 0] - y)
                direction = tf.stop_gradient(inner.gradient(rows, x))
                neighbour = x + 0.2 * tf.math.l2_normalize(direction, axis=1)
                loss = ops.mean(rows) + 0.5 * self.loss_of(x, y, self(neighbour))
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            self.tracker.update_state(loss)
            return {"own_loss": self.tracker.result()}

    return train_stepping(place, Neighbours)


@program("gradient_penalty_of_inputs")
def penalty(place):
    """A penalty of the norm of the gradient for the inputs, beside the loss."""

    class Penalizes(Stepping):
        def train_step(self, data):
            x, y, _ = data
            with tf.GradientTape() as tape:
                with tf.GradientTape() as inner:
                    inner.watch(x)
                    y_pred = self(x)
                slope = inner.gradient(y_pred, x)
                loss = self.loss_of(x, y, y_pred) + 0.1 * ops.mean(ops.sum(ops.square(slope), axis=1))
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            self.tracker.update_state(loss)
            return {"own_loss": self.tracker.result()}

    return train_stepping(place, Penalizes, lambda: [Input((4,)), Dense(3, "tanh"), Dense(1)])


@program("gradient_of_inputs_and_weights")
def both_gradients(place):
    """One call of ``tape.gradient`` for a model's variables and for its inputs."""

    class Both(Stepping):
        def train_step(self, data):
            x, y, _ = data
            with tf.GradientTape() as tape:
                tape.watch(x)
                loss = self.loss_of(x, y, self(x))
            gradients, by_input = tape.gradient(loss, [self.trainable_variables, x])
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            self.tracker.update_state(loss)
            return {"own_loss": self.tracker.result(), "finite": ops.cast(ops.all(ops.isfinite(by_input)), "float32")}

    return train_stepping(place, Both)


@program("pinn")
def pinn(place):
    """Physics: u' = -u, by the derivative for the input, beside a boundary without rows."""

    class Physics(Several):
        shown = ("loss", "physics", "boundary")

        def train_step(self, data):
            t = data["step"][:, None]
            with tf.GradientTape() as tape:
                with tf.GradientTape() as inner:
                    inner.watch(t)
                    u = self.network(t)
                physics = ops.mean(ops.square(inner.gradient(u, t) + u))
                boundary = ops.mean(ops.square(self.network(ops.zeros((1, 1))) - 1.0))
                loss = physics + boundary
            self.step_of(self.optimizer, tape, loss, self.network)
            return self.show(loss=loss, physics=physics, boundary=boundary)

    def build():
        model = Physics(network=small(1, 4, 1))
        model.compile(sgd(0.1))
        return model

    return fit(place, build, place.dataset(["step"]))


@program("pinn_second_derivative")
def pinn_second(place):
    """u'' = -u, by nested tapes."""

    class Physics(Several):
        def train_step(self, data):
            t = data["step"][:, None]
            with tf.GradientTape() as tape:
                with tf.GradientTape() as second:
                    second.watch(t)
                    with tf.GradientTape() as first:
                        first.watch(t)
                        u = self.network(t)
                    slope = first.gradient(u, t)
                loss = ops.mean(ops.square(second.gradient(slope, t) + u)) + ops.mean(ops.square(u - ops.sin(t)))
            self.step_of(self.optimizer, tape, loss, self.network)
            return self.show(loss=loss)

    def build():
        model = Physics(network=small(1, 4, 1))
        model.compile(sgd(0.1))
        return model

    return fit(place, build, place.dataset(["step"]))


@program("two_optimizers")
def two_optimizers(place):
    """One optimizer for each half of a model, with one tape."""

    class Wide(Several):
        def compile(self, *optimizers):
            super().compile()
            self.optimizers_of = list(optimizers)

        def train_step(self, data):
            x, y, _ = data
            with tf.GradientTape() as tape:
                loss = _square(y, self.wide(x) + self.deep(x))
            wide, deep = self.wide.trainable_variables, self.deep.trainable_variables
            by_wide, by_deep = tape.gradient(loss, [wide, deep])
            self.optimizers_of[0].apply_gradients(zip(by_wide, wide, strict=True))
            self.optimizers_of[1].apply_gradients(zip(by_deep, deep, strict=True))
            return self.show(loss=loss)

    def build():
        model = Wide(wide=small(4, 1), deep=small(4, 3, 1))
        model.compile(keras.optimizers.Ftrl(0.05), keras.optimizers.Adam(0.02))
        return model

    return fit(place, build, place.dataset("x", "y"))


@program("alternating_optimizers")
def alternating(place):
    """Each second step trains the other part."""

    class Alternates(Several):
        def __init__(self, **parts):
            super().__init__(**parts)
            self.number = self.add_weight((), "zeros", dtype="int32", trainable=False)

        def train_step(self, data):
            x, y, _ = data
            with tf.GradientTape() as tape:
                loss = _square(y, self.one(x) + self.two(x))
            one, two = self.one.trainable_variables, self.two.trainable_variables
            gradients = tape.gradient(loss, [*one, *two])
            first = ops.cast(ops.equal(self.number % 2, 0), "float32")
            scaled = [each * first for each in gradients[: len(one)]] + [
                each * (1 - first) for each in gradients[len(one) :]
            ]
            self.optimizer.apply_gradients(zip(scaled, [*one, *two], strict=True))
            self.number.assign_add(1)
            return self.show(loss=loss)

    def build():
        model = Alternates(one=small(4, 1), two=small(4, 3, 1))
        model.compile(sgd())
        return model

    return fit(place, build, place.dataset("x", "y"))


@program("lora", on=(TENSORFLOW, JAX))
def lora(place):
    def build():
        model = keras.Sequential([Input((4,)), Dense(3, "tanh"), Dense(1)])
        model.layers[0].enable_lora(2)
        model.compile(sgd(0.1), "mse")
        return model

    return fit(place, build, place.dataset("x", "y"))


@program("lora_own_step")
def lora_own_step(place):
    def layers():
        dense = Dense(3, "tanh")
        made = [Input((4,)), dense, Dense(1)]
        keras.Sequential(made)
        dense.enable_lora(2)
        return made

    return train_stepping(place, stepping("Adapts"), layers)


@program("custom_gradient_reversed")
def reversed_gradient(place):
    """Domain adaptation: the gradient of one head is turned around on its way."""

    @tf.custom_gradient
    def turned(x):
        return tf.identity(x), lambda upstream: -0.5 * upstream

    class Adapts(Several):
        shown = ("loss", "domain")

        def train_step(self, data):
            x, y, _ = data
            with tf.GradientTape() as tape:
                features = ops.concatenate([self.features(x["x"]), self.features(x["other"])], axis=0)
                rows = ops.shape(x["x"])[0]
                loss = _square(y, self.head(features[:rows]))
                domains = ops.concatenate([ops.zeros((rows, 1)), ops.ones((rows, 1))], axis=0)
                domain = keras.losses.BinaryCrossentropy(from_logits=True)(domains, self.domain(turned(features)))
                total = loss + domain
            self.step_of(self.optimizer, tape, total, self.features, self.head, self.domain)
            return self.show(loss=loss, domain=domain)

    def build():
        model = Adapts(features=small(4, 3), head=small(3, 1), domain=small(3, 1))
        model.compile(sgd())
        return model

    return fit(place, build, place.dataset(["x", "other"], "y"))


@program("uncertainty_weights")
def uncertainty(place):
    """Two tasks, weighed by variables that are learned with them."""

    class Weighs(Several):
        def __init__(self, **parts):
            super().__init__(**parts)
            self.log_variances = self.add_weight((2,), "zeros", name="log_variances")

        def train_step(self, data):
            x, y, _ = data
            with tf.GradientTape() as tape:
                y_pred = self.network(x)
                losses = ops.mean(ops.square(y_pred - y), axis=0)
                loss = ops.sum(ops.exp(-self.log_variances) * losses + self.log_variances)
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return self.show(loss=loss)

    def build():
        model = Weighs(network=small(4, 2))
        model.compile(sgd())
        return model

    return fit(place, build, place.dataset("x", "pair"))


@program("example_forward_forward")
def forward_forward(place):
    """Layers that train themselves, each with a tape and an optimizer of its own."""

    class Own(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.dense, self.optimizer = Dense(3, activation="relu"), small_sgd(0.03)

        def call(self, x):
            return self.dense(x / (ops.norm(x, axis=1, keepdims=True) + 1e-3))

        def learn(self, positive, negative):
            with tf.GradientTape() as tape:
                one, two = (ops.mean(ops.square(self(each)), axis=1) for each in (positive, negative))
                loss = ops.mean(ops.log(1 + ops.exp(ops.concatenate([0.5 - one, two - 0.5], axis=0))))
            gradients = tape.gradient(loss, self.dense.trainable_weights)
            self.optimizer.apply_gradients(zip(gradients, self.dense.trainable_weights, strict=True))
            return tf.stop_gradient(self(positive)), tf.stop_gradient(self(negative)), loss

    class Forward(Several):
        def train_step(self, data):
            positive, negative = data["x"], data["other"]
            total = 0.0
            for layer in (self.first, self.second):
                positive, negative, loss = layer.learn(positive, negative)
                total += loss
            return self.show(loss=total)

    def build():
        model = Forward(first=Own(), second=Own())
        model.first(ops.ones((1, 4)))
        model.second(ops.ones((1, 3)))
        model.compile(jit_compile=False)
        return model

    return fit(place, build, place.dataset(["x", "other"]))
