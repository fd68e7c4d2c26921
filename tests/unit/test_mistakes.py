"""Mistakes of a new user, and their messages: in ten lines at most, what is wrong, and what to do.

All of these come before a cluster starts, or are what a node makes of its program's error.
"""

import os
import threading
from bdb import BdbQuit

import pyarrow as pa
import pyspark
import pytest

import tensorflowonspark as tfos
from tensorflowonspark.cli import main
from tensorflowonspark.columns.column_summaries import summarize
from tensorflowonspark.columns.kinds import kind_of
from tensorflowonspark.ml import KerasEstimator, KerasModel
from tensorflowonspark.node.feed.selection import FeatureOptions, Selection
from tensorflowonspark.node.main import _advice
from tensorflowonspark.tfrecords.options import Options
from tests.support.backend import Session
from tests.support.lines import line
from tests.unit.driver.test_program_of_tasks import of_kind
from tests.unit.node.test_selection import contents_of

_LINES = 10
_LOCK = threading.Lock()


def command(*words):
    return lambda: main(["run", *words])


def cluster(function=lambda args, ctx: None, args=None, **settings):
    return lambda: tfos.Cluster(Session(), function, args, **settings)


def run(function=lambda args, ctx: None, args=None, **settings):
    return lambda: tfos.run(Session(), function, args, **settings)


def estimator(**params):
    return lambda: KerasEstimator(line, **params)


def in_node(error):
    """Return an error as a node tells it: with its advice."""

    def fail():
        raise tfos.NodeError("worker:0", "h", f"its program raised {type(error).__name__}: {error}", _advice(error))

    return fail


def of_call(call):
    """Have a function raise in a node."""

    def fail():
        try:
            call()
        except Exception as error:
            in_node(error)()

    return fail


def select(**options):
    contents, _ = contents_of({"features": [1.0], "label": [0]})
    return lambda: Selection(contents, FeatureOptions(**options))


def null():
    batch = pa.record_batch({"age": [1.0, None]})
    kind_of("age", batch.schema.field("age").type, summarize(batch)["age"])


