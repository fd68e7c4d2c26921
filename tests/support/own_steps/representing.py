"""Keras's examples that learn representations: distillation, two views of a row, teachers that follow."""

import keras
import tensorflow as tf

from tests.support.own_steps.generative import Several, fit, sgd, small
from tests.support.own_steps.programs import JAX, TENSORFLOW, program

ops = keras.ops
Dense, Input = keras.layers.Dense, keras.Input


class Distiller(keras.Model):
    """The knowledge distillation of Keras's example, by ``compute_loss``."""

    def __init__(self):
        super().__init__()
        self.teacher, self.student = small(4, 3), small(4, 3)
        self.teacher.trainable = False

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True, allow_empty=False):
        teacher = self.teacher(x, training=False)
        student_loss = self.student_loss(y, y_pred, sample_weight)
        soft = keras.losses.KLDivergence()(ops.softmax(teacher / 2), ops.softmax(y_pred / 2), sample_weight) * 4
        return 0.3 * student_loss + 0.7 * soft

    def call(self, x):
        return self.student(x)


@program("example_distillation", on=(TENSORFLOW, JAX))
def distillation(place):
    def build():
        model = Distiller()
        model.student_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.build((None, 4))
        model.compile(sgd(), metrics=[keras.metrics.SparseCategoricalAccuracy()])
        return model

    return fit(place, build, place.dataset("x", "class"))


@program("example_distillation_own_step")
def distillation_step(place):
    """The same as the example was before Keras 3: a step of its own."""

    class Distills(Several):
        shown = ("student_loss", "distillation_loss")

        def train_step(self, data):
            x, y, _ = data
            teacher = self.teacher(x, training=False)
            with tf.GradientTape() as tape:
                student = self.student(x, training=True)
                student_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)(y, student)
                soft = keras.losses.KLDivergence()(ops.softmax(teacher / 2, axis=1), ops.softmax(student / 2, axis=1))
                loss = 0.3 * student_loss + 0.7 * 4 * soft
            self.step_of(self.optimizer, tape, loss, self.student)
            return self.show(student_loss=student_loss, distillation_loss=soft)

    def build():
        model = Distills(teacher=small(4, 3), student=small(4, 3))
        model.compile(sgd())
        return model

    return fit(place, build, place.dataset("x", "class"))


@program("example_simclr", refused="Contrastive")
def simclr(place):
    """The contrastive loss compares each row with all of the batch."""

    class Contrastive(Several):
        shown = ("c_loss",)

        def train_step(self, data):
            with tf.GradientTape() as tape:
                one, two = (ops.normalize(self.encoder(data[name]), axis=1) for name in ("x", "other"))
                similar = ops.matmul(one, ops.transpose(two)) / 0.5
                labels = ops.arange(ops.shape(similar)[0])
                loss = keras.losses.sparse_categorical_crossentropy(
                    ops.concatenate([labels, labels], axis=0),
                    ops.concatenate([similar, ops.transpose(similar)], axis=0),
                    from_logits=True,
                )
                loss = ops.mean(loss)
            self.step_of(self.optimizer, tape, loss, self.encoder)
            return self.show(c_loss=loss)

    def build():
        model = Contrastive(encoder=small(4, 3, 2))
        model.compile(sgd())
        return model

    return fit(place, build, place.dataset(["x", "other"]))


@program("example_barlow_twins")
def barlow(place):
    """The correlations of two views over a batch."""

    class Twins(Several):
        def train_step(self, data):
            with tf.GradientTape() as tape:
                one, two = (self.encoder(data[name]) for name in ("x", "other"))
                one, two = ((each - ops.mean(each, axis=0)) / (ops.std(each, axis=0) + 1e-3) for each in (one, two))
                found = ops.matmul(ops.transpose(one), two) / ops.cast(ops.shape(one)[0], "float32")
                loss = ops.sum(ops.square(found - ops.eye(2)))
            self.step_of(self.optimizer, tape, loss, self.encoder)
            return self.show(loss=loss)

    def build():
        model = Twins(encoder=small(4, 3, 2))
        model.compile(sgd(0.01))
        return model

    return fit(place, build, place.dataset(["x", "other"]))


def _similarity(p, z):
    z = ops.stop_gradient(z)
    return -ops.mean(ops.sum(ops.normalize(p, axis=1) * ops.normalize(z, axis=1), axis=1))


