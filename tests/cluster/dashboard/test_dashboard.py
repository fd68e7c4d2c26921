"""The dashboard of real clusters: what their nodes send is on it, over restarts, until the end."""

import os
import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Thread

import pytest

import tensorflowonspark as tfos
from tests.support.chromium import chromium, what_is_missing
from tests.support.ladder import skip
from tests.support.pages import get, states, with_token
from tests.support.programs import small_frame, small_model

local = pytest.mark.masters("local")


def reports(args, ctx):
    print("a line of the program", flush=True)
    for number, _ in enumerate(ctx.batches(8, features="features", label="label")):
        ctx.report(epoch=number, loss=1 / (number + 1))
    return ctx.attempt


@pytest.mark.smoke
@local
def test_a_cluster_shows_its_nodes_and_metrics_while_it_runs(spark, tmp_path):
    pytest.importorskip("prometheus_client")
    with tfos.Cluster(spark, reports, num_workers=2, dashboard=tfos.Dashboard(page_port=0, metrics_port=0)) as cluster:
        seen = states(cluster.dashboard_url)
        first = next(seen)
        assert first["roster"]["name"] == ["worker:0", "worker:1"]
        assert first["summary"]["state"] == "running"
        cluster.train(small_frame(spark, [40, 40]))
        cluster.join()
        node = get(cluster.dashboard_url, with_token(cluster.dashboard_url, "/node?number=0"))[2]
        assert b"a line of the program" in node
        metrics = get(cluster.metrics_url)[2].decode()
        assert 'tensorflowonspark_metric{metric="loss"}' in metrics
        assert re.search(r'tensorflowonspark_node_rows_total\{host="[^"]+",node="worker:1"\} [1-9]', metrics)
        with ThreadPoolExecutor() as page:
            rest = page.submit(list, seen)
            cluster.shutdown()
        assert rest.result()[-1]["summary"]["state"] == "ended"
        losses = [report for data in rest.result() for report in data.get("reports", [])]
        assert losses[0][3] == {"loss": 1.0}
    cluster.save_report(str(tmp_path / "run.html"))
    assert "a line of the program" in (tmp_path / "run.html").read_text()


def killed_once(args, ctx):
    if ctx.attempt == 0 and ctx.index == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return ctx.attempt


@local
def test_a_restart_is_on_the_page_that_stays_at_its_url(spark):
    cluster = tfos.Cluster(
        spark, killed_once, num_workers=2, dashboard=True, restarts=1, nodes=tfos.Nodes(heartbeat_timeout=10)
    )
    with cluster:
        url = cluster.dashboard_url
        with ThreadPoolExecutor() as page:
            seen = page.submit(list, states(url))
            assert cluster.join() == {"worker:0": 1, "worker:1": 1}
            assert cluster.dashboard_url == url
            cluster.shutdown()
    kinds = [event[1] for event in seen.result()[-1]["events"]]
    assert [each for each in kinds if each != "started"] == ["failure", "restart", "ended"]


@local
def test_a_run_writes_its_report_also_when_it_fails(spark, tmp_path):
    def fails(ctx):
        print("a line before the failure", flush=True)
        raise ValueError("no such column")

    with pytest.raises(tfos.SpecError, match="report='.*' is a directory"):
        tfos.run(spark, fails, dashboard=tfos.Dashboard(report=str(tmp_path)))
    tfos.run(
        spark,
        lambda ctx: print("the only line", flush=True),
        dashboard=tfos.Dashboard(report=str(tmp_path / "good.html")),
    )
    assert "the only line" in (tmp_path / "good.html").read_text()
    with pytest.raises(tfos.NodeError, match="no such column"):
        tfos.run(spark, fails, dashboard=tfos.Dashboard(report=str(tmp_path / "bad.html")))
    report = (tmp_path / "bad.html").read_text()
    assert "a line before the failure" in report
    assert "no such column" in report


def slowed(args, ctx):
    """Train in step with the others; worker 1 computes something else in each step."""
    import keras
    import tensorflow as tf

    class Slow(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            end = time.process_time() + 0.05 * (ctx.index == 1)
            while time.process_time() < end:
                pass

    with tf.distribute.MultiWorkerMirroredStrategy().scope():
        model = small_model()
    model.fit(ctx.dataset(8, features="features", label="label"), epochs=6, verbose=0, callbacks=[Slow()])


@pytest.mark.slow
@pytest.mark.timeout(300)
@local
def test_the_page_of_a_training_names_the_worker_that_was_slowed(spark):
    problem = what_is_missing()
    if problem:
        skip(problem)
    rows = small_frame(spark, [200, 200])
    with tfos.Cluster(spark, slowed, num_workers=2, dashboard=True) as cluster, chromium() as browser:
        feeding = Thread(target=cluster.train, args=[rows], daemon=True)
        feeding.start()
        browser.get(cluster.dashboard_url)
        found = ""
        while feeding.is_alive() and "Straggler" not in found:
            found = browser.find_element("id", "notices").text
            time.sleep(0.1)
        feeding.join()
    assert "Straggler: the other workers wait for worker:1 on " in found
