"""Losses that are divided by the valid elements of a batch: tokens that are no padding, rows that were selected."""

import keras
import numpy as np
import tensorflow as tf

from tests.support.own_steps.place import line
from tests.support.own_steps.programs import JAX, TENSORFLOW, program
from tests.support.own_steps.stepping import Stepping, linear_layers, stepping, train_stepping

ops = keras.ops
BOTH = (TENSORFLOW, JAX)
VOCABULARY = 5


def tagger(kind=keras.Sequential, mask_zero=False):
    """Return a model of logits for each token."""
    return kind(
        [
            keras.Input((6,), dtype="int32"),
            keras.layers.Embedding(VOCABULARY, 3, mask_zero=mask_zero),
            keras.layers.Dense(VOCABULARY),
        ]
    )


def by_token(label, pred):
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")(label, pred)


def masked_loss(label, pred):
    """The loss of TensorFlow's tutorials on translation and transformers."""
    mask = ops.cast(ops.not_equal(label, 0), "float32")
    return ops.sum(by_token(label, pred) * mask) / ops.sum(mask)


def masked_loss_safe(label, pred):
    """The same, which may be called without a token."""
    mask = ops.cast(ops.not_equal(label, 0), "float32")
    return ops.sum(by_token(label, pred) * mask) / (ops.sum(mask) + 1e-9)


def masked_accuracy(label, pred):
    """The metric of the same tutorials."""
    label = ops.cast(label, "int32")
    match = ops.cast(ops.equal(label, ops.cast(ops.argmax(pred, axis=2), "int32")), "float32")
    mask = ops.cast(ops.not_equal(label, 0), "float32")
    return ops.sum(match * mask) / ops.sum(mask)


def masked_mean(label, pred):
    """The loss of a tutorial that divides by all tokens: masked ones count as zero."""
    mask = ops.cast(ops.not_equal(label, 0), "float32")
    return ops.mean(by_token(label, pred) * mask)


def masked_by_row(label, pred):
    """A mean over each row's own tokens."""
    mask = ops.cast(ops.not_equal(label, 0), "float32")
    return ops.sum(by_token(label, pred) * mask, axis=1) / ops.maximum(ops.sum(mask, axis=1), 1.0)


@program("compiled_masked_loss", on=BOTH)
def compiled(place):
    return place.trained(tagger, place.tokens(), masked_loss)


@program("compiled_masked_loss_safe", on=BOTH)
def compiled_safe(place):
    return place.trained(tagger, place.tokens(), masked_loss_safe)


@program("compiled_masked_loss_and_accuracy", on=BOTH)
def compiled_accuracy(place):
    return place.trained(tagger, place.tokens(), masked_loss, metrics=[masked_accuracy])


@program("compiled_masked_accuracy", on=BOTH)
def accuracy_alone(place):
    """A metric that returns one number for a batch, beside a loss of Keras."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return place.trained(tagger, place.tokens(), loss, metrics=[masked_accuracy])


@program("compiled_masked_mean", on=BOTH)
def compiled_mean(place):
    return place.trained(tagger, place.tokens(), masked_mean)


@program("compiled_masked_by_row", on=BOTH)
def compiled_by_row(place):
    return place.trained(tagger, place.tokens(), masked_by_row)


class MaskedLoss(keras.losses.Loss):
    """The masked loss as a class, as in TensorFlow's tutorial on attention."""

    def __init__(self):
        super().__init__(name="masked_loss", reduction="none")

    def call(self, y_true, y_pred):
        return masked_loss(y_true, y_pred)


class MaskedCall(MaskedLoss):
    """The same with a ``__call__`` of its own, as in its older version."""

    def __call__(self, y_true, y_pred, sample_weight=None):
        return masked_loss(y_true, y_pred)


class MaskedLossReduced(keras.losses.Loss):
    """The same with Keras's own reduction."""

    def call(self, y_true, y_pred):
        return masked_loss(y_true, y_pred)


@program("compiled_masked_class", refused="MaskedLoss")
def compiled_class(place):
    return place.trained(tagger, place.tokens(), MaskedLoss())


@program("compiled_masked_class_reduced", on=BOTH)
def compiled_class_reduced(place):
    return place.trained(tagger, place.tokens(), MaskedLossReduced())


@program("compiled_masked_class_call", on=BOTH)
def compiled_class_call(place):
    return place.trained(tagger, place.tokens(), MaskedCall())


