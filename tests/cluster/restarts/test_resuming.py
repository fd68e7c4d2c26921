"""Checkpoints of whole clusters: runs that are broken off, and begin again."""

import os
import signal
from pathlib import Path

import pytest

import tensorflowonspark as tfos

pytestmark = [pytest.mark.masters("local"), pytest.mark.timeout(240)]


def synchronous(args, ctx):
    """Go on from what the chief takes for the newest, with variables that TensorFlow reads from all workers."""
    import tensorflow as tf

    from tensorflowonspark.node.checkpoint.store import CheckpointStore

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        weight = tf.Variable(0.0)
        rows = tf.Variable(
            0.0, False, synchronization=tf.VariableSynchronization.ON_READ, aggregation=tf.VariableAggregation.SUM
        )
    state = tf.train.Checkpoint(weight=weight, rows=rows)

    @tf.function
    def step():
        strategy.run(lambda: (weight.assign_add(1.0), rows.assign_add(10.0)))

    if args["seen"] and ctx.is_chief:
        CheckpointStore.latest = lambda shelf: shelf.complete()[args["seen"] - 1]  # a newer one is being written
    checkpoint = ctx.checkpoint(args["directory"])
    if args.get("harmed") and ctx.index == 1:  # this worker alone reads other bits
        fetch, harm = CheckpointStore.fetch, ["the newest"]
        CheckpointStore.fetch = lambda shelf, saved, local: (
            shelf.skip(saved.name, harm.pop()) if harm else fetch(shelf, saved, local)
        )
    first = checkpoint.restore(state)
    restored = float(weight.numpy()), float(rows.numpy())
    for number in range(first, args["steps"]):
        step()
        checkpoint.save(state, number + 1)
    return first, restored


@pytest.mark.slow
def test_all_workers_go_on_from_the_one_that_the_chief_chose(spark, tmp_path):
    def run(**args):
        one, other = tfos.run(spark, synchronous, {"directory": f"file://{tmp_path}", **args}, num_workers=2).values()
        assert one == other
        return one

    assert run(steps=3, seen=None) == (0, (0, 0))
    assert run(steps=2, seen=2) == (2, (2, 2 * 20))
    assert run(steps=3, seen=None) == (3, (3, 3 * 20))


@pytest.mark.slow
def test_a_damaged_checkpoint_is_passed_over_by_all_workers(spark, tmp_path):
    """Whether all see the flipped bit or one."""

    def run(**args):
        one, other = tfos.run(
            spark, synchronous, {"directory": str(tmp_path), "seen": 0, **args}, num_workers=2
        ).values()
        assert one == other
        return one

    assert run(steps=3) == (0, (0, 0))
    newest = max(os.listdir(tmp_path))
    index = tmp_path / newest / "state.index"
    index.write_bytes(bytes([index.read_bytes()[0] ^ 1]) + index.read_bytes()[1:])
    assert run(steps=3) == (2, (2, 2 * 20))
    assert newest not in os.listdir(tmp_path)
    assert run(steps=3, harmed=True) == (2, (2, 2 * 20))


def coordinated(directory, ctx):
    """Write and read as the chief of parameter servers that see other files under the same path."""
    import tensorflow as tf

    if not ctx.is_chief:
        ctx.join_server()
    os.chdir(directory)
    ctx.scratch = "/proc/self/cwd"
    strategy = tf.distribute.ParameterServerStrategy(tf.distribute.cluster_resolver.TFConfigClusterResolver())
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        variables = [tf.Variable([0.0, 0.0]), tf.Variable(0.0)]  # on one server each
    devices = {variable.device.split("/device")[0] for variable in variables}
    checkpoint, state = ctx.checkpoint(f"{directory}/kept"), tf.train.Checkpoint(variables=variables)
    first = checkpoint.restore(state)
    for number in range(first, first + 2):
        coordinator.schedule(tf.function(lambda: [variable.assign_add(variable + 1) for variable in variables]))
        coordinator.join()
        checkpoint.save(state, number + 1)
    return first, len(devices), [variable.numpy().tolist() for variable in variables]


@pytest.mark.slow
def test_the_chief_writes_the_variables_of_parameter_servers(spark, tmp_path):
    def run():
        return tfos.run(spark, coordinated, str(tmp_path), num_workers=1, num_ps=2, chief=True)["chief:0"]

    assert run() == (0, 2, [[3, 3], 3])
    assert run() == (2, 2, [[15, 15], 15])
    assert os.listdir(tmp_path) == ["kept"]


