"""What programs do with gradients before the optimizer has them."""

import keras
import tensorflow as tf

from tests.support.own_steps.place import small_sgd
from tests.support.own_steps.programs import program
from tests.support.own_steps.stepping import Stepping, linear_layers, stepping, train_stepping

ops = keras.ops


def _by_norm(gradients):
    return [tf.clip_by_norm(each, 0.4) for each in gradients], {}


def _by_global_norm(gradients):
    clipped, norm = tf.clip_by_global_norm(gradients, 0.5)
    return clipped, {"norm": norm}


def _by_value(gradients):
    return [tf.clip_by_value(each, -0.3, 0.3) for each in gradients], {}


def _normalized(gradients):
    norm = tf.linalg.global_norm(gradients)
    return [each / (norm + 1e-7) for each in gradients], {}


def _centralized(gradients):
    return [each - tf.reduce_mean(each) if each.shape.rank > 1 else each for each in gradients], {}


def _signs(gradients):
    return [tf.sign(each) for each in gradients], {}


def _shown(gradients):
    return gradients, {"norm": tf.linalg.global_norm(gradients), "first": tf.reshape(gradients[0], [-1])[0]}


def _thresholded(gradients):
    largest = tf.reduce_max([tf.reduce_max(tf.abs(each)) for each in gradients])
    return [tf.where(tf.abs(each) < 0.5 * largest, 0.0, each) for each in gradients], {}


CHANGES = {
    "clip_by_norm": _by_norm,
    "clip_by_global_norm": _by_global_norm,
    "clip_by_value": _by_value,
    "gradient_normalized": _normalized,
    "gradient_centralized": _centralized,
    "sign_of_gradient": _signs,
    "gradient_norm_shown": _shown,
    "gradient_sparsified": _thresholded,
}


def _change(name, changed):
    @program(name)
    def run(place):
        return train_stepping(place, stepping("Changes", changed=changed))


for _name, _changed in CHANGES.items():
    _change(_name, _changed)


@program("clip_by_norm_of_compiled_loss")
def compiled_loss(place):
    """The gradient of ``compute_loss``, as in Keras's guide, clipped."""

    class Clips(keras.Sequential):
        def train_step(self, data):
            x, y, w = data
            with tf.GradientTape() as tape:
                y_pred = self(x, training=True)
                loss = self.compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=w)
            gradients, _ = tf.clip_by_global_norm(tape.gradient(loss, self.trainable_variables), 0.5)
            self.optimizer.apply(gradients, self.trainable_variables)
            for metric in self.metrics:
                if metric.name == "loss":
                    metric.update_state(loss)
                else:
                    metric.update_state(y, y_pred)
            return {each.name: each.result() for each in self.metrics}

    return place.trained(lambda: Clips(linear_layers()), place.dataset("x", "y"), metrics=["mae"])


@program("pcgrad")
def pcgrad(place):
    """Two tasks whose gradients are projected onto each other's normal plane where they conflict."""

    class Projects(Stepping):
        def train_step(self, data):
            x, y, _ = data
            with tf.GradientTape(persistent=True) as tape:
                y_pred = self(x, training=True)
                one = ops.mean(ops.square(y_pred[:, 0] - y[:, 0]))
                two = ops.mean(ops.square(y_pred[:, 0] - y[:, 1]))
            variables = self.trainable_variables
            first, second = tape.gradient(one, variables), tape.gradient(two, variables)
            del tape
            product = tf.add_n([tf.reduce_sum(a * b) for a, b in zip(first, second, strict=True)])
            size = tf.add_n([tf.reduce_sum(b * b) for b in second])
            factor = tf.minimum(product, 0.0) / size
            projected = [a - factor * b + b for a, b in zip(first, second, strict=True)]
            self.optimizer.apply_gradients(zip(projected, variables, strict=True))
            self.tracker.update_state(one + two)
            return {"own_loss": self.tracker.result(), "product": product}

    return train_stepping(place, Projects, data=place.dataset("x", "pair"))


@program("sam")
def sam(place):
    """Sharpness-aware minimization: the gradient at the worst place nearby, found by the gradient here."""

    class Sharpness(Stepping):
        def train_step(self, data):
            x, y, _ = data
            variables = self.trainable_variables
            with tf.GradientTape() as tape:
                loss = self.loss_of(x, y, self(x, training=True))
            here = tape.gradient(loss, variables)
            scale = 0.2 / (tf.linalg.global_norm(here) + 1e-12)
            for variable, each in zip(variables, here, strict=True):
                variable.assign_add(each * scale)
            with tf.GradientTape() as tape:
                worst = self.loss_of(x, y, self(x, training=True))
            there = tape.gradient(worst, variables)
            for variable, each in zip(variables, here, strict=True):
                variable.assign_sub(each * scale)
            self.optimizer.apply_gradients(zip(there, variables, strict=True))
            self.tracker.update_state(loss)
            return {"own_loss": self.tracker.result()}

    return train_stepping(place, Sharpness)


