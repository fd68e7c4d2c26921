"""Many small files on a store: the workers divide the footers, and name the file that can't be read."""

import os
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tensorflowonspark as tfos
from benchmarks.common.object_store import ObjectStore

pytestmark = [pytest.mark.masters("local"), pytest.mark.timeout(120)]
_FILES = 40
_PATH = "s3a://bucket/files"


@pytest.fixture
def store(spark, tmp_path, hadoop_free):
    """A store with 40 Parquet files of three rows, written an hour ago."""
    folder, then = tmp_path / "bucket" / "files", time.time() - 3600
    folder.mkdir(parents=True)
    for number in range(_FILES):
        path = folder / f"{number:02}.parquet"
        pq.write_table(pa.table({"id": list(range(3 * number, 3 * number + 3))}), path)
        os.utime(path, (then, then))
    found = ObjectStore(tmp_path / "bucket", 0.005)
    for name, value in found.settings().items():
        spark.conf.set(name, value)
    yield found
    for name in found.settings():
        spark.conf.unset(name)
    found.close()


def run(spark, program, tmp_path):
    return tfos.run(spark, program, _PATH, num_workers=2, env={"XDG_CACHE_HOME": str(tmp_path / "cache")}).values()


def count(args, ctx):
    return ctx.read_parquet(args, cache=None).total_rows


def read(args, ctx):
    feed = ctx.read_parquet(args, cache=None)
    return [
        row for batch in feed.batches(16, features=["id"]) for row in batch["id"][batch["sample_weight"] != 0].tolist()
    ]


def test_each_footer_is_asked_for_once_and_by_a_later_run_not_at_all(spark, store, tmp_path):
    store.answer = lambda method, key: (200, 0.5) if key.endswith("07.parquet") else None  # one is slow
    assert set(run(spark, count, tmp_path)) == {3 * _FILES}
    asked = {key: store.requests["GET", key] for _, key in store.requests if key.endswith(".parquet")}
    first = asked.pop("files/00.parquet")  # of which all workers read the first rows
    assert asked == dict.fromkeys(asked, 1)
    assert len(asked) == _FILES - 1
    assert first > 1
    store.requests.clear()
    rows = [row for each in run(spark, read, tmp_path) for row in each]
    assert sorted(rows) == list(range(3 * _FILES))
    assert store.requests["HEAD", "files/09.parquet"] == 1  # by the one worker that reads its rows


@pytest.mark.parametrize("status", [404, 503])
def test_a_footer_that_can_not_be_read_is_named(spark, store, tmp_path, status):
    store.answer = lambda method, key: (status, 0) if key.endswith("07.parquet") else None
    with pytest.raises(tfos.ClusterError, match=r"the footer of .*files/07\.parquet can't be read"):
        run(spark, count, tmp_path)


def test_a_worker_that_reads_something_else_fails_the_cluster(spark, store, tmp_path):
    def program(args, ctx):
        if ctx.index == 0:
            ctx.read_parquet(args, cache=None)
        else:
            ctx.read_tfrecord(args, cache=None, schema="id bigint")

    with pytest.raises(
        tfos.ClusterError, match=r"its program called ctx\.read_\w+\(.* and another worker's ctx\.read_"
    ):
        run(spark, program, tmp_path)
