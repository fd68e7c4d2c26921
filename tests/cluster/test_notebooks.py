"""Notebooks: those of the examples, and what a user sees and interrupts in one, each in a kernel of its own."""

import re
import time

import nbformat
import pytest
from jupyter_client.manager import start_new_kernel

from tools.notebooks import NOTEBOOKS, execute

_SESSION = """
from pyspark.sql import SparkSession
import tensorflowonspark as tfos
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
spark = builder.config("spark.log.level", "OFF").getOrCreate()

def waits(args, ctx):
    from keras import Input, Sequential, layers
    from time import sleep

    model = Sequential([Input((1,)), layers.Dense(1)])
    model.compile("sgd", "mse")
    dataset = ctx.dataset(8, features="id", label="id")
    for number in range(1000):
        model.fit(dataset, verbose=0)
        print("pass", number, flush=True)
"""
_TRAIN = """
cluster = tfos.Cluster(spark, waits).start()
cluster.train(spark.range(64))
"""
_AFTERWARDS = """
print("rows", spark.range(100).count(), [node.state.name for node in cluster.nodes], repr(cluster))
print("next", tfos.run(spark, lambda ctx: ctx.index, num_workers=2))
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_an_example_runs_and_its_output_is_kept(path):
    kept = nbformat.read(path, as_version=4)
    executed = execute(path)
    shows = [[output.output_type for output in cell.get("outputs", ())] for cell in executed.cells]
    assert shows == [[output.output_type for output in cell.get("outputs", ())] for cell in kept.cells]
    assert "[worker:0] Epoch 2/" in nbformat.writes(executed)


class Kernel:
    """A kernel, and the output of its cells so far."""

    def __init__(self):
        self._manager, self._client = start_new_kernel(kernel_name="python3", startup_timeout=60)
        self.output = ""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)

    def start(self, code):
        self.output = ""
        return self._client.execute(code)

    def read(self, until, seconds=60.0):
        """Read output until a pattern is found; "" for the end of the cell."""
        end = time.monotonic() + seconds
        while not (until and re.search(until, self.output)):
            message = self._client.get_iopub_msg(timeout=max(0.1, end - time.monotonic()))
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                self.output += content["text"]
            elif kind == "error":
                self.output += f"{content['ename']}: {content['evalue']}\n"
            elif kind == "status" and content["execution_state"] == "idle" and not until:
                return self.output
        return self.output

    def run(self, code):
        self.start(code)
        return self.read("")

    def interrupt(self):
        self._manager.interrupt_kernel()


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_an_interrupted_cell_ends_the_training_and_leaves_the_session_usable():
    with Kernel() as kernel:
        assert "Error" not in kernel.run(_SESSION)
        kernel.start(_TRAIN)
        shown = kernel.read(r"\[worker:0\] pass 3")
        assert re.search(r"epoch 1: .*8/8", shown.replace("\r", "\n"))  # the progress bar
        kernel.interrupt()
        assert "KeyboardInterrupt" in kernel.read("")
        after = kernel.run(_AFTERWARDS)
        assert "rows 100 ['GONE'] <Cluster of 1 worker, ended>" in after
        assert "next {'worker:0': 0, 'worker:1': 1}" in after
        kernel.run("spark.stop()")
