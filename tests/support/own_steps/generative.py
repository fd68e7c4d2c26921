"""Keras's examples that generate: their ``train_step``, with columns of the rows in place of random numbers."""

import keras
import tensorflow as tf

from tests.support.own_steps.place import Place, small_sgd
from tests.support.own_steps.programs import program

ops = keras.ops
Dense, Input = keras.layers.Dense, keras.Input


class Several(keras.Model):
    """A model of named parts with a tracker for each loss that it shows."""

    shown = ("loss",)

    def __init__(self, **parts):
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self.trackers = {name: keras.metrics.Mean(name=name) for name in self.shown}

    @property
    def metrics(self):
        return list(self.trackers.values())

    def show(self, **values):
        """Update the trackers, and return their results."""
        for name, value in values.items():
            self.trackers[name].update_state(value)
        return {name: each.result() for name, each in self.trackers.items()}

    def step_of(self, optimizer, tape, loss, *parts):
        """Take a step of an optimizer with the gradients of some parts."""
        variables = [variable for part in parts for variable in part.trainable_variables]
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))


def small(inputs, *units, activation="tanh"):
    """Return layers of these sizes, the last one without an activation; without `inputs` they are not built."""
    hidden = [Dense(each, activation=activation) for each in units[:-1]]
    return keras.Sequential([*([Input((inputs,))] if inputs else []), *hidden, Dense(units[-1])])


def fit(place: Place, build, data, **options):
    """Build and compile a model in the scope, by a function that does both, and fit it."""
    with place.scope():
        model = build()
    return place.fit(model, data, **options)


def sgd(rate=0.05):
    return small_sgd(rate)


def binary(labels, logits):
    return keras.losses.BinaryCrossentropy(from_logits=True)(labels, logits)


