"""A node that writes to an object store."""

from pathlib import Path

import pytest

import tensorflowonspark as tfos
from tensorflowonspark import storage
from tests.support.stored import names_below


def publish(args, ctx):
    storage.publish(args, lambda local: Path(local).write_text(str(ctx.role)) and None)


@pytest.mark.masters("standalone")
def test_a_node_writes_with_the_credentials_of_the_session(spark, bucket, caplog, capfd):
    given = {**bucket, "fs.s3a.secret.key": "not-to-be-seen"}
    for name, value in given.items():
        spark.conf.set(name, value)
    try:
        tfos.run(spark, publish, "s3a://bucket/nodes/note")
    finally:
        for name in given:
            spark.conf.unset(name)
    storage.use(bucket)
    assert names_below("s3a://bucket/nodes") == ["note"]
    assert "not-to-be-seen" not in "".join([caplog.text, *capfd.readouterr()])
