"""Asynchronous training with parameter servers: the programs of a chief that coordinates, and of nodes that serve."""

from tests.support.programs import small_model


def coordinated(chief):
    """Return a program that calls `chief` on the chief with args, ctx and a coordinator; the other nodes serve."""

    def program(args, ctx):
        import tensorflow as tf

        if not ctx.is_chief:
            ctx.join_server()
        strategy = tf.distribute.ParameterServerStrategy(tf.distribute.cluster_resolver.TFConfigClusterResolver())
        return chief(args, ctx, tf.distribute.coordinator.ClusterCoordinator(strategy))

    return program


class Loop:
    """A training loop of one's own with Keras 3, whose steps return the ids of the rows that they trained on."""

    def __init__(self, coordinator):
        import keras
        import tensorflow as tf

        self.coordinator = coordinator
        with coordinator.strategy.scope():
            model, optimizer = small_model(), keras.optimizers.SGD(1e-3)
            self.trained = tf.Variable(0, dtype=tf.int64)

        def on_worker(x, ids, weight):
            with tf.GradientTape() as tape:
                wanted = tf.cast(ids % 7, tf.float32)
                loss = tf.reduce_mean(weight * tf.square(model(x, training=True)[:, 0] - wanted))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            real = tf.boolean_mask(ids, weight > 0)
            self.trained.assign_add(tf.size(real, tf.int64))
            return real

        @tf.function
        def step(rows):
            batch = rows.get_next_as_optional()
            return tf.cond(
                batch.has_value(),
                lambda: coordinator.strategy.run(on_worker, args=batch.get_value()),
                lambda: tf.zeros((0,), tf.int64),
            )

        self._step = step

    def dataset(self, feed, batch_size=16, **options):
        make = feed.per_worker(batch_size, features="features", label="id", **options)
        return self.coordinator.create_per_worker_dataset(make)

    def steps(self, rows, count):
        """Take some steps; return the ids in their order."""
        results = [self.coordinator.schedule(self._step, args=(rows,)) for _ in range(count)]
        self.coordinator.join()
        return [int(each) for result in results for each in result.fetch()]

    def to_the_end(self, feed, rows, *, passes=1):
        """Train until all workers are at the end of their rows, so many times since the feed began."""
        ids = []
        while feed.passes_ended < passes:
            ids += self.steps(rows, 8)
        return ids
