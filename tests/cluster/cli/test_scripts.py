"""Scripts run unchanged in the nodes: as ``python`` runs them, with their files, output and exit codes."""

import multiprocessing
import os
import platform
from dataclasses import replace

import pytest

import tensorflowonspark as tfos


@pytest.fixture
def script(tmp_path, monkeypatch):
    """Write a script into the working directory."""
    monkeypatch.chdir(tmp_path)

    def written(text):
        (tmp_path / "train.py").write_text(text)
        return tmp_path / "train.py"

    return written


@pytest.mark.smoke
@pytest.mark.masters("local")
def test_a_script_is_main_as_python_runs_it(spark, script, tmp_path):
    (tmp_path / "beside.py").write_text("value = 5")
    path = script(
        "import os, sys, json, beside, __main__\n"
        "assert __name__ == '__main__' and __main__.beside is beside\n"
        "task = json.loads(os.environ['TF_CONFIG'])['task']['index']\n"
        "found = [sys.argv, __file__, os.getcwd(), sys.path[0], beside.value, os.environ['A']]\n"
        "json.dump(found, open(f'found-{task}', 'w'))\n"
    )
    assert tfos.run(spark, path, ["--lr", "x y"], num_workers=2, env={"A": "7"}) == {"worker:0": None, "worker:1": None}
    expected = f'[["{path}", "--lr", "x y"], "{path}", "{tmp_path}", "{tmp_path}", 5, "7"]'
    assert [(tmp_path / f"found-{index}").read_text() for index in (0, 1)] == [expected, expected]


