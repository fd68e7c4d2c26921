"""An archive of Spark's classes: two fifths of the start of a driver go into reading them from their jars.

Java maps them from a file that an earlier process has written when it ended (JEP 350, https://openjdk.org/jeps/350).
``tfos run`` has such a file written after its first run, by a process of low priority that runs a small job of Spark
and lives for at most a minute. The file is for one Java and one Spark, which its name stands for, and Java itself
ignores one that does not fit. Its name also has its size: a Java that maps a file which is cut off ends with SIGBUS.
Without an archive all is as ever, only later.
"""

import fcntl
import hashlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from signal import SIGKILL

from tensorflowonspark.cli.spark_settings import program_of_spark, spark_home
from tensorflowonspark.driver.preflight import java_program
from tensorflowonspark.user_cache import user_cache

_SECONDS = 55  # of the process that writes one
_UNUSED_SECONDS = 30 * 86400  # after which one is removed: that of a Java or a Spark which is gone
_OPTIONS = "SPARK_SUBMIT_OPTS"  # the environment variable of a driver's options for Java
_QUIET = "-Xlog:disable -Xlog:all=error:stderr"  # Java need not mention an archive that does not fit
_JOB = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
spark.range(100, numPartitions=2).mapInArrow(lambda batches: batches, "id long", barrier=True).collect()
spark.stop()
"""


def archive_path() -> Path | None:
    """Return the name of the archive for this Java and this Spark, without its size and its ending.

    None if one of these is not found, if the user's own options for Java are about archives, or if its directory can't
    be this user's alone: a line on standard error says why.
    """
    if re.search("-Xshare|SharedArchiveFile", os.environ.get(_OPTIONS, "")):
        return None
    java, jars = java_program(), Path(spark_home(), "jars")
    if java is None or not Path(java).is_file() or not jars.is_dir():
        return None
    of = [Path(java).resolve(), *sorted(jars.glob("*.jar"))]
    found = [f"{path} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in of]
    try:
        folder = user_cache("classes")
    except RuntimeError:  # there is no home
        return None
    except OSError as error:
        _print_reason(error)
        return None
    return folder / f"{hashlib.sha256(' '.join(found).encode()).hexdigest()[:32]}"


def _written(archive: Path) -> Path | None:
    """Return the file of an archive, if it is there as this user has written it."""
    there = (each for each in archive.parent.glob(f"{archive.name}-*.jsa") if not each.is_symlink())
    found = (each for each in there if each == _file(archive, each) and each.stat().st_uid == os.geteuid())
    return next(found, None)


def _file(archive: Path, content: Path) -> Path:
    return archive.with_name(f"{archive.name}-{content.stat().st_size}.jsa")


@contextmanager
def mapped(archive: Path | None) -> Iterator[None]:
    """Have drivers that start within this context map their classes from an archive, if it exists.

    The archive is one of `archive_path`.
    """
    own = os.environ.get(_OPTIONS)
    file = archive and _written(archive)
    if file is None:
        yield
        return
    with suppress(OSError):
        os.utime(file)  # it is in use
    os.environ[_OPTIONS] = f"-XX:SharedArchiveFile={file} {_QUIET} {own or ''}".strip()
    try:
        yield
    finally:
        if own is None:
            del os.environ[_OPTIONS]
        else:
            os.environ[_OPTIONS] = own


def write_later(archive: Path | None) -> None:
    """Start the process that writes an archive, unless there is one, or Java could not write it before."""
    if archive is None or _written(archive) or _failed(archive).exists():
        return
    if not os.access(archive.parent, os.W_OK):
        _print_reason(f"{archive.parent} can't be written")
        return
    nothing = subprocess.DEVNULL
    subprocess.Popen(
        [sys.executable, "-m", __name__, str(archive)],
        stdin=nothing,
        stdout=nothing,
        stderr=nothing,
        start_new_session=True,
    )


def _print_reason(reason: object) -> None:
    text = f"Spark's classes are not kept for a sooner start of the next run: {reason} (--no-archive leaves it out)"
    print(text, file=sys.stderr)


def _failed(archive: Path) -> Path:
    """Return the file that says why an archive can't be written."""
    return archive.with_suffix(".failed")


def write(archive: Path, seconds: float) -> None:
    """Run a job of Spark whose Java writes the archive at its end; remove those that are not used any more.

    The job may take so many seconds.
    """
    with archive.with_name("lock").open("w") as lock, tempfile.TemporaryDirectory(dir=archive.parent) as scratch:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the end of this process, if another one writes it
        half, job = Path(scratch, "classes.jsa"), Path(scratch, "job.py")
        job.write_text(_JOB)
        settings = {
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_DIRS": scratch,
            _OPTIONS: f"-XX:ArchiveClassesAtExit={half} {_QUIET}",
        }
        command = [program_of_spark("spark-submit"), "--master", "local[2]", str(job)]
        with subprocess.Popen(
            command,
            cwd=scratch,
            env=os.environ | settings,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                output = process.communicate(timeout=seconds)[0]
            except subprocess.TimeoutExpired:  # a busy machine: the next run tries again
                return
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, SIGKILL)
        if half.exists():
            half.replace(_file(archive, half))
        else:
            _failed(archive).write_text(output[-4096:])
        for each in archive.parent.glob("*.jsa"):
            if each.stat().st_mtime < time.time() - _UNUSED_SECONDS:
                each.unlink(missing_ok=True)


if __name__ == "__main__":
    os.nice(19)
    write(Path(sys.argv[1]), _SECONDS)