class VAE(Several):
    """The variational autoencoder of Keras's example."""

    shown = ("loss", "reconstruction", "kl")

    def train_step(self, data):
        x, code = data["x"], data["code"]
        with tf.GradientTape() as tape:
            mean, log_var = ops.split(self.encoder(x), 2, axis=1)
            z = mean + ops.exp(0.5 * log_var) * code
            rebuilt = self.decoder(z)
            reconstruction = ops.mean(ops.sum(ops.square(x - rebuilt), axis=1))
            kl = -0.5 * (1 + log_var - ops.square(mean) - ops.exp(log_var))
            kl = ops.mean(ops.sum(kl, axis=1))
            total = reconstruction + kl
        gradients = tape.gradient(total, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        return self.show(loss=total, reconstruction=reconstruction, kl=kl)


@program("guide_vae")
def vae(place):
    def build():
        model = VAE(encoder=small(4, 3, 4), decoder=small(2, 3, 4))
        model.compile(optimizer=sgd(0.01))
        return model

    return fit(place, build, place.dataset(["x", "code"]))


class GAN(Several):
    """The GAN of Keras's guide to ``fit``: two optimizers, and labels beside noise."""

    shown = ("d_loss", "g_loss")

    def compile(self, d_optimizer, g_optimizer, loss_fn):
        super().compile()
        self.d_optimizer, self.g_optimizer, self.loss_fn = d_optimizer, g_optimizer, loss_fn

    def noise_of_labels(self, data, labels):
        return labels

    def train_step(self, data):
        real, code = data["x"], data["code"]
        rows = ops.shape(real)[0]
        combined = ops.concatenate([self.generator(code), real], axis=0)
        labels = ops.concatenate([ops.ones((rows, 1)), ops.zeros((rows, 1))], axis=0)
        labels = self.noise_of_labels(data, labels)
        with tf.GradientTape() as tape:
            d_loss = self.loss_fn(labels, self.discriminator(combined))
        self.step_of(self.d_optimizer, tape, d_loss, self.discriminator)
        misleading = ops.zeros((rows, 1))
        with tf.GradientTape() as tape:
            g_loss = self.loss_fn(misleading, self.discriminator(self.generator(code)))
        self.step_of(self.g_optimizer, tape, g_loss, self.generator)
        return self.show(d_loss=d_loss, g_loss=g_loss)


def _gan(kind, inputs=(2, 4)):
    model = kind(generator=small(inputs[0], 3, 4), discriminator=small(inputs[1], 3, 1))
    model.compile(keras.optimizers.Adam(0.02), small_sgd(), keras.losses.BinaryCrossentropy(from_logits=True))
    return model


@program("guide_gan")
def gan(place):
    return fit(place, lambda: _gan(GAN), place.dataset(["x", "code"]))


@program("guide_gan_of_parts_that_are_not_built")
def gan_not_built(place):
    return fit(place, lambda: _gan(GAN, (None, None)), place.dataset(["x", "code"]))


class DCGAN(GAN):
    """The same with labels that are not exact, by a column of the rows."""

    def noise_of_labels(self, data, labels):
        noise = ops.concatenate([data["step"], data["step"]], axis=0)
        return labels + 0.05 * ops.reshape(noise, (-1, 1))


@program("example_dcgan")
def dcgan(place):
    return fit(place, lambda: _gan(DCGAN), place.dataset(["x", "code", "step"]))


class ConditionalGAN(GAN):
    """Classes beside images and noise; each half has its own mean."""

    def train_step(self, data):
        real, code = data["x"], data["code"]
        classes = ops.one_hot(data["class"], 3)
        rows = ops.shape(real)[0]
        generated = self.generator(ops.concatenate([code, classes], axis=-1))
        combined = ops.concatenate([generated, real], axis=0)
        combined = ops.concatenate([combined, ops.concatenate([classes, classes], axis=0)], axis=-1)
        labels = ops.concatenate([ops.ones((rows, 1)), ops.zeros((rows, 1))], axis=0)
        with tf.GradientTape() as tape:
            d_loss = self.loss_fn(labels, self.discriminator(combined))
        self.step_of(self.d_optimizer, tape, d_loss, self.discriminator)
        with tf.GradientTape() as tape:
            fake = self.generator(ops.concatenate([code, classes], axis=-1))
            predicted = self.discriminator(ops.concatenate([fake, classes], axis=-1))
            g_loss = self.loss_fn(ops.zeros((rows, 1)), predicted)
        self.step_of(self.g_optimizer, tape, g_loss, self.generator)
        return self.show(d_loss=d_loss, g_loss=g_loss)


@program("example_conditional_gan")
def conditional(place):
    def build():
        model = ConditionalGAN(generator=small(5, 3, 4), discriminator=small(7, 3, 1))
        model.compile(small_sgd(), small_sgd(), keras.losses.BinaryCrossentropy(from_logits=True))
        return model

    return fit(place, build, place.dataset(["x", "code", "class"]))


class WGAN(Several):
    """WGAN-GP: several steps of the critic with a penalty of the gradient for its inputs, one of the generator."""

    shown = ("d_loss", "g_loss", "penalty")

    def compile(self, d_optimizer, g_optimizer):
        super().compile()
        self.d_optimizer, self.g_optimizer = d_optimizer, g_optimizer

    def penalty(self, real, fake, part):
        between = real + part * (fake - real)
        with tf.GradientTape() as tape:
            tape.watch(between)
            predicted = self.critic(between, training=True)
        gradient = tape.gradient(predicted, [between])[0]
        norm = ops.sqrt(ops.sum(ops.square(gradient), axis=1) + 1e-6)
        return ops.mean((norm - 1.0) ** 2)

    def train_step(self, data):
        real, code, part = data["x"], data["code"], ops.reshape(data["step"], (-1, 1))
        for _ in range(2):
            with tf.GradientTape() as tape:
                fake = self.generator(code, training=True)
                cost = ops.mean(self.critic(fake, training=True)) - ops.mean(self.critic(real, training=True))
                penalty = self.penalty(real, fake, part)
                d_loss = cost + 2.0 * penalty
            self.step_of(self.d_optimizer, tape, d_loss, self.critic)
        with tf.GradientTape() as tape:
            g_loss = -ops.mean(self.critic(self.generator(code, training=True), training=True))
        self.step_of(self.g_optimizer, tape, g_loss, self.generator)
        return self.show(d_loss=d_loss, g_loss=g_loss, penalty=penalty)


@program("example_wgan_gp")
def wgan(place):
    def build():
        model = WGAN(generator=small(2, 3, 4), critic=small(4, 3, 1))
        model.compile(small_sgd(0.02), keras.optimizers.Adam(0.02))
        return model

    return fit(place, build, place.dataset(["x", "code", "step"]))


class CycleGAN(Several):
    """Two generators and two discriminators, a persistent tape and four optimizers."""

    shown = ("g_loss", "f_loss", "x_loss", "y_loss")

    def compile(self, *optimizers):
        super().compile()
        self.optimizers_of = list(optimizers)

    def train_step(self, data):
        one, two = data["x"], data["other"]
        mse, mae = keras.losses.MeanSquaredError(), keras.losses.MeanAbsoluteError()
        with tf.GradientTape(persistent=True) as tape:
            fake_two, fake_one = self.g(one), self.f(two)
            cycled_one, cycled_two = self.f(fake_two), self.g(fake_one)
            same_one, same_two = self.f(one), self.g(two)
            real_x, fake_x, real_y, fake_y = self.dx(one), self.dx(fake_one), self.dy(two), self.dy(fake_two)
            g_loss = mse(ops.ones_like(fake_y), fake_y) + 10 * mae(two, cycled_two) + 5 * mae(two, same_two)
            f_loss = mse(ops.ones_like(fake_x), fake_x) + 10 * mae(one, cycled_one) + 5 * mae(one, same_one)
            x_loss = 0.5 * (mse(ops.ones_like(real_x), real_x) + mse(ops.zeros_like(fake_x), fake_x))
            y_loss = 0.5 * (mse(ops.ones_like(real_y), real_y) + mse(ops.zeros_like(fake_y), fake_y))
        pairs = zip(
            self.optimizers_of, (g_loss, f_loss, x_loss, y_loss), (self.g, self.f, self.dx, self.dy), strict=True
        )
        for optimizer, loss, part in pairs:
            self.step_of(optimizer, tape, loss, part)
        del tape
        return self.show(g_loss=g_loss, f_loss=f_loss, x_loss=x_loss, y_loss=y_loss)


@program("example_cyclegan")
def cyclegan(place):
    def build():
        model = CycleGAN(g=small(4, 3, 4), f=small(4, 3, 4), dx=small(4, 2, 1), dy=small(4, 2, 1))
        model.compile(*(small_sgd(0.01) for _ in range(4)))
        return model

    return fit(place, build, place.dataset(["x", "other"]))


class Diffusion(Several):
    """Denoising diffusion: the noise is predicted; a network of averaged weights follows."""

    shown = ("n_loss", "i_loss")

    def train_step(self, data):
        x, noise, step = data["x"], data["noise"], ops.reshape(data["step"], (-1, 1))
        signal, rate = ops.cos(step), ops.sin(step)
        noisy = signal * x + rate * noise
        with tf.GradientTape() as tape:
            predicted = self.network(ops.concatenate([noisy, rate**2], axis=1), training=True)
            images = (noisy - rate * predicted) / signal
            n_loss = self.loss(noise, predicted)
            i_loss = self.loss(x, images)
        gradients = tape.gradient(n_loss, self.network.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.network.trainable_weights, strict=True))
        for weight, averaged in zip(self.network.weights, self.averaged.weights, strict=True):
            averaged.assign(0.8 * averaged + 0.2 * weight)
        return self.show(n_loss=n_loss, i_loss=i_loss)