@pytest.mark.masters("local")
def test_a_module_with_its_package(spark, script, tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package/__init__.py").write_text("")
    (tmp_path / "package/part.py").write_text("value = 5")
    (tmp_path / "package/__main__.py").write_text(
        "from .part import value\nimport sys\nopen('found', 'w').write(f'{sys.argv} {__name__} {value}')"
    )
    tfos.run_script(spark, "package", ["-m"], module=True)
    expected = f"['{tmp_path}/package/__main__.py', '-m'] __main__ 5"
    assert (tmp_path / "found").read_text() == expected


@pytest.mark.masters("local")
def test_each_node_works_in_its_copy_of_a_working_directory(spark, script, tmp_path):
    path = script(
        "import os, sys\n"
        "open('written', 'x').write(open('data.txt').read())\n"
        "open(sys.argv[1] + os.environ['TF_CONFIG'][-3], 'w').write(f'{os.getcwd()} {os.listdir()}')\n"
    )
    (tmp_path / "data.txt").write_text("the data")
    found = tmp_path / "found"
    found.mkdir()
    tfos.run_script(spark, path, [f"{found}/"], working_dir=tmp_path, files=[__file__], num_workers=2)
    texts = [each.read_text() for each in found.iterdir()]
    assert len({text.split()[0] for text in texts}) == 2
    assert all("data.txt" in text and "test_scripts.py" in text for text in texts)
    assert not (tmp_path / "written").exists()


@pytest.mark.masters("local")
def test_nodes_without_the_drivers_directory_get_a_copy(spark, script, tmp_path):
    """As on another host: what is there by the same name is another program."""
    from tensorflowonspark.driver.script import read_script

    (tmp_path / "beside.py").write_text("value = 5")
    path = script("import beside, os, sys; open(sys.argv[1], 'w').write(f'{beside.value} {os.getcwd()}')")
    program = read_script(path, [str(tmp_path / "found")])
    (tmp_path / "beside.py").write_text("value = 6")
    tfos.run(spark, program)
    value, directory = (tmp_path / "found").read_text().split()
    assert value == "5"
    assert directory != str(tmp_path)


@pytest.mark.masters("local")
def test_files_are_found_in_the_working_directory(spark, script, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data/words.txt").write_text("a b")
    path = script("import os, sys; open(sys.argv[1], 'w').write(open('words.txt').read() + ' ' + os.getcwd())")
    tfos.run_script(spark, path, [str(tmp_path / "found")], files=["data/words.txt"])
    *words, directory = (tmp_path / "found").read_text().split()
    assert words == ["a", "b"]
    assert directory != str(tmp_path)
    tfos.run_script(spark, path, [str(tmp_path / "found")], files=["train.py", "data/words.txt"], working_dir=".")


@pytest.mark.masters("local")
def test_the_end_is_that_of_python(spark, script, tmp_path):
    """Threads and pools are waited for, and what they pickle by reference to ``__main__`` is there."""
    path = script(
        "import pickle, threading, time\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "class Result: pass\n"
        "def write(name):\n"
        "    time.sleep(1)\n"
        "    open(name, 'wb').write(pickle.dumps(Result()))\n"
        "threading.Thread(target=write, args=('one',)).start()\n"
        "from concurrent.futures import ProcessPoolExecutor\n"
        "ThreadPoolExecutor(1).submit(write, 'two')\n"
        "pool = ProcessPoolExecutor(1)\n"
        "assert list(pool.map(abs, [-1, -2])) == [1, 2]\n"
        "from multiprocessing import Process\n"
        "Process(target=write, args=('three',)).start()\n"
        "raise SystemExit(256)\n"
    )
    tfos.run_script(spark, path)
    assert len({(tmp_path / name).read_bytes() for name in ("one", "two", "three")}) == 1


@pytest.mark.masters("local")
def test_output_of_one_node_and_files_of_all(spark, script, tmp_path, caplog):
    path = script(
        "import os, json, sys\n"
        "print('I am', json.loads(os.environ['TF_CONFIG'])['task']['index'], flush=True)\n"
        "sys.stdout.buffer.write(b'no \\xff UTF-8\\n')\n"
    )
    caplog.set_level("INFO")
    tfos.run(spark, path, num_workers=2, logs=tfos.Logs(show="worker:1", log_dir=str(tmp_path / "logs")))
    assert "I am 1" in caplog.text
    assert "I am 0" not in caplog.text
    for index in (0, 1):
        text = (tmp_path / f"logs/worker-{index}.log").read_text()
        assert f"I am {index}\n" in text
        assert "UTF-8\n" in text


@pytest.mark.masters("local")
def test_a_script_that_wants_its_context_is_fed(spark, script, tmp_path):
    path = script(
        "import tensorflowonspark as tfos\n"
        "ctx = tfos.context()\n"
        "rows = sum(len(batch['id']) for batch in ctx.batches(10))\n"
        "open(f'rows-{ctx.index}', 'w').write(str(rows))\n"
    )
    tfos.run_script(spark, path, data=spark.range(100), num_workers=2)
    assert sum(int((tmp_path / f"rows-{index}").read_text()) for index in (0, 1)) == 100


@pytest.mark.masters("local")
def test_a_script_may_start_processes(spark, script, tmp_path):
    path = script(
        "import multiprocessing, os\n"
        "def double(x):\n"
        "    return 2 * x\n"
        "if __name__ == '__main__':\n"
        "    with multiprocessing.get_context('spawn').Pool(2) as pool:\n"
        "        open('found', 'w').write(str(pool.map(double, [1, 2, 3])))\n"
    )
    tfos.run_script(spark, path)
    assert (tmp_path / "found").read_text() == "[2, 4, 6]"
    assert multiprocessing.current_process().name == "MainProcess"


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("import sys; sys.exit(7)", 7, "its program called sys.exit(7)"),
        ("import sys; sys.exit('no data')", 1, "no data"),
        ("import sys; sys.exit(['no', 'rows'])", 1, "['no', 'rows']"),
        ("import os; os._exit(9)", 9, "its process ended with exit code 9"),
        ("import os; os.kill(os.getpid(), 9)", 137, "SIGKILL"),
        ("raise LookupError('the script')", 1, "LookupError: the script"),
    ],
)
@pytest.mark.masters("local")
def test_the_exit_code_is_that_of_the_node_that_failed(spark, script, text, code, message):
    with pytest.raises(tfos.NodeError) as caught:
        tfos.run_script(spark, script(text))
    assert caught.value.exit_code == code
    assert message in str(caught.value)
    assert "runpy" not in str(caught.value)


def test_there_is_no_context_elsewhere():
    with pytest.raises(tfos.ClusterError, match="this process is no node of a cluster.*tfos run"):
        tfos.context()


@pytest.mark.masters("local")
def test_the_working_directory_of_the_driver_stays(spark, script):
    before = os.getcwd()
    tfos.run_script(spark, script("import os; os.chdir('/')"))
    assert os.getcwd() == before


def test_a_directory_of_another_user_is_not_entered(tmp_path, monkeypatch):
    """As of the driver's user on a host whose executors run as another one."""
    from tensorflowonspark.node.script import Script

    def refuse(path, enter=os.chdir):
        if str(path) == str(tmp_path / "home"):
            raise PermissionError(13, "Permission denied", str(path))
        enter(path)

    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "chdir", refuse)
    program = Script("a.b", True, (), str(tmp_path / "home"), str(tmp_path / "home"), {})
    assert program.place(tmp_path / "own") == tmp_path / "own"
    assert os.getcwd() == str(tmp_path / "own")