@program("compiled_ignore_class", on=BOTH)
def ignore_class(place):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
    return place.trained(tagger, place.tokens(), loss)


@program("compiled_ignore_class_and_mask", on=BOTH)
def ignore_class_mask(place):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
    data = place.dataset("tokens", "labels").map(lambda x, y, w: (x, y, w[:, None]))
    return place.trained(lambda: tagger(mask_zero=True), data, loss, weighted_metrics=["accuracy"])


@program("compiled_mask_of_layers", on=BOTH)
def mask_of_layers(place):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return place.trained(lambda: tagger(mask_zero=True), place.tokens(), loss, metrics=["accuracy"])


@program("compiled_weights_of_tokens", on=BOTH)
def token_weights(place):
    """Weights of time steps, as a column of the rows."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    data = place.dataset("tokens", "labels", "chosen")
    return place.trained(tagger, data, loss, weighted_metrics=["accuracy"])


@program("compiled_weights_of_tokens_by_weight", on=BOTH)
def token_weights_divided(place):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="mean_with_sample_weight")
    return place.trained(tagger, place.dataset("tokens", "labels", "chosen"), loss)


@program("compiled_weights_of_tokens_in_a_map", on=BOTH)
def token_weights_mapped(place):
    """Weights of time steps that a map computes from the labels and the weights of rows."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    data = place.dataset("tokens", "labels").map(lambda x, y, w: (x, y, tf.cast(y != 0, tf.float32) * w[:, None]))
    return place.trained(tagger, data, loss, weighted_metrics=["accuracy"])


def _step(name, loss):
    @program(f"step_{name}")
    def run(place):
        kind = stepping("TokenLoss", lambda x, y, p: loss(y, p))
        return place.trained(lambda: tagger(kind), place.tokens(), None)


def _selected(label, pred):
    """The loss of the tokens that ``boolean_mask`` selects."""
    mask = tf.not_equal(label, 0)
    return tf.reduce_mean(by_token(tf.boolean_mask(label, mask), tf.boolean_mask(pred, mask)))


def _gathered(label, pred):
    """The loss of the tokens that ``gather_nd`` takes at the places that ``where`` finds."""
    places = tf.where(tf.not_equal(label, 0))
    return tf.reduce_mean(by_token(tf.gather_nd(label, places), tf.gather_nd(pred, places)))


def _by_keras_weights(label, pred):
    """The loss that Keras divides by all tokens, with the mask as their weights."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return loss(label, pred, sample_weight=ops.cast(ops.not_equal(label, 0), "float32"))


def _by_keras_mean_weights(label, pred):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="mean_with_sample_weight")
    return loss(label, pred, sample_weight=ops.cast(ops.not_equal(label, 0), "float32"))


def _by_ignore_class(label, pred):
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)(label, pred)


def _by_count_nonzero(label, pred):
    mask = tf.not_equal(label, 0)
    total = tf.reduce_sum(tf.where(mask, by_token(label, pred), 0.0))
    return total / tf.cast(tf.math.count_nonzero(mask), tf.float32)


def _normalized_by_positives(label, pred):
    """As detectors are trained: the sum over places is divided by the number of positive ones, one at least."""
    positive = ops.cast(ops.equal(label, 2), "float32")
    return ops.sum(by_token(label, pred)) / ops.maximum(ops.sum(positive), 1.0)


_step("masked_loss", masked_loss)
_step("masked_loss_safe", masked_loss_safe)
_step("masked_mean", masked_mean)
_step("masked_by_row", lambda y, p: ops.mean(masked_by_row(y, p)))
_step("boolean_mask", _selected)
_step("gather_where", _gathered)
_step("count_nonzero", _by_count_nonzero)
_step("masked_by_keras_weights", _by_keras_weights)
_step("masked_by_keras_mean_weights", _by_keras_mean_weights)
_step("ignore_class", _by_ignore_class)
_step("divided_by_positives", _normalized_by_positives)
_step("masked_tokens_not_reduced", lambda y, p: 0.02 * by_token(y, p) * ops.cast(ops.not_equal(y, 0), "float32"))


@program("step_masked_loss_and_metrics")
def step_metrics(place):
    """The loss of translation in a step of one's own, with trackers that are weighed by tokens."""

    class TokenLoss(Stepping):
        def __init__(self, layers):
            super().__init__(layers)
            self.accuracy = keras.metrics.SparseCategoricalAccuracy(name="accuracy")

        @property
        def metrics(self):
            return [self.tracker, self.accuracy]

        def train_step(self, data):
            x, y, _ = data
            mask = ops.cast(ops.not_equal(y, 0), "float32")
            with tf.GradientTape() as tape:
                logits = self(x, training=True)
                loss = ops.sum(by_token(y, logits) * mask) / ops.sum(mask)
            gradients = tape.gradient(loss, self.trainable_variables)
            gradients, _ = tf.clip_by_global_norm(gradients, 0.5)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            self.tracker.update_state(loss)
            self.accuracy.update_state(y, logits, sample_weight=mask)
            return {each.name: each.result() for each in self.metrics}

    return place.trained(lambda: tagger(TokenLoss), place.tokens(), None)


