"""Where the secret of a cluster is not: command lines, environments, output, Spark's logs, its pages, our own words."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import tensorflowonspark as tfos

# A Spark with its pages, its event log and all its logging on; with a cluster that is fed over TLS.
_PROGRAM = """
import json, sys, urllib.request
from pathlib import Path
import psutil
from pyspark.sql import SparkSession
import tensorflowonspark as tfos

folder = Path(sys.argv[1])
(folder / "events").mkdir()
spark = (
    SparkSession.builder.master("local[3]").config("spark.ui.enabled", "true").config("spark.ui.port", "0")
    .config("spark.eventLog.enabled", "true").config("spark.eventLog.dir", f"file://{folder}/events")
    .config("spark.local.dir", str(folder)).getOrCreate()
)
spark.sparkContext.setLogLevel("DEBUG")

def program(args, ctx):
    print("environment", sorted(__import__("os").environ.items()), "context", vars(ctx), flush=True)
    ctx.serve(lambda ids: ids)
    for feed in ctx.feeds():
        print("rows", feed.rows, flush=True)

with tfos.Cluster(spark, program, num_workers=2, tls=True, log_level="DEBUG") as cluster:
    cluster.train(spark.range(0, 100, 1, 4))
    print(cluster, vars(cluster), vars(cluster._attempt), cluster._config, cluster.nodes)
    data = cluster.inference(spark.range(10), "same long")
    print(data._jdf.queryExecution().toString())
    known = cluster._credentials
    secrets = [known.token, *known.key.strip().splitlines()[1:-1]]
    for process in psutil.process_iter():
        try:
            seen = json.dumps([process.cmdline(), process.environ()])
        except (psutil.AccessDenied, psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
        assert not any(secret in seen for secret in secrets), process.cmdline()
    address = spark.sparkContext.uiWebUrl
    pages = [f"api/v1/applications/{spark.sparkContext.applicationId}/{name}"
             for name in ("jobs", "stages", "sql?details=true&planDescription=true", "environment", "allexecutors")]
    for page in [*pages, "jobs/", "SQL/", "environment/"]:
        with urllib.request.urlopen(f"{address}/{page}") as answer:
            (folder / f"page-{page.replace('/', '-')}").write_bytes(answer.read())
(folder / "secrets").write_text("\\n".join(secrets))
spark.stop()
"""


@pytest.mark.slow
@pytest.mark.masters("local")
def test_the_secret_is_nowhere_to_be_read(tmp_path):
    with open(tmp_path / "output", "wb") as output:
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM, tmp_path], check=False, stdout=output, stderr=output, timeout=100
        )
    text = (tmp_path / "output").read_text(errors="replace")
    assert not done.returncode, text[-3000:]
    assert "environment [(" in text  # what the nodes print is there
    assert "DEBUG" in text
    secrets = (tmp_path / "secrets").read_text().splitlines()
    (tmp_path / "secrets").unlink()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.parent.name == "events" or "events" in str(path) for path in files)
    found = [str(path) for path in files if any(secret.encode() in path.read_bytes() for secret in secrets)]
    assert found == []


@pytest.mark.smoke
@pytest.mark.masters("local", "local-cluster")
def test_only_the_user_can_enter_where_sockets_are(spark):
    def wait(args, ctx):
        return len(list(ctx.feeds()))

    with tfos.Cluster(spark, wait, num_workers=2) as cluster:
        for node in cluster._monitor.roster.nodes:
            directory = Path(node.process.ready.feed_socket).parent
            found = directory.stat()
            assert stat.S_IMODE(found.st_mode) == 0o700
            assert found.st_uid == os.geteuid()


@pytest.mark.masters("local")
@pytest.mark.parametrize("tls", [False, True])
def test_what_listens_listens_where_it_is_needed(spark, tls):
    with tfos.Cluster(
        spark, lambda args, ctx: list(ctx.feeds()) and None, num_workers=2, network=tfos.Network(tls=tls)
    ) as cluster:
        ours = {cluster._address[1]}
        for process in [psutil.Process(), *(psutil.Process(node.pid) for node in cluster.nodes)]:
            for each in [process, *process.children(recursive=True)]:
                if each.name() == "java":
                    continue
                for connection in each.net_connections("inet"):
                    if connection.status == psutil.CONN_LISTEN:
                        assert connection.laddr.ip.removeprefix("::ffff:") in ("127.0.0.1", "::1")
                        ours.discard(connection.laddr.port)
        assert not ours


@pytest.mark.masters("standalone")
def test_a_whole_cluster_with_tls(spark):
    def program(args, ctx):
        rows = sum(feed.rows for feed in ctx.feeds())
        ctx.serve(lambda ids: ids * 2)
        return rows

    with tfos.Cluster(spark, program, num_workers=2, network=tfos.Network(tls=True)) as cluster:
        assert cluster._credentials.certificate.startswith("-----BEGIN CERTIFICATE")
        cluster.train(spark.range(0, 1000, 1, 1))  # one worker gives half of it to the other
        assert sum(cluster.join().values()) == 1000
        assert [row.tenfold for row in cluster.inference(spark.range(3), "tenfold long").collect()] == [0, 2, 4]
    assert tfos.run(
        spark, lambda args, ctx: ctx.feed().rows, num_workers=2, network=tfos.Network(tls=True), data=spark.range(100)
    )
