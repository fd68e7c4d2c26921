"""``tfos run --deploy-mode cluster``: the driver runs in the cluster, and its result comes back through a file."""

import argparse
import hashlib
import json
import os
import pickle
import re
import subprocess
import sys
import tempfile
import uuid
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread

from tensorflowonspark import storage
from tensorflowonspark.cli.applications import application_of
from tensorflowonspark.cli.signals import held_back, uninterrupted
from tensorflowonspark.cli.spark_settings import program_of_spark, spark_settings, submit_environment
from tensorflowonspark.driver.log_files import is_remote_directory
from tensorflowonspark.errors import ClusterError, SpecError, StorageError
from tensorflowonspark.node.script import Script
from tensorflowonspark.storage.ownership import why_replaceable
from tensorflowonspark.terminal import printable

_READ_SECONDS = 5.0  # for the last lines of spark-submit
_LOOK_SECONDS = 1.0  # until a signal is handled that came as the wait began (`driver/inbox.py`)
_END_SECONDS = 60.0  # for the application to end, once its nodes have
_LINES = 40  # of spark-submit's output, shown if there is no result
_APPLICATION = re.compile(r"\bapplication_\d+_\d+\b|(?<=submission ID )\S+:\S+")  # of YARN; namespace and pod
_PROGRAM = Path(__file__).with_name("cluster_driver.py")
ONCE = "spark.yarn.maxAppAttempts=1"  # a driver that YARN starts again would train again
_UPLOADS = "spark.kubernetes.file.upload.path"
_NO_WAIT = ("spark.yarn.submit.waitAppCompletion=false", "spark.kubernetes.submission.waitAppCompletion=false")


def check_cluster_mode(options: argparse.Namespace) -> None:
    """Refuse options that do not go together with where the driver runs.

    A master that runs no Python driver in the cluster, and an option that needs a driver here or there, raise
    `SpecError`.
    """
    check_deploy_mode(options)
    if options.deploy_mode != "cluster":
        for name in ("no_wait", "staging_dir"):
            if getattr(options, name):
                raise SpecError(f"--{name.replace('_', '-')} needs --deploy-mode cluster")
        return
    for name, place in (("--log-dir", options.log_dir), ("--report", options.report)):
        if place is not None and not is_remote_directory(place):
            raise SpecError(
                f"{name} {place} is on the driver's machine, which --deploy-mode cluster chooses: name a URL"
            )


def check_deploy_mode(options: argparse.Namespace) -> None:
    """Refuse cluster mode under a master that runs no Python driver in the cluster.

    So is a command line without a master (`SpecError`).
    """
    if options.deploy_mode != "cluster":
        return
    master = options.master or ""
    if master.startswith("spark://"):
        raise SpecError(f"--master {master}: a standalone cluster runs no Python driver: use --deploy-mode client")
    if master.startswith("local"):
        raise SpecError(f"--master {master}: one machine has no cluster mode: use --deploy-mode client")
    if not master:
        raise SpecError("--deploy-mode cluster needs --master yarn or k8s://URL")


def run_in_cluster(options: argparse.Namespace, script: Script, submit: Sequence[str], folder: str) -> int:
    """Run a script with a driver in the cluster; return its exit code.

    The script and the options are staged on a file system that both sides reach, in a directory that only the owner
    can read, and nobody else can replace; the driver knows their checksum. It writes its result there; the directory is
    removed at the end. Without waiting, the driver removes it when it has read it, or at its end if Spark's own uploads
    are in it.

    A driver that ends without a result is a `ClusterError`. If others could replace what is staged, it raises
    `SpecError`, and `StorageError` if the directory can't be written.
    """
    kept = {name: value for name, value in vars(options).items() if name not in ("run", "parser", "conf")}
    # The last part makes the checksum, which others can see, one of which nobody can guess the contents.
    job = pickle.dumps((script, argparse.Namespace(**kept), os.urandom(16)))
    submission = _Submission(folder, options.master, submit, hashlib.sha256(job).hexdigest(), wait=not options.no_wait)
    left_to_driver = False
    try:
        try:
            if not storage.make_private_directory(folder):
                text = "the bucket's rules alone decide who can read the values of --env and replace the script"
                print(f"{folder}: {text}", file=sys.stderr)
            if problem := why_replaceable(folder):
                raise SpecError(
                    f"{folder} would hold the job, which the driver unpickles: {problem}. Take a directory that only "
                    "you can write to with --staging-dir URL, or set its sticky bit (chmod +t)"
                )
            write_bytes(f"{folder}/job.pickle", job)
            write_bytes(f"{folder}/tfos_driver.py", _PROGRAM.read_bytes())
        except OSError as error:
            raise StorageError(
                f"{folder} can't be written ({error}): name another directory with --staging-dir URL"
            ) from error
        submission.run(options.grace)
        if options.no_wait:
            submission.check_accepted()
            left_to_driver = True
            return 0
        return submission.result()
    finally:
        with uninterrupted():  # it holds the values of --env
            submission.close()
            if not left_to_driver:
                _remove(folder)


def _remove(folder: str) -> None:
    """Remove the staged files; the result of the run stands, whether or not that succeeds."""
    try:
        storage.remove(folder)
    except OSError as error:
        print(f"{folder} can't be removed: {error}", file=sys.stderr)