@program("sam_two_layers")
def sam_two_layers(place):
    """The same for a model that is not linear, written with Keras's ``compute_loss``."""

    class Sharpness(keras.Sequential):
        def train_step(self, data):
            x, y, w = data
            with tf.GradientTape() as tape:
                loss = self.compute_loss(x, y, self(x, training=True), w)
            gradients = tape.gradient(loss, self.trainable_variables)
            norm = tf.linalg.global_norm(gradients)
            moves = [0.3 * each / (norm + 1e-12) for each in gradients]
            for variable, move in zip(self.trainable_variables, moves, strict=True):
                variable.assign_add(move)
            with tf.GradientTape() as tape:
                loss = self.compute_loss(x, y, self(x, training=True), w)
            gradients = tape.gradient(loss, self.trainable_variables)
            for variable, move in zip(self.trainable_variables, moves, strict=True):
                variable.assign_sub(move)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            self._loss_tracker.update_state(loss)
            return {"loss": self._loss_tracker.result(), "norm": norm}

    layers = [keras.Input((4,)), keras.layers.Dense(3, "tanh"), keras.layers.Dense(1)]
    return place.trained(lambda: Sharpness(layers), place.dataset("x", "y"))


class ClipsInApplyGradients(keras.optimizers.SGD):
    """An optimizer of one's own."""

    def apply_gradients(self, grads_and_vars):
        gradients, variables = zip(*grads_and_vars, strict=True)
        gradients, _ = tf.clip_by_global_norm(gradients, 0.5)
        return super().apply_gradients(zip(gradients, variables, strict=True))


class ClipsInApply(keras.optimizers.SGD):
    """An optimizer of one's own."""

    def apply(self, grads, trainable_variables=None):
        return super().apply([ops.clip(each, -0.3, 0.3) for each in grads], trainable_variables)


class ClipsInUpdateStep(keras.optimizers.SGD):
    """An optimizer of one's own."""

    def update_step(self, gradient, variable, learning_rate):
        super().update_step(ops.clip(gradient, -0.3, 0.3), variable, learning_rate)


class Normalizes(keras.optimizers.Optimizer):
    """An optimizer of one's own with a memory: of the norm."""

    def build(self, variables):
        super().build(variables)
        self.norm = self.add_variable((), name="norm")

    def apply(self, grads, trainable_variables=None):
        norm = ops.sqrt(sum(ops.sum(ops.square(each)) for each in grads))
        if not self.built:
            with keras.name_scope(self.name):
                self.build(trainable_variables)
        self.norm.assign(0.5 * self.norm + 0.5 * norm)
        super().apply([each / (self.norm + 1e-3) for each in grads], trainable_variables)

    def update_step(self, gradient, variable, learning_rate):
        self.assign_sub(variable, ops.cast(learning_rate, variable.dtype) * gradient)


_OPTIMIZERS = {
    "optimizer_clips_in_apply_gradients": ClipsInApplyGradients,
    "optimizer_clips_in_apply": ClipsInApply,
    "optimizer_clips_in_update_step": ClipsInUpdateStep,
    "optimizer_normalizes_in_apply": Normalizes,
}


def _optimizer(name, kind):
    on_both = ("tensorflow", "jax") if name == "optimizer_clips_in_update_step" else ("tensorflow",)

    @program(name, on=on_both)
    def compiled(place):
        loss = keras.losses.MeanSquaredError()
        with place.scope():
            model = keras.Sequential(linear_layers())
            model.compile(kind(0.05), loss)
        return place.fit(model, place.dataset("x", "y"))

    @program(f"{name}_own_step")
    def own(place):
        return train_stepping(place, stepping("Steps"), optimizer=lambda: kind(0.05))


for _name, _kind in _OPTIMIZERS.items():
    _optimizer(_name, _kind)


@program("optimizer_made_outside_the_scope")
def outside(place):
    optimizer = keras.optimizers.SGD(0.05, momentum=0.5)
    with place.scope():
        model = keras.Sequential(linear_layers())
        model.compile(optimizer, "mse")
    return place.fit(model, place.dataset("x", "y"))


@program("clipnorm_own_step")
def clipnorm(place):
    def optimizer():
        return keras.optimizers.SGD(0.05, momentum=0.5, global_clipnorm=0.5)

    return train_stepping(place, stepping("Steps"), optimizer=optimizer)


