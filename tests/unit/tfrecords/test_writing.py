"""Commits of written files: what an overwrite replaces, and what is there after a failure at any step."""

import os
import shutil
from functools import partial

import pyarrow as pa
import pytest

from tensorflowonspark import storage
from tensorflowonspark.tfrecords.options import Options
from tensorflowonspark.tfrecords.writing import OutputFiles
from tests.support.tfrecord_files import read_rows


def job(path, mode, ids, days, **options):
    """Write rows of some days, in two tasks."""
    given = {"partitionBy": "day", "partitionOverwriteMode": mode, **options}
    output = OutputFiles(str(path), Options.of(given), overwrite=mode is not None)
    output.begin()
    rows = pa.RecordBatch.from_pydict({"id": ids, "day": days})
    half = len(ids) // 2
    names = [name for task, part in enumerate((rows[:half], rows[half:])) for name in output.write([part], task)]
    return output, names


def rows_of(path):
    return sorted((row["day"], row["id"]) for row in read_rows(path))


@pytest.fixture
def table(tmp_path):
    output, names = job(tmp_path / "table", None, [1, 2, 3, 4], [7, 7, 8, 9])
    output.commit(names)
    (tmp_path / "table/notes.txt").write_text("")
    return tmp_path / "table"


@pytest.mark.parametrize(
    ("mode", "expected", "rest"),
    [
        ("dynamic", [(7, 10), (7, 11), (8, 3), (9, 4), (10, 12)], ["day=10", "day=7", "day=8", "day=9", "notes.txt"]),
        ("static", [(7, 10), (7, 11), (10, 12)], ["day=10", "day=7"]),
        (None, [(7, 1), (7, 2), (7, 10), (7, 11), (8, 3), (9, 4), (10, 12)], None),
    ],
)  # fmt: skip
def test_what_an_overwrite_replaces(table, mode, expected, rest):
    output, names = job(table, mode, [10, 11, 12], [7, 7, 10])
    output.commit(names)
    assert rows_of(table) == expected
    assert rest is None or sorted(os.listdir(table)) == ["_SUCCESS", *rest]


def test_a_dynamic_overwrite_without_rows_or_partition_columns(table):
    output, names = job(table, "dynamic", [], [])
    output.commit(names)
    assert len(rows_of(table)) == 4
    output, names = job(table, "dynamic", [5, 6], [1, 1], partitionBy="")
    output.commit(names)
    assert sorted(row["id"] for row in read_rows(table)) == [5, 6]


class Ended(BaseException):
    """The process ends here."""


@pytest.mark.deep
@pytest.mark.parametrize("mode", ["static", "dynamic", None])
@pytest.mark.parametrize("ends", [True, False], ids=["the process ends", "an error"])
def test_a_failure_at_any_step_leaves_all_old_rows_or_all_new_ones(table, monkeypatch, mode, ends):
    old, new = set(rows_of(table)), {(7, 10), (8, 11)}
    final = {"static": new, "dynamic": {*new, (9, 4)}, None: {*old, *new}}[mode]
    files = storage.file_system(str(table))[0]
    originals = {name: getattr(files, name) for name in ("mv", "rm", "makedirs", "pipe_file")}
    for step in range(1, 100):
        copy = shutil.copytree(table, f"{table}-{step}")
        output, names = job(copy, mode, [10, 11], [7, 8])
        left = [step]

        def counted(name, *args, left=left, **options):
            left[0] -= 1
            if left[0] == 0 or (left[0] < 0 and ends):  # a process that has ended does nothing more
                raise Ended if ends else OSError("no")
            return originals[name](*args, **options)

        for name in originals:
            monkeypatch.setattr(files, name, partial(counted, name))
        try:
            output.commit(names)
            break
        except (Ended, OSError):
            pass
        finally:
            monkeypatch.undo()
        if not ends:
            output.abort()
        found = set(rows_of(copy))
        assert found >= old or found >= new, step
        assert found in (old, final) or not os.path.exists(f"{copy}/_SUCCESS"), step  # a mixture has no mark
    assert step > 5
    assert set(rows_of(copy)) == final


@pytest.mark.parametrize(("most", "sizes"), [(0, [5, 2]), (1, [1] * 7), (2, [2, 2, 1, 2]), (5, [5, 2]), (6, [5, 2])])
def test_records_of_a_file(tmp_path, most, sizes):
    output = OutputFiles(str(tmp_path / "t"), Options.of({"partitionBy": "day", "maxRecordsPerFile": most}))
    output.begin()
    batches = [pa.RecordBatch.from_pydict({"id": [n, n + 1], "day": [0, 0 if n < 6 else 1]}) for n in range(0, 6, 2)]
    last = pa.RecordBatch.from_pydict({"id": [6], "day": [1]})
    names = output.write(
        [*batches[:2], batches[2].slice(0, 1), pa.RecordBatch.from_pydict({"id": [5], "day": [1]}), last], 0
    )
    output.commit(names)
    assert [len(read_rows(tmp_path / "t" / name)) for name in sorted(names)] == sizes
    assert [row["id"] for row in read_rows(tmp_path / "t")] == list(range(7))


@pytest.mark.parametrize("mode", [None, "static"])
def test_a_write_without_rows_leaves_an_empty_directory(table, mode):
    path = table if mode else table.with_name("new")
    output, names = job(path, mode, [], [])
    output.commit(names)
    assert os.listdir(path) == ["_SUCCESS"]
