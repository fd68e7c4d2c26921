"""The memory that a record takes, whatever it is made of: a small multiple of its bytes.

Some kilobytes of compressed data can stand for any of these records.
"""

import json

import pyarrow as pa
import pytest

from tensorflowonspark.tfrecords.framing import framed
from tensorflowonspark.tfrecords.options import MAX_RECORD_BYTES
from tests.support.commands import run_python
from tests.support.tfrecord_shapes import REFUSED, SHAPES

SIZE = 6_000_000
MOST = {"names": 45}  # times the record's bytes; of others 26
QUICK = {"short strings"}
READ = """
import json, re, sys
from tests.support.tfrecord_files import read_rows
from tensorflowonspark.columns.schema import arrow_schema
from tensorflowonspark.node.feed.tfrecord_source import tfrecord_splits
path, schema, kind = sys.argv[1:]
def most():
    return int(re.search(r"VmHWM:\\s*(\\d+) kB", open("/proc/self/status").read())[1]) << 10
splits, _ = tfrecord_splits([path], arrow_schema(schema), None, {"recordType": kind, "caseSensitive": "false"})
before, rows, said = most(), 0, ""
try:
    for split in splits:
        for batch in split.batches():
            rows += batch.num_rows
            del batch
except Exception as error:
    said = str(error)
print(json.dumps([most() - before, rows, said]))
"""


@pytest.mark.deep
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in SHAPES]
)
def test_a_record_of_any_shape_takes_a_small_multiple_of_its_bytes(tmp_path, name):
    make, schema = SHAPES[name]
    path = tmp_path / "records"
    path.write_bytes(framed(pa.array([make(SIZE)])).tobytes())
    assert SIZE * 0.9 < path.stat().st_size < SIZE * 1.1
    kind = "SequenceExample" if "step" in name else "Example"
    took, rows, said = json.loads(run_python(READ, str(path), schema, kind))
    assert took < MOST.get(name, 26) * SIZE
    if name in REFUSED:
        assert f"{path}, byte " in said
        assert "a record has " in said
        assert "entries, lists or steps of less than" in said
    else:
        assert (rows, said) == (1, "")


def test_the_default_limit_of_a_record_is_what_a_task_can_bear():
    assert MAX_RECORD_BYTES * max(MOST.values()) < 3 << 30
