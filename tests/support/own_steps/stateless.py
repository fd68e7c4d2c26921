"""Steps of one's own on JAX, which take a state and return another one, as in Keras's guide."""

import keras

from tests.support.own_steps.place import small_sgd
from tests.support.own_steps.programs import JAX, program
from tests.support.own_steps.stepping import linear_layers

ops = keras.ops


class Stateless(keras.Sequential):
    """The model of the guide "Customizing what happens in fit() with JAX", of which programs change a part."""

    def loss_of(self, x, y, y_pred, w):
        return self.compute_loss(x, y, y_pred, w)

    def changed(self, gradients):
        return gradients

    def compute_loss_and_updates(self, trainable, others, x, y, w, training=False):
        y_pred, others = self.stateless_call(trainable, others, x, training=training)
        return self.loss_of(x, y, y_pred, w), (y_pred, others)

    def gradient(self, trainable, others, x, y, w):
        import jax

        found = jax.value_and_grad(self.compute_loss_and_updates, has_aux=True)
        return found(trainable, others, x, y, w, training=True)

    def train_step(self, state, data):
        trainable, others, of_optimizer, of_metrics = state
        x, y, w = data
        (loss, (y_pred, others)), gradients = self.gradient(trainable, others, x, y, w)
        trainable, of_optimizer = self.optimizer.stateless_apply(of_optimizer, self.changed(gradients), trainable)
        logs, metrics = self.updated(of_metrics, loss, y, y_pred, w)
        return logs, (trainable, others, of_optimizer, metrics)

    def updated(self, variables, loss, y, y_pred, w):
        found, logs = [], {}
        for metric in self.metrics:
            of_metric = variables[len(found) : len(found) + len(metric.variables)]
            if metric.name == "loss":
                of_metric = metric.stateless_update_state(of_metric, loss)
            else:
                of_metric = metric.stateless_update_state(of_metric, y, y_pred)
            result = metric.stateless_result(of_metric)
            logs.update(result if isinstance(result, dict) else {metric.name: result})
            found += of_metric
        return logs, found


def _train(place, kind, data=None, loss="mse", rate=0.05, **options):
    data = place.dataset("x", "y") if data is None else data
    return place.trained(lambda: kind(linear_layers()), data, loss, lambda: small_sgd(rate), **options)


@program("jax_guide", on=(JAX,), refused="Stateless")
def guide(place):
    """The guide's step, in which ``compute_loss`` has no weights."""

    class Guide(Stateless):
        def loss_of(self, x, y, y_pred, w):
            return self.compute_loss(x, y, y_pred)

    Guide.__name__ = "StatelessGuide"
    return _train(place, Guide)


@program("jax_guide_with_weights", on=(JAX,))
def guide_weights(place):
    return _train(place, Stateless)


@program("jax_guide_with_metrics", on=(JAX,), refused="Stateless")
def guide_metrics(place):
    """The guide's metrics, which have no weights."""
    return _train(place, Stateless, metrics=["mae"])


@program("jax_own_mean", on=(JAX,), refused="StatelessMean")
def own_mean(place):
    """A mean over the rows of a batch, of which some are padding."""

    class StatelessMean(Stateless):
        def loss_of(self, x, y, y_pred, w):
            return ops.mean(ops.square(y_pred[:, 0] - y))

    return _train(place, StatelessMean)


@program("jax_own_mean_by_weights", on=(JAX,), refused="StatelessByWeights")
def own_mean_by_weights(place):
    """What docs/jax.md asks for: multiplied with the weights, and divided by the number of real rows."""

    class StatelessByWeights(Stateless):
        def loss_of(self, x, y, y_pred, w):
            return ops.sum(w * ops.square(y_pred[:, 0] - y)) / ops.sum(w)

    return _train(place, StatelessByWeights)


@program("jax_own_sum_by_weights", on=(JAX,), refused="StatelessSum")
def own_sum_by_weights(place):
    class StatelessSum(Stateless):
        def loss_of(self, x, y, y_pred, w):
            return ops.sum(w * ops.square(y_pred[:, 0] - y))

    return _train(place, StatelessSum, rate=0.005)


@program("jax_own_root", on=(JAX,), refused="StatelessRoot")
def own_root(place):
    class StatelessRoot(Stateless):
        def loss_of(self, x, y, y_pred, w):
            return ops.sqrt(ops.mean(ops.square(y_pred[:, 0] - y)) + 1e-6)

    return _train(place, StatelessRoot)


@program("jax_clip_by_norm", on=(JAX,))
def clips(place):
    class Clips(Stateless):
        def changed(self, gradients):
            norm = ops.sqrt(sum(ops.sum(ops.square(each)) for each in gradients))
            return [each * ops.minimum(1.0, 0.5 / norm) for each in gradients]

    return _train(place, Clips)


@program("jax_sam", on=(JAX,))
def sam(place):
    class Sharpness(Stateless):
        def gradient(self, trainable, others, x, y, w):
            _, here = super().gradient(trainable, others, x, y, w)
            norm = ops.sqrt(sum(ops.sum(ops.square(each)) for each in here))
            moved = [value + 0.2 * each / norm for value, each in zip(trainable, here, strict=True)]
            return super().gradient(moved, others, x, y, w)

    return _train(place, Sharpness)


@program("jax_maml", on=(JAX,))
def maml(place):
    """An inner step, and the gradient through it."""

    class Learns(Stateless):
        def gradient(self, trainable, others, x, y, w):
            import jax

            def outer(values):
                inner = jax.grad(lambda each: self.compute_loss_and_updates(each, others, x, y, w)[0])(values)
                moved = [value - 0.1 * each for value, each in zip(values, inner, strict=True)]
                return self.compute_loss_and_updates(moved, others, x, y, w, training=True)

            return jax.value_and_grad(outer, has_aux=True)(trainable)

    return _train(place, Learns)


@program("jax_test_step", on=(JAX,))
def test_step(place):
    """The guide's ``test_step``, with the weights of rows."""

    class Tests(Stateless):
        def test_step(self, state, data):
            x, y, w = data
            trainable, others, of_metrics = state
            y_pred, others = self.stateless_call(trainable, others, x, training=False)
            logs, metrics = self.updated(of_metrics, self.compute_loss(x, y, y_pred, w), y, y_pred, w)
            return logs, (trainable, others, metrics)

    with place.scope():
        model = Tests(linear_layers())
        model.compile(small_sgd(), "mse")
    data = place.dataset("x", "y")
    found = place.fit(model, data, validation_data=data)
    return {**found, "evaluated": model.evaluate(data, verbose=0, return_dict=True)}
