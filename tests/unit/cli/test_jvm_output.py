"""What a driver's JVM writes, as the command shows it."""

import subprocess

import pytest

from tensorflowonspark.cli.jvm_output import JvmOutput

NOISE = """\
WARNING: Using incubator modules: jdk.incubator.vector
Using Spark's default log4j profile: org/apache/spark/log4j2-defaults.properties
26/11/28 22:31:26 WARN Utils: Your hostname, vm, resolves to a loopback address: 127.0.0.1; using 10.0.0.1 instead
Setting default log level to "WARN".
To adjust logging level use sc.setLogLevel(newLevel). For SparkR, use setLogLevel(newLevel).
26/11/28 22:31:27 WARN NativeCodeLoader: Unable to load native-hadoop library for your platform...
Setting Spark log level to "ERROR".
"""
ERROR = """\
26/11/28 22:31:26 ERROR SparkContext: Failed to add x.jar
java.io.FileNotFoundException: x.jar
\tat org.apache.spark.SparkContext.addLocalJarFile$1
"""


def written(text, output):
    """Have a process write a text to the output, and wait until it has been read."""
    with output:
        subprocess.run(["cat"], input=text.encode(), stdout=output.descriptor, check=True)
    output._thread.join(10)


def test_what_each_start_has_is_not_shown_and_errors_are(capfd):
    output = JvmOutput()
    written(NOISE + ERROR, output)
    output.started()
    assert capfd.readouterr().err == ERROR


def test_all_is_shown_if_spark_does_not_start(capfd):
    output = JvmOutput()
    written(NOISE + ERROR, output)
    output.failed()
    assert sorted(capfd.readouterr().err.splitlines()) == sorted((NOISE + ERROR).splitlines())


@pytest.mark.parametrize("keeps", [True, False])
def test_all_is_shown_where_it_is_asked_for_and_once_spark_runs(capfd, keeps):
    output = JvmOutput(keeps=keeps)
    if keeps:
        output.started()
    written(NOISE, output)
    assert capfd.readouterr().err == NOISE