@program("loss_scale_own_step")
def loss_scale(place):
    """The loss is scaled by hand, as Keras's ``LossScaleOptimizer`` asks for it."""

    class Scales(Stepping):
        def train_step(self, data):
            x, y, _ = data
            with tf.GradientTape() as tape:
                loss = self.loss_of(x, y, self(x, training=True))
                scaled = self.optimizer.scale_loss(loss)
            gradients = tape.gradient(scaled, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            self.tracker.update_state(loss)
            return {"own_loss": self.tracker.result()}

    return train_stepping(place, Scales, optimizer=lambda: keras.optimizers.LossScaleOptimizer(small_sgd()))


@program("gradients_of_each_row_clipped", refused="ClipsRows")
def private(place):
    """DP-SGD: the gradient of each row is clipped, and their mean taken."""

    class ClipsRows(Stepping):
        def train_step(self, data):
            x, y, _ = data
            with tf.GradientTape() as tape:
                losses = ops.square(self(x, training=True)[:, 0] - y)
            found = tape.jacobian(losses, self.trainable_variables)
            clipped = [tf.reduce_mean(tf.clip_by_norm(tf.reshape(each, [tf.shape(each)[0], -1]), 0.5, axes=[1]), 0)
                       for each in found]  # fmt: skip
            gradients = [tf.reshape(each, variable.shape)
                         for each, variable in zip(clipped, self.trainable_variables, strict=True)]  # fmt: skip
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            self.tracker.update_state(ops.mean(losses))
            return {"own_loss": self.tracker.result()}

    return train_stepping(place, ClipsRows)


@program("gradients_of_two_losses_weighed")
def weighed(place):
    """Two losses are weighed by the norms of their gradients."""

    class Weighs(Stepping):
        def train_step(self, data):
            x, y, _ = data
            variables = self.trainable_variables
            with tf.GradientTape(persistent=True) as tape:
                y_pred = self(x, training=True)
                losses = [ops.mean(ops.square(y_pred[:, 0] - y)), ops.mean(ops.abs(y_pred))]
            found = [tape.gradient(each, variables) for each in losses]
            norms = [tf.linalg.global_norm(each) for each in found]
            total = tf.add_n(norms)
            gradients = [sum(each * norm / total for each, norm in zip(pair, norms, strict=True))
                         for pair in zip(*found, strict=True)]  # fmt: skip
            self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
            self.tracker.update_state(losses[0])
            return {"own_loss": self.tracker.result(), "one": norms[0], "two": norms[1]}

    return train_stepping(place, Weighs)


@program("gradients_of_several_targets")
def several_targets(place):
    """``tape.gradient`` of two losses at once, with factors of theirs."""

    class Targets(Stepping):
        def train_step(self, data):
            x, y, _ = data
            with tf.GradientTape() as tape:
                y_pred = self(x, training=True)
                losses = [ops.mean(ops.square(y_pred[:, 0] - y)), ops.mean(ops.abs(y_pred))]
            gradients = tape.gradient(
                losses, self.trainable_variables, output_gradients=[tf.constant(1.0), tf.constant(0.3)]
            )
            gradients = [tf.clip_by_value(each, -0.4, 0.4) for each in gradients]
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            self.tracker.update_state(losses[0])
            return {"own_loss": self.tracker.result()}

    return train_stepping(place, Targets)


@program("accumulated_by_hand")
def accumulated(place):
    """Gradients are added up in variables, and reach the optimizer in each second step."""

    class Accumulates(Stepping):
        def __init__(self, layers):
            super().__init__(layers)
            self.sums = [self.add_weight(each.shape, "zeros", trainable=False) for each in self.trainable_variables]
            self.number = self.add_weight((), "zeros", dtype="int32", trainable=False)

        def train_step(self, data):
            x, y, _ = data
            variables = [each for each in self.trainable_variables if each.trainable]
            with tf.GradientTape() as tape:
                loss = self.loss_of(x, y, self(x, training=True))
            for total, each in zip(self.sums, tape.gradient(loss, variables), strict=True):
                total.assign_add(each)
            self.number.assign_add(1)
            due = tf.equal(self.number % 2, 0)
            moved = tf.cast(due, tf.float32)
            for variable, total in zip(variables, self.sums, strict=True):
                variable.assign_sub(0.05 * moved * tf.clip_by_norm(total / 2, 0.6))
                total.assign(total * (1 - moved))
            self.tracker.update_state(loss)
            return {"own_loss": self.tracker.result()}

    return train_stepping(place, Accumulates)