@program("example_ddim")
def ddim(place):
    def build():
        network = small(5, 3, 4)
        averaged = small(5, 3, 4)
        averaged.set_weights(network.get_weights())
        model = Diffusion(network=network, averaged=averaged)
        model.compile(optimizer=keras.optimizers.AdamW(0.02, weight_decay=0.01), loss=keras.losses.MeanAbsoluteError())
        return model

    return fit(place, build, place.dataset(["x", "noise", "step"]))


@program("example_ddpm")
def ddpm(place):
    """The loss of the example of DDPM: a mean of squares by the loss that is given to ``compile``."""

    class DDPM(Several):
        def train_step(self, data):
            x, noise, step = data["x"], data["noise"], ops.reshape(data["step"], (-1, 1))
            with tf.GradientTape() as tape:
                noisy = ops.sqrt(1 - step) * x + ops.sqrt(step) * noise
                loss = self.loss(noise, self.network(ops.concatenate([noisy, step], axis=1), training=True))
            gradients = tape.gradient(loss, self.network.trainable_weights)
            self.optimizer.apply_gradients(zip(gradients, self.network.trainable_weights, strict=True))
            for weight, averaged in zip(self.network.weights, self.averaged.weights, strict=True):
                averaged.assign(0.9 * averaged + 0.1 * weight)
            return {"loss": loss}

    def build():
        model = DDPM(network=small(5, 3, 4), averaged=small(5, 3, 4))
        model.compile(optimizer=sgd(), loss=keras.losses.MeanSquaredError())
        return model

    return fit(place, build, place.dataset(["x", "noise", "step"]))


