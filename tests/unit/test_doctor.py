"""The command ``tfos doctor``: a report without secrets, names of people, hosts and home directories."""

import re
import socket

import pytest

from tensorflowonspark.cli import main
from tensorflowonspark.cli.redaction import Redaction
from tensorflowonspark.secrecy import is_secret


@pytest.fixture
def redaction():
    return Redaction(hosts=["nn1.corp.example", "10.1.2.3"], users=["jane"], home="/home/jane")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("spark://nn1.corp.example:7077, nn1", "spark://<host-1>:7077, <host-2>"),
        ("k8s://https://10.1.2.3:6443 and 10.1.2.3", "k8s://https://<host-1>:6443 and <host-1>"),
        ("s3a://KEY:SECRET@bucket/jane/x", "s3a://<redacted>@<host-1>/<user>/x"),
        ("/home/jane/.venv, /home/janet/x, /Users/bob", "~/.venv, /home/<user>/x, /Users/<user>"),
        ("jane.doe@corp.example", "<email>"),
        ("2001:db8:0:1::7 127.0.0.1 0.0.0.0", "<host-1> 127.0.0.1 0.0.0.0"),
        ("py4j-0.10.9.9-src.zip TensorFlow 2.21.0", "py4j-0.10.9.9-src.zip TensorFlow 2.21.0"),
    ],
)
def test_texts_lose_names_and_places(redaction, text, shown):
    assert redaction.text(text) == shown


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("spark.hadoop.fs.s3a.secret.key", "abc", "<redacted>"),
        ("spark.authenticate.secret", "abc", "<redacted>"),
        ("spark.kerberos.principal", "jane@REALM", "<redacted>"),
        ("fs.azure.account.key.x", "abc", "<redacted>"),
        ("spark.driver.extraJavaOptions", "-Dx.keyStorePassword=abc -Dy=1", "-Dx.keyStorePassword=<redacted> -Dy=1"),
        (
            "spark.executorEnv.SPARK_LOG_DIR",
            "https://h.example/?v=1&sig=x%2By&access_token=abc&z=2",
            "https://<host-1>/?v=1&sig=<redacted>&access_token=<redacted>&z=2",
        ),
        (
            "PYSPARK_SUBMIT_ARGS",
            "--conf spark.a=1 --conf fs.s3a.secret.key=zzz --conf 'spark.x.password=a b c' --name x",
            "--conf spark.a=1 --conf fs.s3a.secret.key=<redacted> --conf 'spark.x.password=<redacted>' --name x",
        ),
        (
            "SPARK_SUBMIT_OPTS",
            '{"user": "u", "password": "a, b"} token=\'c d\'',
            '{"user": "u", "password": "<redacted>"} token=\'<redacted>\'',
        ),
        ("SPARK_SUBMIT_OPTS", "Authorization: Bearer abc.def", "Authorization: <redacted> <redacted>"),
        ("SPARK_SUBMIT_OPTS", "--conf x.password=a,b;c&d'e f", "--conf x.password=<redacted> f"),
        ("SPARK_SUBMIT_OPTS", "secret.key='no end a b", "secret.key='<redacted>"),
        ("SPARK_SUBMIT_OPTS", "no token of this", "no token of this"),
        ("SPARK_SUBMIT_OPTS", "--token abc --api-key=def x", "--token <redacted> --api-key=<redacted> x"),
        ("spark.executor.cores", "4", "4"),
        ("spark.our.encryption.key", "abc", "<redacted>"),
        ("SPARK_AZURE_KEY", "abc", "<redacted>"),
        ("PYTHON_PAT", "abc", "<redacted>"),
        ("TF_VAR_db", "abc", "<redacted>"),  # Terraform's
        ("spark.sql.catalog.prod.login", "abc", "<redacted>"),  # nobody knows what it is
        ("spark.sql.catalog.prod.retries", "3", "3"),
        ("spark.executor.extraJavaOptions", "-Dpw=abc -Xmx2g", "-Dpw=<redacted> -Xmx2g"),
        ("spark.app.name", "jdbc:oracle:thin:u/p@//db:1521/x", "jdbc:oracle:thin:<redacted>@//db:1521/x"),
    ],
)
def test_settings_lose_secrets(redaction, name, value, shown):
    assert redaction.setting(name, value) == shown


def test_names_of_secrets():
    assert not any(map(is_secret, ["spark.task.cpus", "spark.sql.shuffle.partitions", "spark.executor.memoryOverhead"]))


@pytest.mark.slow
def test_a_report(tmp_path, monkeypatch, capsys):
    (tmp_path / "spark-defaults.conf").write_text(
        "# ours\nspark.hadoop.fs.s3a.access.key AKIA1\nspark.master = spark://nn7.corp.example:7077\n"
    )
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.setenv("USER", "jdoe")
    monkeypatch.setenv("PYSPARK_PYTHON_TOKEN", "sesame")
    monkeypatch.setenv("SPARK_LOG_DIR", "/data/jdoe/logs")
    monkeypatch.setattr(socket, "gethostname", lambda: "edge9.corp.example")
    path = tmp_path / "report.md"
    assert main(["doctor", "-o", str(path)]) == 0
    text = path.read_text()
    assert re.search(r"^pyspark +\d", text, re.MULTILINE)
    assert re.search(r"^memory +[\d.]+ GiB", text, re.MULTILINE)
    assert "spark.master=spark://<host-1>:7077" in text
    assert "SPARK_LOG_DIR=/data/<user>/logs" in text
    assert "## tfos check" in text
    assert not [word for word in ("AKIA1", "sesame", "jdoe", "edge9", "nn7") if word in text]
    assert "is written: read it before you publish it" in capsys.readouterr().err


def test_a_report_that_can_not_be_written(tmp_path, capsys):
    assert main(["doctor", "-o", str(tmp_path / "missing" / "report.md")]) == 2
    assert "there is no such directory" in capsys.readouterr().err
