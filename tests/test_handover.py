"""What a process that has been told of a file opens, and what it does not."""

import os
from dataclasses import replace

import pyarrow as pa
import pytest

from tensorflowonspark.handover import Piece, PieceWriter, open_piece


def _of(descriptor):
    found = os.fstat(descriptor)
    return Piece(os.getpid(), descriptor, found.st_dev, found.st_ino, found.st_size)


@pytest.mark.parametrize("on_disk", [True, False])
def test_a_nameless_file_is_opened(on_disk, tmp_path):
    batch = pa.record_batch({"x": [1, 2]})
    writer = PieceWriter(batch.schema, str(tmp_path) if on_disk else None)
    writer.write(batch)
    piece = writer.finish()
    assert open_piece(piece) == [batch]
    with pytest.raises(OSError, match="is another one here"):
        open_piece(replace(piece, size=piece.size + 1))
    writer.close()


def test_a_file_with_a_name_is_not_opened(tmp_path):
    (tmp_path / "key").write_text("private")
    with open(tmp_path / "key") as file, pytest.raises(OSError, match="is not one without a name"):
        open_piece(_of(file.fileno()))


def test_a_pipe_is_not_waited_for():
    reading, writing = os.pipe()
    with pytest.raises(OSError, match="is not one without a name"):
        open_piece(_of(reading))
    os.close(reading)
    os.close(writing)
