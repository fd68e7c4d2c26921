"""Writing of Arrow batches as files of records: tasks write to a staging directory, and the commit moves all files."""

import posixpath
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from tensorflowonspark import storage
from tensorflowonspark.columns import vector_lists
from tensorflowonspark.columns.layout import is_vector
from tensorflowonspark.errors import SpecError
from tensorflowonspark.storage.partition_columns import directory_of, partition_text
from tensorflowonspark.tfrecords.encode import encode
from tensorflowonspark.tfrecords.framing import compressor, framed
from tensorflowonspark.tfrecords.options import Compression, Options, OverwriteMode, RecordType

_SUCCESS = "_SUCCESS"
_STARTED = "_STARTED"  # exists in the staging directory while tasks may write there
_TEMPORARY = "_temporary"  # Spark and Hadoop ignore names that begin with an underscore
_ATTEMPTS, _PAUSE_SECONDS = 20, 0.1  # to remove a directory in which tasks that end may yet create a file
_SLICE_BYTES = 64 << 20  # encoded at once: Arrow's offsets end at 2 GiB, and memory is limited
_ENDINGS = {Compression.NONE: ".tfrecord", Compression.GZIP: ".tfrecord.gz", Compression.ZLIB: ".tfrecord.zlib"}


@dataclass(frozen=True)
class OutputFiles:
    """A directory that a job writes."""

    path: str
    options: Options
    # Whether the commit removes the previous contents: with the option for that those of the partitions
    # that are written, or else all.
    overwrite: bool = False
    job: str = field(default_factory=lambda: uuid.uuid4().hex)  # unique among all jobs that write the directory
    prefix: str = "part"  # the begin of the files' names

    @property
    def _staging(self) -> str:
        """The directory of the files until the commit."""
        return f"{self.path.rstrip('/')}/{_TEMPORARY}/{self.job}"

    def exists(self) -> bool:
        """Return whether the path exists."""
        files, path = storage.file_system(self.path)
        files.invalidate_cache()
        return bool(files.exists(path))

    def has_partitions(self) -> bool:
        """Return whether the path is a directory with some of partitions in it."""
        files, path = storage.file_system(self.path)
        return self.exists() and any("=" in posixpath.basename(each) for each in files.ls(path, detail=False))

    def begin(self) -> None:
        """Create the staging directory, in which tasks may write until `commit` or `abort`."""
        files, staging = storage.file_system(self._staging)
        files.makedirs(staging, exist_ok=True)
        files.pipe_file(f"{staging}/{_STARTED}", b"")

    def write(self, batches: Iterable[pa.RecordBatch], task: int) -> list[str]:
        """Write the rows of one task, by its partition's number; return the paths of its files within the directory."""
        attempt = uuid.uuid4().hex[:8]  # Spark may repeat a task, and commits one of its attempts
        begin, ending = f"{self.prefix}-{task:05d}-{self.job[:8]}-{attempt}", _ENDINGS[self.options.compression]
        most = self.options.max_records_per_file
        open_files: dict[str, _PartFile] = {}
        names: list[str] = []
        try:
            for batch in batches:
                for folder, rows in self._divided(batch):
                    done = 0
                    while done < rows.num_rows:
                        if folder in open_files and open_files[folder].rows == most > 0:
                            open_files.pop(folder).close()
                        if folder not in open_files:
                            names.append(f"{folder}{begin}-c{len(names):03d}{ending}")
                            open_files[folder] = _PartFile(self._staging, names[-1], self.options)
                        room = most - open_files[folder].rows if most else rows.num_rows
                        open_files[folder].add(rows.slice(done, room))
                        done += room
        finally:
            for part in open_files.values():
                part.close()
        return names

    def _divided(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield each partition directory with its rows, without the partition columns."""
        columns = self.options.partition_by
        if not batch.num_rows:
            return
        if not columns:
            yield "", batch
            return
        texts = [partition_text(batch.column(name)) for name in columns]
        codes = [text.dictionary_encode() for text in texts]
        combined = np.zeros(batch.num_rows, np.int64)
        for code in codes:
            combined = combined * len(code.dictionary) + code.indices.to_numpy()
        rest = batch.select([name for name in batch.schema.names if name not in columns])
        for each in np.unique(combined).tolist():
            rows = np.flatnonzero(combined == each)
            values = [text[int(rows[0])].as_py() for text in texts]
            folder = "".join(f"{directory_of(name, value)}/" for name, value in zip(columns, values, strict=True))
            yield folder, rest.take(pa.array(rows))

    def commit(self, names: Iterable[str]) -> None:
        """Move the files of all tasks to the directory, remove what they replace, and mark it as complete.

        New files come before old ones go: a process that ends in between leaves both, and no mark. A failed move is
        undone.
        """
        files, path = storage.file_system(self.path)
        files.invalidate_cache()
        _, staging = storage.file_system(self._staging)
        root = path.rstrip("/")
        files.makedirs(path, exist_ok=True)
        marked = files.exists(f"{root}/{_SUCCESS}")
        if marked:
            files.rm(f"{root}/{_SUCCESS}")
        moved: list[str] = []
        try:
            for name in names:
                target = f"{root}/{name}"
                files.makedirs(posixpath.dirname(target), exist_ok=True)
                moved.append(target)
                files.mv(f"{staging}/{name}", target)
        except BaseException:
            with suppress(Exception):  # the first error is the one to report
                for target in moved:
                    if files.exists(target):
                        files.rm(target)
                if marked:
                    files.pipe_file(f"{root}/{_SUCCESS}", b"")
            raise
        if self.overwrite:
            dynamic = self.options.partition_by and self.options.partition_overwrite_mode is OverwriteMode.DYNAMIC
            for folder in {posixpath.dirname(target) for target in moved} if dynamic else {root}:
                _remove_others(files, folder, moved)
        self._clean_up()
        files.makedirs(path, exist_ok=True)  # which has no files if no rows were written
        files.pipe_file(f"{root}/{_SUCCESS}", b"")

    def abort(self) -> None:
        """Remove the files of all tasks; the previous contents are unchanged."""
        self._clean_up()

    def _clean_up(self) -> None:
        files, path = storage.file_system(self.path)
        files.invalidate_cache()
        temporary = f"{path.rstrip('/')}/{_TEMPORARY}"
        storage.remove(f"{self._staging}/{_STARTED}")
        for _ in range(_ATTEMPTS):
            try:
                storage.remove(self._staging)
                break
            except OSError:  # a task has just created its last file there
                time.sleep(_PAUSE_SECONDS)
        if files.exists(temporary) and not files.ls(temporary, detail=False):
            files.rmdir(temporary)
        if files.exists(path) and not files.ls(path, detail=False):
            files.rmdir(path)


def _remove_others(files: Any, folder: str, kept: Sequence[str]) -> None:
    """Remove what is in a directory, except for some files."""
    files.invalidate_cache()
    for found in files.ls(folder, detail=False):
        path = f"{folder}/{posixpath.basename(str(found).rstrip('/'))}"  # whatever else an adapter's names begin with
        inside = [each for each in kept if each.startswith(f"{path}/")]
        if inside:
            _remove_others(files, path, inside)
        elif path not in kept and posixpath.basename(path) != _TEMPORARY:
            files.rm(path, recursive=True)


class _PartFile:
    """An open file of one task, to which `rows` have been written."""

    def __init__(self, staging: str, name: str, options: Options) -> None:
        files, within = storage.file_system(staging)
        # A task that outlives its failed job must not create the directory again.
        files.invalidate_cache()
        if not files.exists(f"{within}/{_STARTED}"):
            raise SpecError(f"the job that writes {staging} is over")
        if folder := posixpath.dirname(name):
            files.makedirs(f"{within}/{folder}", exist_ok=True)
        self._file = files.open(f"{within}/{name}", "wb")
        self.rows = 0
        self._options = options
        self._compressor = compressor(options.compression)

    def add(self, batch: pa.RecordBatch) -> None:
        """Write some rows."""
        self.rows += batch.num_rows
        pieces = max(1, min(-(-batch.nbytes // _SLICE_BYTES), batch.num_rows))
        size = -(-batch.num_rows // pieces)
        for begin in range(0, batch.num_rows, size):
            data = framed(_messages(batch.slice(begin, size), self._options))
            self._file.write(self._compressor.compress(data.data) if self._compressor else data.data)

    def close(self) -> None:
        """Write the end of the compressed data and close the file."""
        if self._compressor:
            self._file.write(self._compressor.flush())
        self._file.close()


def _messages(batch: pa.RecordBatch, options: Options) -> pa.Array:
    if options.record_type is RecordType.BYTE_ARRAY:
        records = batch.column(0).cast(pa.binary())
        if records.null_count:
            raise SpecError(
                f"column {batch.schema.names[0]!r} has a null, which a record of type ByteArray can't represent"
            )
        return records
    columns = [vector_lists(each) if is_vector(each.type) else each for each in batch.columns]
    plain = pa.record_batch(columns, names=batch.schema.names)
    return encode(plain, options.record_type is RecordType.SEQUENCE_EXAMPLE)