def fitted_by_servers(args, ctx):
    """Fit a model of tf_keras that has no variables before its first batch."""
    import tensorflow as tf

    if not ctx.is_chief:
        ctx.join_server()
    strategy = tf.distribute.ParameterServerStrategy(tf.distribute.cluster_resolver.TFConfigClusterResolver())
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
        model.compile("adam", "mse")
    rows = tf.keras.utils.experimental.DatasetCreator(
        lambda _: tf.data.Dataset.from_tensors((tf.ones((4, 3)), tf.ones((4, 1)))).repeat()
    )
    callback = ctx.checkpoint(args["directory"]).callback()
    history = model.fit(rows, epochs=args["epochs"], steps_per_epoch=3, verbose=0, callbacks=[callback])
    return history.epoch, int(model.optimizer.iterations.numpy()), history.history["loss"]


@pytest.mark.slow
def test_fit_with_parameter_servers_goes_on(spark, tmp_path):
    def run(epochs):
        args = {"directory": str(tmp_path), "epochs": epochs}
        environment = {"TF_USE_LEGACY_KERAS": "1"}
        sizes = {"num_workers": 1, "num_ps": 1, "chief": True}
        return tfos.run(spark, fitted_by_servers, args, **sizes, env=environment)["chief:0"]

    epochs, iterations, before = run(2)
    assert (epochs, iterations) == ([0, 1], 6)
    epochs, iterations, after = run(3)
    assert (epochs, iterations) == ([0, 1, 2], 9)
    assert after[:2] == before
    assert after[2] < before[-1]


def killed_in_an_upload(args, ctx):
    """Train a loop of one's own, whose node is killed in the first run when half of the third checkpoint is there."""
    import tensorflow as tf
    from fsspec.implementations.local import LocalFileSystem

    ctx.scratch = str(Path(args["directory"]).parent)  # what it leaves there is Spark's to remove, but these tests look
    weight = tf.Variable(0.0)
    state, checkpoint = tf.train.Checkpoint(weight=weight), ctx.checkpoint(args["directory"])
    first = checkpoint.restore(state)
    copy, copied = LocalFileSystem.put_file, []

    def and_die(self, *names, **settings):
        copy(self, *names, **settings)
        copied.append(names)
        if first == 0 and len(copied) == 8:  # of three files each
            os.kill(os.getpid(), signal.SIGKILL)

    LocalFileSystem.put_file = and_die
    for step in range(first, 4):
        weight.assign_add(weight + 1)
        checkpoint.save(state, step + 1)
    return first, float(weight.numpy())


@pytest.mark.slow
def test_a_node_that_is_killed_while_it_uploads_leaves_the_one_before(spark, tmp_path):
    args = {"directory": str(tmp_path / "kept")}
    with pytest.raises(tfos.NodeError, match="worker:0 .* ended by SIGKILL"):
        tfos.run(spark, killed_in_an_upload, args, num_workers=1)
    assert any("step-00000003" in name for name in os.listdir(tmp_path / "kept"))
    assert tfos.run(spark, killed_in_an_upload, args, num_workers=1)["worker:0"] == (2, 15)
    assert [name.split("-")[1] for name in sorted(os.listdir(tmp_path / "kept"))] == [
        "00000002",
        "00000003",
        "00000004",
    ]


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (
            "dense",
            r"worker:1 on \S+ does not see the chief's checkpoint in .*: hosts have different directories of that name",
        ),
        ("sharded", "the chief does not see what worker:1 has written in .*: hosts have different directories"),
    ],
)
def test_a_directory_that_hosts_do_not_share_is_refused_at_the_first_save(spark, tmp_path, layer, words):
    """Each worker has one of its own here, as of one name on several hosts."""

    def program(args, ctx):
        import keras
        import tensorflow as tf

        with tf.distribute.MultiWorkerMirroredStrategy().scope():
            layers = [keras.Input((1,), dtype="int64"), keras.layers.Rescaling(1.0)]
            if args["layer"] == "sharded":
                layers[1:] = [tfos.keras.ShardedEmbedding(9, 2, name="items"), keras.layers.Flatten()]
            model = keras.Sequential([*layers, keras.layers.Dense(1)])
            model.compile("sgd", "mse")
        checkpoint = ctx.checkpoint(f"{args['directory']}/{ctx.role}")
        model.fit(ctx.dataset(8, features="id", label="y"), verbose=0, callbacks=[checkpoint.callback()])

    args = {"directory": str(tmp_path), "layer": layer}
    data = spark.range(32).selectExpr("id % 9 AS id", "cast(id AS float) AS y")
    with pytest.raises(tfos.NodeError, match=words):
        tfos.run(spark, program, args, data=data, num_workers=2)
