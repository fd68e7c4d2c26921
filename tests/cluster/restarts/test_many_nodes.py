"""Eight nodes on one host, forked from one server, that train together; one is killed, and all start again."""

import os
import subprocess
import sys
import textwrap

import pytest

_DRIVER = """
    import os
    import signal
    import sys

    from pyspark.sql import SparkSession

    import tensorflowonspark as tfos

    _NODES = 8


    def look(args, ctx):
        import tensorflow


    def train(args, ctx):
        warm = "tensorflow" in sys.modules
        import keras
        import numpy as np
        import tensorflow as tf

        class Killer(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                if ctx.attempt == 0 and ctx.index == ctx.num_workers - 1 and batch == 2:
                    os.kill(os.getpid(), signal.SIGKILL)

        keras.utils.set_random_seed(1)
        with tf.distribute.MultiWorkerMirroredStrategy().scope():
            model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
            model.compile("sgd", "mse")
        rows = np.random.default_rng(1).random((64, 4), dtype=np.float32)
        data = tf.data.Dataset.from_tensor_slices((rows, rows[:, :1])).batch(16)
        model.fit(data, epochs=2, verbose=0, callbacks=[Killer()])
        return warm, ctx.attempt, int(model.optimizer.iterations.numpy()), model.get_weights()[0].tolist()


    spark = SparkSession.builder.master(f"local[{_NODES}]").config("spark.ui.enabled", "false").getOrCreate()
    tfos.run(spark, look)  # this starts the fork server
    with tfos.Cluster(spark, train, num_workers=_NODES, restarts=1, show="chief") as cluster:
        results = list(cluster.join().values())
    spark.stop()
    assert [each[1:] for each in results] == [results[0][1:]] * _NODES, results
    assert results[0][1:3] == (1, 8), results[0]
    assert any(warm for warm, *_ in results), results  # on a busy host some do not wait for the fork server
    print("trained again", flush=True)
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_eight_forked_nodes_train_again_when_one_was_killed(tmp_path):
    script = tmp_path / "driver.py"
    script.write_text(textwrap.dedent(_DRIVER))
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    driver = subprocess.run(
        [sys.executable, str(script)], check=False, capture_output=True, text=True, env=environment, timeout=280
    )
    assert driver.stdout.splitlines()[-1:] == ["trained again"], driver.stderr[-5000:]
    assert "worker:7" in driver.stderr  # the log names the node that was killed, and that all start again
    assert "started again" in driver.stderr
