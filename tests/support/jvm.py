"""Java's options in the tests: Spark's processes live for seconds, and start in half the time with these.

The JVM's second compiler and its parallel collector cost such a process more than they bring, and two thirds of its
start is the reading of Spark's classes from their jars. Java 17 and newer map them from an archive that an earlier
process has written (JEP 350, https://openjdk.org/jeps/350), which takes half a minute, once.
"""

import os
import re
import subprocess
import sys
import uuid
from contextlib import suppress
from pathlib import Path

import pyspark

from tests.support import maven
from tests.support.paths import DOWNLOADS

SOONER = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_SECONDS = 180
_JOB = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
print(spark.range(100).mapInArrow(lambda batches: batches, "id long").count())
spark.stop()
"""


def use_options():
    """Have all of Spark's processes that descend from this one start sooner; write the archive if there is none."""
    archive = _archive()
    options = f"{SOONER} -Xshare:auto"  # Java's default, by which `tfos run` leaves archives alone
    wanted = os.environ.get("TFOS_TEST_JAVA_ARCHIVE") != "0"  # not for an environment that is used once
    if wanted and (archive.exists() or _write(archive)):
        # Where the classes differ, as with more jars in front, Java reads them as ever, and need not mention it.
        options += f" -XX:SharedArchiveFile={archive} -Xlog:disable -Xlog:all=error:stderr"
    for name in ("SPARK_SUBMIT_OPTS", "SPARK_DAEMON_JAVA_OPTS"):  # of drivers; of masters and workers
        os.environ[name] = options


def executor_options():
    """Return what ``spark.executor.extraJavaOptions`` should be in a session of the tests."""
    return os.environ.get("SPARK_SUBMIT_OPTS", "")


def _archive():
    """Return the path of the archive, which is for these jars and this Java alone."""
    shown = subprocess.run([maven.java(), "-version"], capture_output=True, text=True, check=False).stderr
    java = re.sub(r"\W+", "-", shown.partition("\n")[0])
    return (
        DOWNLOADS / f"spark-{pyspark.__version__}-{java}-{uuid.uuid5(uuid.NAMESPACE_URL, pyspark.__file__).hex[:8]}.jsa"
    )


def _write(archive):
    """Run a job in a JVM that writes the archive at its end; return whether there is one now."""
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    half = archive.with_name(f"{uuid.uuid4().hex}.jsa")
    half.parent.mkdir(exist_ok=True)
    job = half.with_suffix(".py")
    job.write_text(_JOB)
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SUBMIT_OPTS": f"{SOONER} -XX:ArchiveClassesAtExit={half} -Xlog:disable -Xlog:all=error:stderr",
    }
    try:
        subprocess.run([submit, job], env=environment, capture_output=True, timeout=_SECONDS, check=True)
        half.rename(archive)
    except (subprocess.SubprocessError, OSError):
        return False  # they start as ever
    finally:
        for each in (half, job):
            with suppress(FileNotFoundError):
                each.unlink()
    return True