def test_the_directory_of_another_container_is_not_used(tmp_path, monkeypatch):
    """It may have the driver's host name and path."""
    from tensorflowonspark.node.script import Script

    monkeypatch.chdir(tmp_path)
    (tmp_path / "home").mkdir()
    program = Script("a.b", True, (), str(tmp_path / "home"), str(tmp_path / "home"), {})
    assert program.place(tmp_path / "own") == tmp_path / "home"
    there = replace(program, host=f"{platform.node()} another container")
    assert there.place(tmp_path / "own") == tmp_path / "own"


@pytest.mark.masters("local")
def test_the_output_of_a_worker_that_a_restart_may_lack(spark, script, caplog):
    """A cluster of one to eight workers gets four slots; the name of the eighth is right all the same."""
    caplog.set_level("INFO")
    tfos.run_script(spark, script("print('begun')"), num_workers=(1, 8), logs=tfos.Logs(show="worker:7"))
    assert "begun" not in caplog.text
    with pytest.raises(
        tfos.SpecError, match="show='worker:8': expected all, chief, none or one of worker:0, worker:1, wor"
    ):
        tfos.run_script(spark, script("pass"), num_workers=(1, 8), logs=tfos.Logs(show="worker:8"))


@pytest.mark.masters("local-cluster")
def test_nodes_in_executors_of_their_own(spark, script, tmp_path):
    (tmp_path / "beside.py").write_text("value = 5")
    path = script("import beside, os, json\nopen(json.loads(os.environ['TF_CONFIG'])['task']['type'], 'w').write('x')")
    tfos.run_script(spark, path, num_workers=1, chief=True)
    assert (tmp_path / "chief").exists()
    assert (tmp_path / "worker").exists()


_PARAMETER_SERVER = """
import json, os
import tensorflow as tf

task = json.loads(os.environ["TF_CONFIG"])["task"]["type"]
resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if task in ("worker", "ps"):
    tf.distribute.Server(resolver.cluster_spec(), task, resolver.task_id, protocol="grpc").join()
else:
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    with strategy.scope():
        total = tf.Variable(0.0)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

    @tf.function
    def step():
        total.assign_add(1.0)

    for _ in range(10):
        coordinator.schedule(step)
    coordinator.join()
    open("total", "w").write(str(total.numpy()))
"""


@pytest.mark.masters("local")
def test_an_unchanged_script_for_parameter_servers_ends(spark, script, tmp_path):
    tfos.run_script(spark, script(_PARAMETER_SERVER), num_workers=1, num_ps=1, chief=True)
    assert (tmp_path / "total").read_text() == "10.0"


@pytest.mark.masters("local")
def test_a_script_starts_again_after_its_node_was_killed(spark, script, tmp_path):
    path = script(
        "import os, signal\n"
        "if not os.path.exists('first'):\n"
        "    open('first', 'w').close()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "open('second', 'w').close()\n"
    )
    tfos.run_script(spark, path, restarts=1)
    assert (tmp_path / "second").exists()


@pytest.mark.slow
@pytest.mark.masters("local")
def test_an_unchanged_script_goes_on_at_the_epoch_of_its_backup(spark, script, tmp_path):
    """What docs/deploy/operate.md says: a script that knows nothing of Spark resumes by Keras's own callback."""
    epochs = tmp_path / "epochs"
    text = f"""
import os, signal
import keras, numpy as np, tensorflow as tf

class Note(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        with open({str(epochs)!r} + os.environ["TF_CONFIG"][-3], "a") as file:
            print(epoch, file=file)
        if epoch == 2 and not os.path.exists({str(tmp_path / "killed")!r}) and '"index": 1' in os.environ["TF_CONFIG"]:
            open({str(tmp_path / "killed")!r}, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)

with tf.distribute.MultiWorkerMirroredStrategy().scope():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
x = np.ones((32, 3), "f4")
backup = keras.callbacks.BackupAndRestore({str(tmp_path / "backup")!r})
model.fit(x, x[:, 0], batch_size=8, epochs=4, verbose=0, callbacks=[backup, Note()])
"""
    results = tfos.run_script(spark, script(text), num_workers=2, restarts=1)
    assert results.restarts == 1
    noted = sorted(each for path in tmp_path.glob("epochs*") for each in map(int, path.read_text().split()))
    assert noted == [0, 0, 1, 1, 2, 2, 2, 2, 3, 3]
