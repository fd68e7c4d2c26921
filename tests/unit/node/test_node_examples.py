"""The examples of the node's public interface, run on the context of a cluster in this process."""

import doctest
from contextlib import contextmanager, suppress
from importlib import import_module
from queue import Queue
from threading import Thread

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tensorflowonspark as tfos
from tensorflowonspark.feed_messages import FeedComplete
from tensorflowonspark.node.ps.coordinator import CoordinatedFeed
from tests.support.examples import WITH_CONTEXT
from tests.support.inprocess import cluster_in_process
from tests.support.tables import make_delta, make_iceberg

LOANS = Queue()  # of contexts, and an event for the end of each loan


def lend_context(module, ctx):
    """The program of the node: lends its context to the test, until that is done."""
    import sys
    from threading import Event

    finished = Event()
    sys.modules[module].LOANS.put((ctx, finished))  # the one of this process: the program is pickled by value
    finished.wait()


def rows(ids):
    """A partition of one batch: x (two floats), id, label."""
    columns = {"x": pa.array([[i, -i] for i in ids], pa.list_(pa.float32())), "id": pa.array(ids, pa.int64())}
    return [pa.record_batch({**columns, "label": pa.array([i % 2 for i in ids], pa.float32())})]


@contextmanager
def lent_context(monkeypatch):
    """Yield the context of a worker that is fed six rows, and two to validate on."""
    monkeypatch.setattr("tensorflowonspark.driver.feed.feed_settings.check_frame", lambda frame, validation: None)

    def drive():
        with cluster_in_process(lend_context, __name__) as cluster, suppress(tfos.FeedError):  # which came too late
            cluster.train([rows(range(6))], validation=[rows(range(2))])

    driver = Thread(target=drive)
    driver.start()
    ctx, finished = LOANS.get(timeout=30)
    try:
        yield ctx
    finally:
        finished.set()
        driver.join(30)
        assert not driver.is_alive()


@pytest.fixture
def files(tmp_path):
    import tensorflow as tf

    with tf.io.TFRecordWriter(str(tmp_path / "records.tfrecord")) as writer:
        for i in range(6):
            feature = tf.train.Feature(int64_list=tf.train.Int64List(value=[i]))
            example = tf.train.Example(features=tf.train.Features(feature={"id": feature, "more": feature}))
            writer.write(example.SerializeToString())
    pq.write_table(pa.table({"id": range(6)}), tmp_path / "rows.parquet")
    names = {"directory": tmp_path, "records": tmp_path / "records.tfrecord", "parquet": tmp_path / "rows.parquet"}
    tables = {"delta": make_delta(tmp_path / "delta", range(6)), "iceberg": make_iceberg(tmp_path, range(6))}
    return {name: str(path) for name, path in {**names, **tables}.items()}


@pytest.mark.parametrize("name", sorted(WITH_CONTEXT))
def test_examples_of(name, files, monkeypatch):
    module = import_module(name)
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    for test in doctest.DocTestFinder(exclude_empty=True).find(module):
        if not test.examples:
            continue
        with lent_context(monkeypatch) as ctx:
            test.globs.update(files, ctx=ctx)
            if "coordinated" in test.docstring:
                complete = FeedComplete(0, ctx.feed()._share.manifest)
                test.globs["coordinated"] = CoordinatedFeed(complete, lambda feed, split: 0)
            runner.run(test)
    assert runner.tries
    assert not runner.failures


@pytest.mark.parametrize("kind", [tfos.Context, tfos.Feed, tfos.CoordinatedFeed, tfos.Checkpoints])
def test_public_methods_are_documented_and_have_no_open_options(kind):
    import inspect

    for name, method in inspect.getmembers(kind, inspect.isfunction):
        if name.startswith("_"):
            continue
        signature = inspect.signature(method)
        loose = [each for each in signature.parameters.values() if each.kind is each.VAR_KEYWORD]
        open_ones = [each.name for each in loose if not str(each.annotation).startswith("Unpack[")]
        assert open_ones in ([], ["metrics"]), name  # the names of metrics are the user's
        document = inspect.getdoc(method)
        assert "Examples\n--------" in document, name
        assert len(signature.parameters) == 1 or "Parameters\n----------" in document, name
        assert signature.return_annotation in (None, "None") or "Returns\n-------" in document, name