@program("example_simsiam")
def simsiam(place):
    class SimSiam(Several):
        def train_step(self, data):
            with tf.GradientTape() as tape:
                z1, z2 = self.encoder(data["x"]), self.encoder(data["other"])
                p1, p2 = self.predictor(z1), self.predictor(z2)
                loss = _similarity(p1, z2) / 2 + _similarity(p2, z1) / 2
            self.step_of(self.optimizer, tape, loss, self.encoder, self.predictor)
            return self.show(loss=loss)

    def build():
        model = SimSiam(encoder=small(4, 3, 2), predictor=small(2, 2))
        model.compile(sgd())
        return model

    return fit(place, build, place.dataset(["x", "other"]))


@program("example_byol")
def byol(place):
    """The target's weights follow those of the online network in each step."""

    class BYOL(Several):
        def train_step(self, data):
            with tf.GradientTape() as tape:
                p1, p2 = (self.predictor(self.online(data[name])) for name in ("x", "other"))
                t1, t2 = (ops.stop_gradient(self.target(data[name])) for name in ("x", "other"))
                loss = ops.mean(2 - 2 * ops.sum(ops.normalize(p1, axis=1) * ops.normalize(t2, axis=1), axis=1))
                loss += ops.mean(2 - 2 * ops.sum(ops.normalize(p2, axis=1) * ops.normalize(t1, axis=1), axis=1))
            self.step_of(self.optimizer, tape, loss, self.online, self.predictor)
            for target, online in zip(self.target.weights, self.online.weights, strict=True):
                target.assign(0.7 * target + 0.3 * online)
            return self.show(loss=loss)

    def build():
        model = BYOL(online=small(4, 3, 2), target=small(4, 3, 2), predictor=small(2, 2))
        model.compile(sgd())
        return model

    return fit(place, build, place.dataset(["x", "other"]))


@program("mean_teacher")
def mean_teacher(place):
    """A teacher of averaged weights; its predictions are targets, with a weight that grows by the step."""

    class Teacher(Several):
        shown = ("loss", "consistency")

        def train_step(self, data):
            x, y, _ = data
            with tf.GradientTape() as tape:
                student = self.student(x["x"])
                consistency = ops.mean(ops.square(student - ops.stop_gradient(self.teacher(x["other"]))))
                weight = ops.minimum(ops.cast(self.optimizer.iterations, "float32") / 5, 1.0)
                loss = ops.mean(ops.square(student[:, 0] - y)) + weight * consistency
            self.step_of(self.optimizer, tape, loss, self.student)
            for teacher, student in zip(self.teacher.weights, self.student.weights, strict=True):
                teacher.assign(0.8 * teacher + 0.2 * student)
            return self.show(loss=loss, consistency=consistency)

    def build():
        model = Teacher(student=small(4, 3, 1), teacher=small(4, 3, 1))
        model.compile(sgd())
        return model

    return fit(place, build, place.dataset(["x", "other"], "y"))


@program("example_siamese_triplets")
def triplets(place):
    """The triplet loss of Keras's example of a siamese network: a mean over rows of what is above a margin."""

    class Siamese(Several):
        def train_step(self, data):
            with tf.GradientTape() as tape:
                anchor, near, far = (self.encoder(data[name]) for name in ("x", "other", "noise"))
                near, far = (ops.sum(ops.square(anchor - each), axis=-1) for each in (near, far))
                loss = ops.maximum(near - far + 0.5, 0.0)
            gradients = tape.gradient(loss, self.encoder.trainable_weights)
            self.optimizer.apply_gradients(zip(gradients, self.encoder.trainable_weights, strict=True))
            return self.show(loss=loss)

    def build():
        model = Siamese(encoder=small(4, 3, 2))
        model.compile(sgd(0.005))
        return model

    return fit(place, build, place.dataset(["x", "other", "noise"]))


@program("example_scan")
def scan(place):
    """Semantic clustering: consistency of neighbours, and the entropy of the mean over a batch."""

    class Clusters(Several):
        shown = ("loss", "entropy")

        def train_step(self, data):
            with tf.GradientTape() as tape:
                one, two = (ops.softmax(self.head(data[name])) for name in ("x", "other"))
                consistency = -ops.mean(ops.log(ops.sum(one * two, axis=1) + 1e-6))
                mean = ops.mean(one, axis=0)
                entropy = -ops.sum(mean * ops.log(mean + 1e-6))
                loss = consistency - 2 * entropy
            self.step_of(self.optimizer, tape, loss, self.head)
            return self.show(loss=loss, entropy=entropy)

    def build():
        model = Clusters(head=small(4, 3, 3))
        model.compile(sgd())
        return model

    return fit(place, build, place.dataset(["x", "other"]))


