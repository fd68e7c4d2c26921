"""A script becomes a cluster's program: it gets its command line as it was, and parses it with argparse.

What the driver does not know of the command line is handed to the nodes as a list, which is their ``sys.argv``.
The program trains in a loop of its own, in step with the other nodes, on data that it makes.

    spark-submit --master spark://... argv.py --cluster_size 2 --steps 100 --model_dir plane
"""

import argparse
import sys

from pyspark import SparkConf, SparkContext

from tensorflowonspark import TFCluster


def main_fun(argv, ctx):
    """Fit a plane to points; the chief writes the error that is left."""
    import tensorflow as tf

    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", help="rows of a step over all nodes", type=int, default=64)
    parser.add_argument("--learning_rate", help="of the optimizer", type=float, default=0.2)
    parser.add_argument("--model_dir", help="where the result goes", default="plane")
    parser.add_argument("--steps", help="number of steps", type=int, default=100)
    args = parser.parse_args()
    assert argv == sys.argv

    def points(context):
        features = tf.random.Generator.from_seed(context.input_pipeline_id).uniform((1000, 3), -1, 1)
        labels = tf.linalg.matvec(features, [1.0, -2.0, 3.0]) + 0.5
        dataset = tf.data.Dataset.from_tensor_slices((features, labels))
        return dataset.repeat().batch(context.get_per_replica_batch_size(args.batch_size))

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    dataset = strategy.distribute_datasets_from_function(points)
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(3,))])
        optimizer = tf.keras.optimizers.SGD(learning_rate=args.learning_rate)

    def replica_step(features, labels):
        with tf.GradientTape() as tape:
            errors = tf.square(model(features, training=True)[:, 0] - labels)
            loss = tf.nn.compute_average_loss(errors, global_batch_size=args.batch_size)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function
    def step(iterator):
        losses = strategy.run(replica_step, args=next(iterator))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    iterator = iter(dataset)
    for number in range(args.steps):
        loss = step(iterator)
        if number % 20 == 0:
            print(f"step {number}: loss {float(loss):.6f}")

    if ctx.job_name == "chief":
        model_dir = ctx.absolute_path(args.model_dir)
        tf.io.gfile.makedirs(model_dir)
        with tf.io.gfile.GFile(model_dir + "/loss.txt", "w") as result:
            result.write(f"{float(loss):.6f} after {args.steps} steps\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--cluster_size", help="number of nodes", type=int, default=2)
    parser.add_argument("--model_dir", help="where the result goes", default="plane")
    args, rest = parser.parse_known_args()
    argv = [sys.argv[0], "--model_dir", args.model_dir, *rest]

    sc = SparkContext(conf=SparkConf().setAppName("argv"))
    cluster = TFCluster.run(
        sc, main_fun, argv, args.cluster_size, num_ps=0, input_mode=TFCluster.InputMode.TENSORFLOW, master_node="chief"
    )
    cluster.shutdown()

    print("loss:", sc.textFile(args.model_dir + "/loss.txt").first())
    sc.stop()
