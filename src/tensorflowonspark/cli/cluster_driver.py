"""The driver of ``tfos run --deploy-mode cluster``: the primary resource of spark-submit."""

import argparse
import hashlib
import hmac
import json
import os
import pickle
import signal
import sys
import tempfile
import time
from pathlib import Path, PurePosixPath
from threading import Thread
from typing import Any

from tensorflowonspark import storage
from tensorflowonspark.cli import exit_code_of
from tensorflowonspark.cli.cluster_mode import write_bytes
from tensorflowonspark.cli.run import run_staged
from tensorflowonspark.errors import ClusterError, error_text
from tensorflowonspark.node.script import Script

_STAGED = {"job.pickle", "tfos_driver.py"}  # by tfos run
_POLL_SECONDS = 0.5
_ERROR_CHARACTERS = 100_000


def main(checksum: str, folder: str) -> int:
    """Run the staged script; write its exit code and error for the machine that waits.

    The checksum is the SHA-256 of the staged job, `folder` the URL of the staged files. It also returns that code.
    """
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.getOrCreate()
    storage.use_session(spark)
    script, options = _job(checksum, folder)
    serves = options.no_wait and _has_uploads(folder)  # which executors fetch from this driver, if they are on a volume
    if options.no_wait:
        storage.remove(f"{folder}/job.pickle" if serves else folder)
    else:
        Thread(target=_end_on_request, args=(folder,), daemon=True).start()
    error = ""
    try:
        code = run_staged(spark, script, options)
    except ClusterError as problem:
        code, error = exit_code_of(problem), error_text(problem, _ERROR_CHARACTERS)
        print(error, file=sys.stderr)
    except Exception as problem:
        code, error = 1, f"{type(problem).__name__}: {error_text(problem, _ERROR_CHARACTERS)}"
        print(error, file=sys.stderr)
    if not options.no_wait and _exists(*storage.file_system(f"{folder}/job.pickle")):  # else nobody waits any more
        write_bytes(f"{folder}/result.json", json.dumps({"exit_code": code, "error": error}).encode())
    spark.stop()
    if serves:
        storage.remove(folder)
    return code


def _job(checksum: str, folder: str) -> tuple[Script, argparse.Namespace]:
    with tempfile.TemporaryDirectory(prefix="tfos-") as directory:
        local = Path(directory, "job.pickle")
        if not storage.fetch(f"{folder}/job.pickle", str(local)):
            raise ClusterError(f"{folder} is gone: tfos run was ended before this driver started")
        job = local.read_bytes()
    if not hmac.compare_digest(hashlib.sha256(job).hexdigest(), checksum):
        raise ClusterError(
            f"{folder}/job.pickle is not what tfos run has staged: others could write there, or it is cut off"
        )
    script, options, _ = pickle.loads(job)
    return script, options


def _has_uploads(folder: str) -> bool:
    """Return whether there is more than `tfos run` has put there, as files of ``--py-files`` by spark-submit."""
    files, within = storage.file_system(folder)
    return not {PurePosixPath(each).name for each in files.ls(within, detail=False)} <= _STAGED


def _end_on_request(folder: str) -> None:
    """Send this process SIGTERM when the submitting machine asks for the end, and again when it asks for it at once."""
    for name in ("stop", "kill"):
        files, within = storage.file_system(f"{folder}/{name}")
        while not _exists(files, within):
            time.sleep(_POLL_SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)


def _exists(files: Any, path: str) -> bool:
    try:
        return bool(files.exists(path))
    except (OSError, RuntimeError):  # a name node that is busy or restarts
        return False


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