@program("example_adversarial_autoencoder")
def adversarial_autoencoder(place):
    """An autoencoder whose codes a discriminator compares with noise: three losses in one step."""

    class Adversarial(Several):
        shown = ("rebuilt", "d_loss", "g_loss")

        def compile(self, *optimizers):
            super().compile()
            self.optimizers_of = list(optimizers)

        def train_step(self, data):
            x, code = data["x"], data["code"]
            with tf.GradientTape() as tape:
                rebuilt = ops.mean(ops.square(x - self.decoder(self.encoder(x))))
            self.step_of(self.optimizers_of[0], tape, rebuilt, self.encoder, self.decoder)
            with tf.GradientTape() as tape:
                real, fake = self.critic(code), self.critic(self.encoder(x))
                d_loss = binary(ops.ones_like(real), real) + binary(ops.zeros_like(fake), fake)
            self.step_of(self.optimizers_of[1], tape, d_loss, self.critic)
            with tf.GradientTape() as tape:
                fake = self.critic(self.encoder(x))
                g_loss = binary(ops.ones_like(fake), fake)
            self.step_of(self.optimizers_of[2], tape, g_loss, self.encoder)
            return self.show(rebuilt=rebuilt, d_loss=d_loss, g_loss=g_loss)

    def build():
        model = Adversarial(encoder=small(4, 3, 2), decoder=small(2, 3, 4), critic=small(2, 3, 1))
        model.compile(*(small_sgd(0.03) for _ in range(3)))
        return model

    return fit(place, build, place.dataset(["x", "code"]))


@program("example_super_resolution_gan")
def super_resolution(place):
    """Images are enlarged; a loss of pixels and one of a fixed network's features."""

    class Enlarges(Several):
        shown = ("loss", "pixels", "features")

        def train_step(self, data):
            x = data["image"]
            low = ops.average_pool(x, 2, 2)
            with tf.GradientTape() as tape:
                enlarged = self.network(low)
                pixels = ops.mean(ops.abs(enlarged - x))
                features = ops.mean(ops.square(self.fixed(enlarged) - self.fixed(x)))
                loss = pixels + 0.5 * features
            gradients = tape.gradient(loss, self.network.trainable_variables)
            gradients = [tf.clip_by_norm(each, 0.1) for each in gradients]
            self.optimizer.apply_gradients(zip(gradients, self.network.trainable_variables, strict=True))
            return self.show(loss=loss, pixels=pixels, features=features)

    def build():
        layers = keras.layers
        network = keras.Sequential([Input((2, 2, 1)), layers.Conv2D(4, 1), layers.Conv2DTranspose(1, 2, strides=2)])
        fixed = keras.Sequential([Input((4, 4, 1)), layers.Conv2D(2, 3)])
        fixed.trainable = False
        model = Enlarges(network=network, fixed=fixed)
        model.compile(optimizer=sgd(0.1))
        return model

    return fit(place, build, place.dataset(["image"]))


class VQ(keras.layers.Layer):
    """The quantizer of Keras's example of VQ-VAE: its codebook is learned by a loss that it adds."""

    def build(self, shape):
        self.codebook = self.add_weight((shape[-1], 4), "random_uniform", name="codebook")

    def call(self, x):
        distances = ops.sum(x**2, axis=1, keepdims=True) + ops.sum(self.codebook**2, axis=0) - 2 * x @ self.codebook
        chosen = ops.one_hot(ops.argmin(distances, axis=1), 4)
        quantized = chosen @ ops.transpose(self.codebook)
        self.add_loss(0.25 * ops.mean((ops.stop_gradient(quantized) - x) ** 2))
        self.add_loss(ops.mean((quantized - ops.stop_gradient(x)) ** 2))
        return x + ops.stop_gradient(quantized - x)


@program("example_vq_vae")
def vq_vae(place):
    class Quantized(Several):
        shown = ("loss", "reconstruction", "vq_loss")

        def train_step(self, data):
            x = data["x"]
            with tf.GradientTape() as tape:
                reconstruction = ops.mean((x - self.network(x)) ** 2) / 0.7
                loss = reconstruction + sum(self.network.losses)
            gradients = tape.gradient(loss, self.network.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.network.trainable_variables, strict=True))
            return self.show(loss=loss, reconstruction=reconstruction, vq_loss=sum(self.network.losses))

    def build():
        network = keras.Sequential([Input((4,)), Dense(2), VQ(), Dense(4)])
        model = Quantized(network=network)
        model.compile(optimizer=sgd())
        return model

    return fit(place, build, place.dataset(["x"]))
