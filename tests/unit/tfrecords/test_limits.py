"""The limit on a record's bytes: a small compressed file can hold a record of any size."""

import gzip
import struct

import pytest

from tensorflowonspark.errors import SpecError, TFRecordError
from tensorflowonspark.tfrecords.checksums import masked_crc
from tests.support.commands import run_python
from tests.support.tfrecord_files import read_rows, write_rows

LONG = 5_000_000
ONE = 1 << 20


def header(length):
    data = struct.pack("<Q", length)
    return data + struct.pack("<I", masked_crc(data))


@pytest.fixture(scope="module", params=["plain", "gzip"])
def files(request, tmp_path_factory):
    """A file whose second record of three is long."""
    path = tmp_path_factory.mktemp("files") / "records"
    write_rows(path, byteArray=[b"a", b"b" * LONG, b"c"])
    if request.param == "gzip":
        path.write_bytes(gzip.compress(path.read_bytes(), 1))
    return path


ROWS = {
    "FAILFAST": None,
    "DROPMALFORMED": [1],
    "PERMISSIVE": [1, None],
}


@pytest.mark.parametrize("limit", [100, "1m", LONG])
@pytest.mark.parametrize("mode", ROWS)
def test_a_longer_record_is_refused_with_its_file_place_size_and_the_option(files, limit, mode):
    schema = "byteArray binary, _corrupt_record string"
    options = {"schema": schema, "mode": mode, "maxRecordBytes": limit}
    allowed = ONE if limit == "1m" else limit
    said = rf"{files}, byte \d\d: a record has 5,000,0\d\d bytes.* maxRecordBytes allows {allowed:,}\b"
    if mode == "FAILFAST":
        with pytest.raises(TFRecordError, match=said):
            read_rows(files, **options)
        return
    rows = read_rows(files, **options)
    assert [row["byteArray"] and len(row["byteArray"]) for row in rows] == ROWS[mode]


def test_a_schema_is_not_inferred_from_what_is_too_long_without_a_word(tmp_path):
    path = write_rows(tmp_path / "first", byteArray=[b"b" * LONG])
    with pytest.raises(TFRecordError, match=rf"{path}, byte 0: a record has 5,000,0\d\d bytes"):
        read_rows(path, maxRecordBytes=100)


@pytest.mark.parametrize("limit", ["5000100", "6m", None])
def test_a_record_within_the_limit_is_read(files, limit):
    rows = read_rows(files, schema="byteArray binary", maxRecordBytes=limit)
    assert [len(row["byteArray"]) for row in rows] == [1, LONG, 1]


@pytest.mark.parametrize("limit", ["0", "-1", "much", True])
def test_a_limit_is_a_number_of_bytes(files, limit):
    with pytest.raises(SpecError, match="option maxRecordBytes=.*expected a number of bytes above 0"):
        read_rows(files, maxRecordBytes=limit)


@pytest.mark.deep
def test_a_file_of_some_hundred_kilobytes_takes_no_hundreds_of_megabytes(tmp_path):
    path = tmp_path / "records"
    length = 300_000_000
    with gzip.open(path, "wb", 6) as file:
        file.write(header(length))
        for _ in range(30):
            file.write(bytes(length // 30))
    assert path.stat().st_size < 400_000
    program = (
        "import re\n"
        "from tests.support.tfrecord_files import read_rows\n"
        "try:\n"
        f"    read_rows({str(path)!r}, schema='x float')\n"
        "except Exception as error:\n"
        "    print(int(re.search(r'VmHWM:\\s*(\\d+) kB', open('/proc/self/status').read())[1]) >> 10, error)\n"
    )
    done = run_python(program)
    megabytes, _, error = done.partition(" ")
    assert "a record has 300,000,000 bytes" in error
    assert int(megabytes) < 400