class _Submission:
    """A spark-submit in cluster mode, and the application that it submits."""

    def __init__(self, folder: str, master: str, submit: Sequence[str], checksum: str, *, wait: bool) -> None:
        self._folder = folder
        self._id = ""
        self._lines: deque[str] = deque(maxlen=_LINES)
        settings = [ONCE, *(() if wait else _NO_WAIT)]
        on_kubernetes = master.startswith("k8s://")
        if on_kubernetes and folder.startswith(("hdfs:", "viewfs:")):  # whose owner alone can read them
            settings.append(f"spark.kubernetes.driverEnv.HADOOP_USER_NAME={storage.hadoop_user()}")
        if on_kubernetes and _UPLOADS not in spark_settings(submit):
            settings.append(f"{_UPLOADS}={folder}")  # --py-files and the like, which are removed with the rest
        first = [word for setting in settings for word in ("--conf", setting)]
        self._application = application_of(submit)
        last = [*self._application.settings, "--deploy-mode", "cluster"]
        command = [program_of_spark("spark-submit"), *first, *submit, *last]
        program = f"{folder}/tfos_driver.py"
        if on_kubernetes:
            program = re.sub("^file:", "local:", program)  # on a volume of the driver's pod: nothing is uploaded
        self._command = [*command, program, checksum, folder]
        self._environment = submit_environment(master)
        self._process: subprocess.Popen[str] | None = None
        self._reader = Thread(target=self._read, daemon=True)

    def _start(self) -> None:
        self._process = subprocess.Popen(
            self._command,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # a signal for this command's process group is not for it
        )
        self._reader.start()

    def _read(self) -> None:
        for line in (self._process and self._process.stdout) or ():
            self._lines.append(line)
            found = _APPLICATION.search(line)
            if found and not self._id:
                self._id = found[0]
                with suppress(OSError):  # with standard error closed, spark-submit must still be read
                    print(f"{self._id}: its output is that of {_log_command(self._id)}", file=sys.stderr)

    def run(self, grace: float) -> None:
        """Run spark-submit to its end; a signal ends the nodes, and a second one kills them."""
        try:
            with held_back():  # else one could leave a process behind that nobody knows of
                self._start()
            assert self._process is not None
            while self._process.poll() is None:
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(_LOOK_SECONDS)
        except BaseException:
            if self._process is None:
                raise
            try:
                self._request("stop")
                self._end(grace + _END_SECONDS)
            except BaseException:
                with uninterrupted():
                    self._request("stop")  # which the driver waits for first
                    self._request("kill")
                    self._end(_END_SECONDS)
                raise
            raise
        self._reader.join()

    def _request(self, name: str) -> None:
        """Write the file at which the driver ends; without it the application is killed after the time for its end."""
        try:
            write_bytes(f"{self._folder}/{name}", b"")
        except OSError as error:
            print(f"the driver can't be asked for an end: {error}", file=sys.stderr)

    def _end(self, seconds: float) -> None:
        """Wait for the end that the driver was asked for; kill the application if it has no driver yet, or goes on."""
        if self._application.has_driver(list(self._lines)):
            try:
                assert self._process is not None
                self._process.wait(seconds)
                return
            except subprocess.TimeoutExpired:
                print(f"{self._id or 'the application'} has not ended within {seconds:.0f} s", file=sys.stderr)
        self.close()  # so that it does not submit it now
        self._application.kill(self._id)

    def check_accepted(self) -> None:
        """Raise an error if the application was not accepted."""
        if self._process is None or self._process.returncode:
            raise ClusterError(f"spark-submit failed:\n{''.join(self._lines)}")

    def result(self) -> int:
        """Print the driver's error, if any, and return its exit code."""
        with tempfile.TemporaryDirectory(prefix="tfos-") as directory:
            local = Path(directory, "result.json")
            if not storage.fetch(f"{self._folder}/result.json", str(local)):
                log = f" ({_log_command(self._id)})" if self._id else ""
                raise ClusterError(
                    "the driver in the cluster ended without a result, or spark-submit has lost sight of it; see its "
                    f"log{log}. The last lines of spark-submit:\n{''.join(self._lines)}"
                )
            found = json.loads(local.read_text())
        if found["error"]:
            print(printable(found["error"]), file=sys.stderr)
        return int(found["exit_code"])

    def close(self) -> None:
        """End spark-submit, if it has not ended."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()
        self._reader.join(_READ_SECONDS)  # it may have the application's id yet to read


def _log_command(application: str) -> str:
    namespace, _, pod = application.rpartition(":")
    return f"kubectl logs -n {namespace} {pod}" if namespace else f"yarn logs -applicationId {application}"


def staging_folder(given: str | None) -> str:
    """Return the URL of a directory for one run's staged files, which does not exist yet.

    It is in the given directory, by default in the home in fs.defaultFS. If no file system is known that this machine
    and the cluster reach, it raises `SpecError`.
    """
    name = f".tfos-{uuid.uuid4().hex}"
    if given:
        return storage.absolute_path(f"{given.rstrip('/')}/{name}", str(Path.cwd()))
    if storage.default_fs().startswith("file:"):
        raise SpecError(
            "--deploy-mode cluster stages the script on a file system that this machine and the cluster reach, and "
            "fs.defaultFS names none: set HADOOP_CONF_DIR, or --staging-dir, as in hdfs://host:8020/tmp or s3a://bucket"
        )
    return storage.absolute_path(name, str(Path.cwd()))


def write_bytes(path: str, contents: bytes) -> None:
    """Write a file on any file system."""

    def write(local: str) -> None:
        Path(local).write_bytes(contents)

    storage.publish(path, write)