@program("step_rows_selected", refused="Selects")
def rows_selected(place):
    """Only the rows of one class count: they are selected before the model sees them."""

    class Selects(Stepping):
        def train_step(self, data):
            x, y, _ = data
            chosen = x["class"] != 1
            x, y = tf.boolean_mask(x["x"], chosen), tf.boolean_mask(y, chosen)
            return super().train_step((x, y, None))

    def build():
        return Selects(linear_layers())

    return place.trained(build, place.dataset(["x", "class"], "y"), None)


@program("step_rows_selected_by_loss")
def hard_rows(place):
    """Only rows whose loss is above a number count."""

    def loss(x, y, y_pred):
        values = ops.square(y_pred[:, 0] - y)
        hard = tf.boolean_mask(values, values > 0.5)
        return tf.reduce_sum(hard) / tf.maximum(tf.cast(tf.size(hard), tf.float32), 1.0)

    return train_stepping(place, stepping("HardRows", loss))


@program("step_rows_by_weights")
def rows_weighted(place):
    """The loss of Keras's guide with the weights of the rows."""

    class Weighs(Stepping):
        def train_step(self, data):
            x, y, w = data
            with tf.GradientTape() as tape:
                loss = self.compute_loss(y=y, y_pred=self(x, training=True), sample_weight=w)
            gradients = tape.gradient(loss, self.trainable_variables)
            gradients = [tf.clip_by_norm(each, 0.5) for each in gradients]
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            self.tracker.update_state(loss)
            return {"own_loss": self.tracker.result()}

    return place.trained(lambda: Weighs(linear_layers()), place.dataset("x", "y", "w"), "mse")


@program("step_mean_by_weights")
def mean_by_weights(place):
    """A mean that is divided by the sum of the rows' weights."""

    class WeightedMean(Stepping):
        def train_step(self, data):
            x, y, w = data
            with tf.GradientTape() as tape:
                losses = ops.square(self(x, training=True)[:, 0] - y)
                loss = ops.sum(losses * w) / ops.sum(w)
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            self.tracker.update_state(loss)
            return {"own_loss": self.tracker.result()}

    return place.trained(lambda: WeightedMean(linear_layers()), place.dataset("x", "y", "w"), None)


def weighted_binary(y, y_pred):
    """Rows of one class weigh more, and the sum is divided by the weights: one number for a batch."""
    y, y_pred = ops.reshape(y, (-1,)), ops.reshape(y_pred, (-1,))
    weight = ops.where(y > 0, 3.0, 1.0)
    return ops.sum(weight * ops.square(y_pred - y)) / ops.sum(weight)


@program("compiled_divided_by_class_weights", on=BOTH)
def class_weights(place):
    return place.trained(line, place.dataset("x", "y"), weighted_binary)


@program("compiled_nan_labels_left_out", on=BOTH)
def nan_labels(place):
    """Labels that are not known are NaN, and left out by the loss."""

    def without_nan(y, y_pred):
        y, y_pred = ops.reshape(y, (-1,)), ops.reshape(y_pred, (-1,))
        known = ops.logical_not(ops.isnan(y))
        error = ops.where(known, y_pred - ops.where(known, y, 0.0), 0.0)
        return ops.sum(ops.square(error)) / ops.maximum(ops.sum(ops.cast(known, "float32")), 1.0)

    data = place.dataset("x", "y").map(lambda x, y, w: (x, tf.where(y > 1.0, np.float32("nan"), y), w))
    return place.trained(line, data, without_nan)