MISTAKES = {
    # The command: an option that there is not, or whose value can't be right.
    "a typing error in an option": (command("--wrokers", "2", "train.py"), ["--wrokers", "did you mean '--workers'?"]),
    "Horovod's option": (command("--num-proc", "2", "train.py"), ["--num-proc", "here it is '--workers'"]),
    "Horovod's hosts": (command("--hosts", "a:1", "train.py"), ["--hosts", "Spark chooses the hosts"]),
    "Ray's option": (command("--max-failures=3", "train.py"), ["--max-failures", "here it is '--restarts'"]),
    "TorchDistributor's option": (command("--use-gpu", "train.py"), ["--use-gpu", "gpus"]),
    "the script's option before it": (
        command("--epochs", "3", "train.py"),
        ["--epochs", "stands after it: SCRIPT --epochs"],
    ),
    "a word for a number": (command("--workers", "two", "train.py"), ["--workers", "'two'", "expected a number"]),
    "a script that is not there": (command("trian.py"), ["no script trian.py"]),
    "a master that Spark has not": (command("--master", "sparc://h", "train.py"), ["--master sparc://h", "spark://"]),
    "a variable without a value": (command("--env", "TFOS_NONE", "train.py"), ["--env", "TFOS_NONE", "NAME=VALUE"]),
    "rows without data": (command("--start", "first_rows", "train.py"), ["--start", "--data"]),
    "a port after a space": (command("--dashboard", "8080"), ["--dashboard 8080", "--dashboard=8080"]),
    "a level that there is not": (command("--log-level", "LOUD", "train.py"), ["'LOUD'", "expected DEBUG"]),
    "the lines of no node": (command("--show", "worker:9", "train.py"), ["--show 'worker:9'", "expected all, chief"]),
    "no workers of a command": (command("--workers", "0", "train.py"), ["--workers 0", "ask for at least one worker"]),
    "more workers than the most": (command("--workers", "8:2", "train.py"), ["--workers", "'8:2'", "as 2:8"]),
    "restarts below none of a command": (command("--restarts", "-1", "train.py"), ["--restarts -1", "0 or more"]),
    "a cause that there is not": (command("--restart-causes", "x", "train.py"), ["--restart-causes 'x'", "killed"]),
    "a port above the last": (command("--dashboard=99999", "train.py"), ["--dashboard 99999", "65535"]),
    "parameter servers for rows": (
        command("--data", "t", "--ps", "1", "train.py"),
        ["--data feeds every node", "1 worker"],
    ),
    "executors of a machine": (
        command("--dry-run", "--master", "local[2]", "--num-executors", "2", "train.py"),
        ["--num-executors 2: no effect", "local[2]", "the cluster has 1 worker (--workers sets their number)"],
    ),
    "executors of a machine as a setting": (
        command("--dry-run", "--workers", "2", "--conf", "spark.executor.instances=3", "train.py"),
        ["--conf spark.executor.instances=3: no effect", "local[2]", "2 workers"],
    ),
    "executors of a standalone cluster": (
        command("--dry-run", "--master", "spark://h:7077", "--num-executors", "2", "train.py"),
        ["--num-executors 2: no effect", "spark://h:7077"],
    ),
    "a time in words": (command("--heartbeat-timeout", "soon", "train.py"), ["--heartbeat-timeout", "as 30s or 2m"]),
    "a bad script": (command("broken.py"), ["broken.py", "line 1"]),
    # A function: settings of others, values that can't be right, programs that can't be sent.
    "Horovod's keyword": (run(num_proc=2), ["num_proc", "here it is 'num_workers'"]),
    "TorchDistributor's keyword": (run(use_gpu=True), ["use_gpu", "Nodes(gpus_per_node=1)"]),
    "Ray's keyword": (cluster(scaling_config={}), ["scaling_config", "num_workers=4"]),
    "Ray's other keyword": (cluster(max_failures=3), ["max_failures", "here it is 'restarts'"]),
    "a checkpoint as a setting": (run(checkpoint="/x"), ["checkpoint", "ctx.checkpoint(path)"]),
    "a typing error": (cluster(num_worker=2), ["num_worker", "did you mean 'num_workers'?"]),
    "no workers": (cluster(num_workers=0), ["num_workers=0", "ask for at least one worker"]),
    "more than the most": (cluster(num_workers=(8, 2)), ["num_workers=(8, 2)", "the fewest and the most"]),
    "restarts below none": (cluster(restarts=-1), ["restarts=-1", "expected 0 or more"]),
    "a setting of a group": (lambda: tfos.Logs(levle="INFO"), ["Logs has no setting 'levle'", "log_level"]),
    "a level of logging": (cluster(logs=tfos.Logs(log_level="LOUD")), ["log_level='LOUD'", "expected DEBUG"]),
    "one port": (lambda: tfos.Network(ports="70-1"), ["ports='70-1'", "expected"]),
    "a function of three": (cluster(lambda a, b, c: None), ["takes a, b, c", "expected a function of (args, ctx)"]),
    "args that nobody takes": (cluster(lambda: None, {"lr": 1}), ["args={'lr': 1}", "does not take it"]),
    "a lock": (cluster(lambda args, ctx: _LOCK, _LOCK), ["can't be shipped", "inside the function"]),
    "a broadcast variable": (cluster(args=of_kind(pyspark.Broadcast)), ["broadcast variable", "args=variable.value"]),
    "an accumulator": (cluster(args=of_kind(pyspark.Accumulator)), ["accumulator", "return the number"]),
    "data of pandas": (run(data=[1, 2]), ["data", "DataFrame"]),
    # The estimator.
    "an epoch": (estimator(epoch=3), ["no param 'epoch'", "did you mean 'epochs'?"]),
    "Horovod's param": (estimator(num_proc=2), ["no param 'num_proc'", "here it is 'numWorkers'"]),
    "no epochs": (estimator(epochs=0), ["epochs=0", "expected a positive number"]),
    "handling that there is not": (estimator(handleInvalid="drop"), ["handleInvalid='drop'", "'skip'"]),
    "an argument of the model": (estimator(modelParams={"rat": 1}), ["modelParams", "'rat'", "did you mean 'rate'?"]),
    "an option of the cluster": (estimator(clusterOptions={"num_workers": 4}), ["num_workers", "numWorkers"]),
    "a model file that is not there": (lambda: KerasModel.from_file("no.keras"), ["no.keras", "there is no such file"]),
    "a directory as a model file": (lambda: KerasModel.from_file("."), ["is a directory", "from_saved_model"]),
    # Rows and files.
    "a label that is not there": (select(features="features", label="labl"), ["'labl'", "did you mean 'label'?"]),
    "a null": (null, ["column 'age'", "row 1 of partition 0", 'df.where("age is null")', "fill={'age': 0}"]),
    "an option of TFRecord": (
        lambda: Options.of({"compresion": "gzip"}),
        ["compresion", "did you mean 'compression'?"],
    ),
    # What a node makes of its program's error.
    "an argument of ctx.dataset": (of_call(lambda: tfos.Context.dataset(None, 64, feature="x")), ["'features'?"]),
    "a breakpoint": (in_node(BdbQuit()), ["no terminal for breakpoint()", "debugpy"]),
    "files of Spark": (of_call(lambda: pyspark.SparkFiles.get("a.txt")), ["a node is neither", "--files"]),
    "a module that nodes lack": (of_call(lambda: __import__("no_such_module")), ["no_such_module", "--py-files"]),
    "too little memory": (in_node(MemoryError("x")), ["batch_size", "spark.executor.memoryOverhead"]),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_message_names_what_is_wrong_and_what_to_do(mistake, capsys, monkeypatch, tmp_path):
    (tmp_path / "train.py").write_text("print(1)\n")
    (tmp_path / "broken.py").write_text("print(1\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPARK_CONF_DIR", os.fspath(tmp_path))
    monkeypatch.setattr(pyspark.SparkFiles, "_sc", None)  # as in a node, beside the sessions of other tests
    make, words = MISTAKES[mistake]
    try:
        make()
        text = ""
    except SystemExit:  # of a command line that can't be read
        text = ""
    except Exception as error:
        text = str(error)
    text = text or capsys.readouterr().err
    assert text, "nothing was said"
    missing = [word for word in words if word not in text]
    assert not missing, text
    assert len(text.splitlines()) <= _LINES, text


def test_there_are_forty():
    assert len(MISTAKES) >= 40
