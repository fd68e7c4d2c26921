"""What a process that has been told of a file opens, and what it does not."""

import os
import resource
import signal
from contextlib import contextmanager
from dataclasses import replace

import pyarrow as pa
import pytest

from tensorflowonspark.errors import FeedError
from tensorflowonspark.transport.shared_file import FileRef, SharedFileWriter, map_file, open_shared
from tests.support.commands import run_python
from tests.support.paths import open_files

BATCH = pa.record_batch({"x": list(range(20_000))})


@contextmanager
def limited(what, most):
    before = resource.getrlimit(what)
    resource.setrlimit(what, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(what, before)


def _of(descriptor):
    found = os.fstat(descriptor)
    return FileRef(os.getpid(), descriptor, found.st_dev, found.st_ino, found.st_size)


@pytest.mark.parametrize("on_disk", [True, False])
def test_a_nameless_file_is_opened(on_disk, tmp_path):
    batch = pa.record_batch({"x": [1, 2]})
    writer = SharedFileWriter(batch.schema, str(tmp_path) if on_disk else None)
    writer.write(batch)
    piece = writer.finish()
    assert open_shared(piece) == [batch]
    with pytest.raises(OSError, match="is a different one here"):
        open_shared(replace(piece, size=piece.size + 1))
    writer.close()


def test_a_file_with_a_name_is_not_opened(tmp_path):
    (tmp_path / "key").write_text("private")
    with open(tmp_path / "key") as file, pytest.raises(OSError, match="is not an unnamed file"):
        open_shared(_of(file.fileno()))


def test_a_pipe_is_not_waited_for():
    reading, writing = os.pipe()
    with pytest.raises(OSError, match="is not an unnamed file"):
        open_shared(_of(reading))
    os.close(reading)
    os.close(writing)


def test_more_files_are_mapped_than_may_be_open():
    before = open_files("/memfd:tensorflowonspark")
    with limited(resource.RLIMIT_NOFILE, len(os.listdir("/proc/self/fd")) + 20):
        held = []
        for number in range(100):
            writer = SharedFileWriter(pa.schema({"x": pa.int64()}), None)
            writer.write(pa.record_batch({"x": [number]}))
            held += open_shared(writer.finish())
            writer.close()
    assert [batch.column("x")[0].as_py() for batch in held] == list(range(100))
    assert open_files("/memfd:tensorflowonspark") == before


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("disk", "No space left on device; free some of the disk, set spark.local.dir to another"),
        ("file size", "File too large; allow this process larger files .ulimit -f"),
        ("open files", "Too many open files; allow this process more open files .ulimit -n"),
        ("directory", "No such file or directory; its directory is gone"),
    ],
)
def test_a_limit_of_the_host_is_named(what, words, tmp_path, monkeypatch):
    if what == "disk":
        monkeypatch.setattr("tempfile.TemporaryFile", lambda **_: open("/dev/full", "w+b"))  # noqa: SIM115
    limit = {"file size": (resource.RLIMIT_FSIZE, 10_000), "open files": (resource.RLIMIT_NOFILE, 3)}.get(what)
    directory = tmp_path / "gone" if what == "directory" else tmp_path
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # as Python does by itself
    with pytest.raises(FeedError, match=rf"rows can't be written to {directory} on .*: {words}"):
        with limited(*limit or (resource.RLIMIT_CORE, 0)):
            writer = SharedFileWriter(BATCH.schema, str(directory))
            writer.write(BATCH)
            writer.finish()
    signal.signal(signal.SIGXFSZ, before)


def test_a_process_that_may_map_no_more_reports_it(tmp_path):
    """As with ``ulimit -v``; a file without contents takes no room on the disk."""
    with open(tmp_path / "large", "w+b") as file:
        file.truncate(1 << 40)
        with limited(resource.RLIMIT_AS, 1 << 39), pytest.raises(FeedError, match=r"maps no more files .* ulimit -v"):
            map_file(file)


def test_files_are_allowed_as_far_as_the_system_lets_them():
    # In a process of its own: threads that other tests have left open files too.
    program = """
import os, resource
from tensorflowonspark.transport.shared_file import allow_files

_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 10, most))
assert allow_files(100)
held = [os.open("/dev/null", os.O_RDONLY) for _ in range(100)]
assert most == resource.RLIM_INFINITY or not allow_files(most)
"""
    run_python(program)
