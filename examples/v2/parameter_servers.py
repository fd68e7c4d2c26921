"""Asynchronous training: workers compute gradients, parameter servers hold the weights, and a chief coordinates.

TensorFlow's servers never end by themselves. Parameter servers are ended with the cluster; a worker serves until the
chief has written its result, or with ``--join`` until it is ended, too.

    spark-submit --master spark://... parameter_servers.py --cluster_size 3 --num_ps 1 --driver_ps_nodes --model_dir run
"""

import argparse
import time

from pyspark import SparkConf, SparkContext

from tensorflowonspark import TFCluster


def serve(args, ctx, cluster_spec):
    """Do what the chief asks for."""
    import tensorflow as tf

    server = tf.distribute.Server(cluster_spec, job_name=ctx.job_name, task_index=ctx.task_index, protocol="grpc")
    if ctx.job_name == "ps" or args.join:
        server.join()
    while not tf.io.gfile.exists(ctx.absolute_path(args.model_dir) + "/accuracy.txt"):
        time.sleep(1)


def main_fun(args, ctx):
    """Coordinate, on the chief; serve on the others."""
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if ctx.job_name in ("ps", "worker"):
        return serve(args, ctx, resolver.cluster_spec())

    from sklearn.datasets import load_digits

    images, digits = load_digits(return_X_y=True)
    images = (images / 16).astype("float32")
    strategy = tf.distribute.experimental.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.experimental.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.layers.Dense(10, input_shape=(64,))])
        optimizer = tf.keras.optimizers.SGD(learning_rate=0.5)

    def dataset_fn():
        dataset = tf.data.Dataset.from_tensor_slices((images, digits))
        return dataset.shuffle(len(digits)).repeat().batch(args.batch_size)

    def replica_step(features, labels):
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, model(features, training=True))
            loss = tf.reduce_mean(losses)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function
    def step(iterator):
        return strategy.run(replica_step, args=next(iterator))

    iterator = iter(coordinator.create_per_worker_dataset(tf.function(dataset_fn)))
    for _ in range(args.epochs):
        for _ in range(len(digits) // args.batch_size):
            loss = coordinator.schedule(step, args=(iterator,))
        coordinator.join()
        print(f"loss: {loss.fetch():.3f}")

    predictions = tf.argmax(model(images, training=False), axis=1).numpy()
    model_dir = ctx.absolute_path(args.model_dir)
    tf.io.gfile.makedirs(model_dir)
    with tf.io.gfile.GFile(model_dir + "/accuracy.txt", "w") as result:
        result.write(f"{(predictions == digits).mean():.3f}\n")
    return None


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", help="rows of a step of one worker", type=int, default=64)
    parser.add_argument("--cluster_size", help="number of nodes of all roles", type=int, default=3)
    parser.add_argument("--driver_ps_nodes", help="run the parameter servers in the driver", action="store_true")
    parser.add_argument("--epochs", help="number of epochs", type=int, default=10)
    parser.add_argument("--join", help="workers serve until they are ended", action="store_true")
    parser.add_argument("--model_dir", help="where the result goes; must not be there", default="digits_run")
    parser.add_argument("--num_ps", help="how many of the nodes are parameter servers", type=int, default=1)
    args = parser.parse_args()

    sc = SparkContext(conf=SparkConf().setAppName("parameter_servers"))
    cluster = TFCluster.run(
        sc,
        main_fun,
        args,
        args.cluster_size,
        num_ps=args.num_ps,
        input_mode=TFCluster.InputMode.TENSORFLOW,
        driver_ps_nodes=args.driver_ps_nodes,
        master_node="chief",
    )
    cluster.shutdown()

    print("accuracy:", sc.textFile(args.model_dir + "/accuracy.txt").first())
    sc.stop()
