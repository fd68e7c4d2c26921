"""Cluster mode with programs in the place of Spark's: what is left behind, and which exit code comes back."""

import hashlib
import pickle
import signal
import subprocess
import sys
import time

import pytest

from tensorflowonspark import storage
from tensorflowonspark.cli import cluster_driver, main
from tensorflowonspark.errors import ClusterError, StorageError

ENDS = """#!/bin/sh
for folder; do :; done  # the last argument
echo '{"exit_code": 7, "error": "its program called sys.exit(7)"}' > ${folder#file:}/result.json
"""
STAYS = """#!/bin/sh
echo "Submitted application application_1_0001"
touch "$BEGUN"
exec sleep 600
"""
YARN = """#!/bin/sh
echo "$@" >> "$CALLS"
case "$*" in *-list*) printf 'application_1_0001\\tx\\tSPARK\\tann\\tdefault\\tRUNNING\\tUNDEFINED\\t10%%\\n';; esac
"""
COMMAND = """
import sys
from tensorflowonspark.cli import cluster_mode, main
cluster_mode._END_SECONDS = 1.0
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def command(tmp_path, monkeypatch):
    """Return the command line; ``submit`` is the program in the place of spark-submit."""

    def made(submit):
        for name, text in (("spark-submit", submit), ("spark-class", YARN)):
            program = tmp_path / "bin" / name
            program.parent.mkdir(exist_ok=True)
            program.write_text(text)
            program.chmod(0o755)
        (tmp_path / "train.py").write_text("")
        monkeypatch.setenv("SPARK_HOME", str(tmp_path))
        monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)  # so that no environment is packed
        monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
        monkeypatch.setenv("BEGUN", str(tmp_path / "begun"))
        options = ["--master", "yarn", "--deploy-mode", "cluster", "--staging-dir", str(tmp_path / "staging")]
        return ["run", *options, str(tmp_path / "train.py")]

    return made


def test_the_result_stands_if_the_staged_files_can_not_be_removed(command, monkeypatch, capsys):
    def refused(path):
        raise StorageError("the name node is in safe mode")

    words = command(ENDS)
    monkeypatch.setattr(storage, "remove", refused)
    assert main(words) == 7
    output = capsys.readouterr().err
    assert "its program called sys.exit(7)" in output
    assert "can't be removed: the name node is in safe mode" in output


def test_a_staging_directory_that_can_not_be_written_is_named(command, tmp_path, capsys):
    (tmp_path / "staging").write_text("a file")
    assert main(command(ENDS)) == 1
    assert "name another directory with --staging-dir URL" in capsys.readouterr().err


def test_who_stages_on_an_object_store_is_told_what_that_means(command, monkeypatch, capsys):
    """Its directories have no owner. No signature would help: Spark fetches the driver's program from there too."""
    for is_store in (False, True):
        monkeypatch.setattr(storage.transfer, "is_object_store", lambda files, found=is_store: found)
        assert main(command(ENDS)) == 7
        told = "/.tfos-" in (output := capsys.readouterr().err) and "and replace the script" in output
        assert told == is_store


@pytest.mark.deep
@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "seconds", [pytest.param(0.0, id="at once"), pytest.param(0.3, id="a moment later", marks=pytest.mark.slow)]
)
def test_two_signals_leave_no_application(command, tmp_path, seconds):
    """As of a terminal that is closed: the kernel and the shell send one each."""
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, "run", "--grace", "1s", *command(STAYS)[1:]],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        while not (tmp_path / "begun").exists():
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.05)
        process.send_signal(signal.SIGHUP)
        time.sleep(seconds)
        process.send_signal(signal.SIGTERM)
        _, output = process.communicate(timeout=40)
    finally:
        process.kill()
    assert process.returncode in (128 + signal.SIGHUP, 128 + signal.SIGTERM), output
    assert "-kill application_1_0001" in (tmp_path / "calls").read_text(), output
    assert not list((tmp_path / "staging").iterdir())


def test_a_job_that_others_could_replace_is_not_staged(command, tmp_path, capsys):
    words = command(ENDS)
    (tmp_path / "staging").mkdir()
    (tmp_path / "staging").chmod(0o777)
    assert main(words) == 2
    assert f"other users can write to {tmp_path / 'staging'}, and replace what is in it" in capsys.readouterr().err
    assert not list((tmp_path / "staging").iterdir())
    (tmp_path / "staging").chmod(0o1777)
    assert main(words) == 7


class Marking:
    def __init__(self, place):
        self.place = place

    def __reduce__(self):
        return open, (str(self.place), "w")


def test_the_driver_unpickles_only_the_job_that_was_submitted(tmp_path):
    job = pickle.dumps(("script", "options", b""))
    (tmp_path / "job.pickle").write_bytes(job)
    checksum = hashlib.sha256(job).hexdigest()
    assert cluster_driver._job(checksum, str(tmp_path)) == ("script", "options")
    (tmp_path / "job.pickle").write_bytes(pickle.dumps(Marking(tmp_path / "ran")))
    with pytest.raises(ClusterError, match=r"job.pickle is not what tfos run has staged"):
        cluster_driver._job(checksum, str(tmp_path))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("given", ["", "s3a://bucket/uploads"])
def test_what_spark_uploads_for_a_pod_is_removed_with_the_staged_files(command, tmp_path, given):
    words = command(ENDS.replace("\n", '\necho "$@" > "$CALLS"\n', 1))
    words[words.index("yarn")] = "k8s://https://localhost:6443"
    setting = "spark.kubernetes.file.upload.path"
    conf = ["--conf", f"{setting}={given}"] if given else []
    assert main([words[0], *conf, *words[1:]]) == 7
    called = (tmp_path / "calls").read_text().split()
    assert [each for each in called if each.startswith(setting)] == [f"{setting}={given or called[-1]}"]
