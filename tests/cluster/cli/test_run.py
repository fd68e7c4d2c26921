"""``tfos run`` in a process of its own: its exit codes, its data, and signals."""

import os
import re
import signal
import sys
import time

import psutil
import pytest

from tests.support.commands import output_of, start_tfos
from tests.support.pages import get
from tests.support.paths import ROOT
from tests.support.processes import has_ended, our_processes
from tests.support.programs import wait_for
from tests.support.standalone import standalone_cluster

pytestmark = pytest.mark.timeout(300)


def tfos_run(*arguments, **options):
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    return start_tfos("run", *arguments, env=environment, start_new_session=True, **options)


def finished(*arguments, **options):
    """Return exit code and output."""
    output = output_of(process := tfos_run(*arguments, **options), 240)
    return process.returncode, output


@pytest.fixture
def script(tmp_path):
    def written(text):
        (tmp_path / "train.py").write_text(text)
        return tmp_path / "train.py"

    return written


@pytest.fixture(scope="module")
def standalone(tmp_path_factory):
    with standalone_cluster(tmp_path_factory.mktemp("standalone"), cores=[1, 1]) as url:
        yield url


@pytest.fixture(params=["local", pytest.param("standalone", marks=pytest.mark.slow)])
def master(request):
    """Options of ``tfos run``: on this machine by default, or a standalone cluster of two executors."""
    if request.param == "local":
        return []
    return ["--master", request.getfixturevalue("standalone"), "--executor-cores", "1", "--executor-memory", "1g"]


def test_a_script_that_knows_nothing_of_spark_trains_on_two_workers(master, tmp_path):
    """The same file, with the accuracy of all workers."""
    model = tmp_path / "model.keras"
    code, output = finished(
        *[*master, "--workers", "2", "--show", "all"],
        *[ROOT / "examples/mnist/script.py", "--epochs", "8", "--model", model],
    )
    assert code == 0, output
    found = dict(re.findall(r"\[worker:(\d)\] worker \d: accuracy ([\d.]+)", output))
    assert set(found) == {"0", "1"}
    assert found["0"] == found["1"]
    assert float(found["0"]) > 0.8
    assert model.exists()


@pytest.mark.masters("local")
def test_data_of_a_file_is_fed(script, spark, tmp_path):
    spark.range(100).write.parquet(str(tmp_path / "rows.parquet"))
    path = script(
        "import tensorflowonspark as tfos\n"
        "ctx = tfos.context()\n"
        "print('rows', sum(len(batch['id']) for batch in ctx.batches(10)))\n"
    )
    code, output = finished("--workers", "2", "--show", "all", "--data", tmp_path / "rows.parquet", path)
    assert code == 0, output
    assert sum(map(int, re.findall(r"\] rows (\d+)", output))) == 100


def test_the_exit_code_and_the_error_of_a_script(script):
    code, output = finished(script("import sys; sys.exit(7)"))
    assert code == 7, output
    assert output.splitlines()[-1] != "", output
    assert "worker:0 on 127.0.0.1 failed: its program called sys.exit(7)" in output


def test_too_few_slots(script):
    code, output = finished("--master", "local[1]", "--workers", "2", script("pass"))
    assert code == 69, output
    assert "the cluster needs 2 task slots" in output


def descendants(process):
    return psutil.Process(process.pid).children(recursive=True)


WAITING = """
import signal, sys, time
def end(number, frame):
    time.sleep({seconds})
    print("ended in order", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
print("begun", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("master", "number"),
    [
        ("local", signal.SIGTERM),
        pytest.param("local", signal.SIGINT, marks=pytest.mark.slow),
        pytest.param("local", signal.SIGHUP, marks=pytest.mark.slow),
        pytest.param("local", signal.SIGQUIT, marks=pytest.mark.slow),
        pytest.param("standalone", signal.SIGTERM, marks=pytest.mark.slow),
    ],
    indirect=["master"],
)
def test_a_signal_ends_the_nodes_in_order(master, script, tmp_path, number):
    process = tfos_run(*master, "--workers", "2", "--log-dir", tmp_path / "logs", script(WAITING.format(seconds=0.5)))
    logs = [tmp_path / f"logs/worker-{index}.log" for index in (0, 1)]
    try:
        wait_for(lambda: all(begun(log) for log in logs), 120)
        started = descendants(process)
        begin = time.monotonic()
        process.send_signal(number)
        output, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 128 + number, output
    assert time.monotonic() - begin < 25
    assert all("ended in order" in log.read_text() for log in logs), output
    wait_for(lambda: all(has_ended(each) for each in started) and not our_processes(), 10)


def begun(log):
    return log.exists() and "begun" in log.read_text()


def output_after(tmp_path, script, act, **options):
    """Run a script on one worker, act on the command's process when it has begun; return the exit code and outputs."""
    log = tmp_path / "logs/worker-0.log"
    process = tfos_run("--log-dir", tmp_path / "logs", script, **options)
    try:
        wait_for(lambda: begun(log), 120)
        act(process)
        output, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    return process.returncode, output, log.read_text()


@pytest.mark.slow
def test_a_signal_for_the_whole_process_group(script, tmp_path):
    """As a scheduler sends it, or a terminal that is closed: the driver's JVM does not get it before the nodes end."""
    path = script(WAITING.format(seconds=0.5))
    code, output, log = output_after(tmp_path, path, lambda process: os.killpg(process.pid, signal.SIGTERM))
    assert code == 143, output
    assert "ended in order" in log


@pytest.mark.slow
def test_a_signal_that_is_ignored_stays_so(script, tmp_path):
    """As after ``nohup``."""
    path = script("import time\nprint('begun', flush=True)\ntime.sleep(4)\n")
    ignore = {"preexec_fn": lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)}
    code, output, _ = output_after(tmp_path, path, lambda process: process.send_signal(signal.SIGHUP), **ignore)
    assert code == 0, output


@pytest.mark.slow
def test_a_signal_while_spark_starts(script):
    process = tfos_run(script("pass"))
    try:
        wait_for(lambda: descendants(process), 30)  # spark-submit
        time.sleep(1.5)
        started = descendants(process)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 130, output
    wait_for(lambda: all(has_ended(each) for each in started), 10)


def test_spark_that_does_not_start(script):
    code, output = finished("--conf", "spark.executor.memory=nonsense", script("pass"))
    assert code == 1, output
    assert "Executor memory must be a positive number" in output
    assert output.splitlines()[-1] == "Spark did not start: its JVM has ended; its own lines above have the reason"


def test_a_second_signal_kills_at_once(script, tmp_path):
    def send_twice(process):
        process.send_signal(signal.SIGTERM)
        time.sleep(1)
        process.send_signal(signal.SIGTERM)

    code, output, log = output_after(tmp_path, script(WAITING.format(seconds=600)), send_twice)
    assert code == 143, output
    assert "ended in order" not in log


@pytest.mark.slow
def test_the_dashboards_url_is_printed_in_one_line_and_ends_with_the_run(script):
    path = script("import time; print('it runs', flush=True); time.sleep(6)")
    process = tfos_run("--master", "local[1]", "--dashboard", str(path))
    lines = []
    for line in process.stdout:
        lines.append(line)
        if "it runs" in line:
            break
    urls = [found[1] for line in lines if (found := re.fullmatch(r"\[training\] dashboard: (http\S+)\n", line))]
    assert len(urls) == 1, lines
    assert get(urls[0])[0] == 200
    process.communicate(timeout=60)
    assert process.returncode == 0
    with pytest.raises(ConnectionRefusedError):
        get(urls[0])