@program("example_clip", refused="DualEncoder")
def clip(place):
    """Keras's example of a dual encoder: the targets are similarities within the batch."""

    class DualEncoder(Several):
        def train_step(self, data):
            with tf.GradientTape() as tape:
                one, two = self.images(data["x"]), self.texts(data["other"])
                logits = ops.matmul(one, ops.transpose(two))
                targets = ops.softmax((ops.matmul(one, ops.transpose(one)) + ops.matmul(two, ops.transpose(two))) / 2)
                rows = keras.losses.categorical_crossentropy(targets, logits, from_logits=True)
                columns = keras.losses.categorical_crossentropy(
                    ops.transpose(targets), ops.transpose(logits), from_logits=True
                )
                loss = ops.mean((rows + columns) / 2)
            self.step_of(self.optimizer, tape, loss, self.images, self.texts)
            return self.show(loss=loss)

    def build():
        model = DualEncoder(images=small(4, 2), texts=small(4, 2))
        model.compile(sgd(0.01))
        return model

    return fit(place, build, place.dataset(["x", "other"]))


@program("example_masked_autoencoder")
def masked_autoencoder(place):
    """Features that a column of the rows marks are rebuilt from the others; the loss is a mean over all of the marked.

    As many are marked in each row.
    """

    class Masks(Several):
        def train_step(self, data):
            x, places = data["x"], ops.argsort(data["noise"], axis=1)[:, :2]
            mask = ops.max(ops.one_hot(places, 4), axis=1)
            with tf.GradientTape() as tape:
                rebuilt = self.network(x * (1 - mask))
                chosen, given = (ops.take_along_axis(each, places, axis=1) for each in (rebuilt, x))
                loss = self.compute_loss(y=given, y_pred=chosen)
            self.step_of(self.optimizer, tape, loss, self.network)
            return self.show(loss=loss)

    def build():
        model = Masks(network=small(4, 3, 4))
        model.compile(sgd(), loss=keras.losses.MeanSquaredError())
        return model

    return fit(place, build, place.dataset(["x", "noise"]))


class Codebook(keras.layers.Layer):
    """A codebook that follows the rows that chose each code, as VQ-VAE 2 has it."""

    def build(self, shape):
        self.codes = self.add_weight((4, shape[-1]), "random_normal", trainable=False, name="codes")
        self.counts = self.add_weight((4,), "ones", trainable=False, name="counts")
        self.sums = self.add_weight((4, shape[-1]), "random_normal", trainable=False, name="sums")

    def call(self, x, training=False):
        distances = ops.sum(ops.square(x[:, None] - self.codes[None]), axis=-1)
        chosen = ops.one_hot(ops.argmin(distances, axis=1), 4)
        if training:
            self.counts.assign(0.7 * self.counts + 0.3 * ops.sum(chosen, axis=0))
            self.sums.assign(0.7 * self.sums + 0.3 * ops.matmul(ops.transpose(chosen), ops.stop_gradient(x)))
            self.codes.assign(self.sums / (self.counts[:, None] + 1e-3))
        quantized = ops.matmul(chosen, self.codes)
        return x + ops.stop_gradient(quantized - x)


@program("state_vq_codebook", on=(TENSORFLOW, JAX))
def codebook(place):
    def build():
        model = keras.Sequential([Input((4,)), Dense(2), Codebook(), Dense(4)])
        model.compile(sgd(), "mse")
        return model

    return fit(place, build, place.dataset("x", "x"))


@program("example_queue_of_features", refused="Queue")
def queue(place):
    """MoCo and NNCLR: a queue of the features of former rows, which is a weight."""

    class Queue(Several):
        def __init__(self, **parts):
            super().__init__(**parts)
            self.queue = self.add_weight((6, 2), "random_normal", trainable=False, name="queue")

        def train_step(self, data):
            with tf.GradientTape() as tape:
                one, two = (ops.normalize(self.encoder(data[name]), axis=1) for name in ("x", "other"))
                near = ops.sum(one * ops.stop_gradient(two), axis=1, keepdims=True)
                logits = ops.concatenate([near, ops.matmul(one, ops.transpose(self.queue))], axis=1)
                loss = ops.mean(keras.losses.sparse_categorical_crossentropy(
                    ops.zeros(ops.shape(near)[0]), logits, from_logits=True))  # fmt: skip
            self.step_of(self.optimizer, tape, loss, self.encoder)
            self.queue.assign(ops.concatenate([two, self.queue], axis=0)[:6])
            return self.show(loss=loss)

    def build():
        model = Queue(encoder=small(4, 3, 2))
        model.compile(sgd())
        return model

    return fit(place, build, place.dataset(["x", "other"]))
