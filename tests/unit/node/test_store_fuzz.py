"""What others have written into a directory of checkpoints: believed if it can be true, else refused by name."""

import json
import uuid
from pathlib import PurePosixPath

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFile
from hypothesis import strategies as st

from tensorflowonspark.errors import CheckpointError
from tensorflowonspark.node.checkpoint.store import CheckpointStore, _record_checksum
from tests.support.fuzz import SECONDS, fuzz

pytestmark = pytest.mark.timeout(120 + 2 * SECONDS)
NAME = "step-00000003-0123abcd"
PATHS = st.one_of(
    st.sampled_from(
        ["state", "parts/a", "..", ".", "", "/", "/etc/x", "a/../b", "a/../../b", "parts/../../x", "a//b", "\x00"]
    ),
    st.text(max_size=8),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | PATHS,
    lambda each: st.lists(each, max_size=3) | st.dictionaries(PATHS, each, max_size=3),
    max_leaves=6,
)
RECORD = {
    "name": st.just(NAME) | JSON,
    "files": st.dictionaries(PATHS, st.integers(-1, 3), max_size=4) | JSON,
    "checksums": st.dictionaries(PATHS, st.integers(-1, 3), max_size=4) | JSON,
    **dict.fromkeys(["number", "step", "epoch", "batch", "feed", "workers"], st.integers(-1, 2**70) | JSON),
}


@st.composite
def markers(draw):
    """Return the bytes of a marker, most of them with the right checksum."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=60))
    honest = {"name": NAME, "number": 0, "step": 3, "epoch": 0, "files": {"state": 1}, "checksums": {"state": 1}}
    record = {**honest, **draw(st.fixed_dictionaries({}, optional=RECORD))}
    if draw(st.integers(0, 9)) == 0:
        record[draw(PATHS)] = draw(JSON)
    record["crc32c"] = draw(JSON) if draw(st.integers(0, 9)) == 0 else _record_checksum(record)
    data = bytearray(json.dumps(record).encode())
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):
        at = draw(st.integers(0, len(data)))
        data[at : at + draw(st.integers(0, 4))] = draw(st.binary(max_size=4))
    return bytes(data)


@pytest.fixture
def store():
    made = CheckpointStore(f"memory://{uuid.uuid4().hex}/one", 3)
    system, root = fsspec.core.url_to_fs(made.directory)

    def write(name, contents, *, raw=False):
        made._damaged.clear()
        path = f"{root}/{NAME}/{name}"
        if raw:
            system.store[path] = MemoryFile(system, path, contents)
        else:
            system.pipe_file(path, contents)

    yield made, write
    system.rm(root.rpartition("/")[0], recursive=True)


def test_markers(store, tmp_path):
    made, write = store
    for name in ("state", "parts/a", "../evil", "../../evil", "parts/../../x", "a/../b"):
        write(name, b"x", raw=True)
    inside = tmp_path / "1/2/3"

    def check(marker):
        write("complete.json", marker)
        saved = made.find(NAME)
        if saved is None:
            return
        assert saved.name == NAME
        assert all(type(each) is int and each >= 0 for each in [saved.step, saved.number, *saved.files.values()])
        assert not any(".." in PurePosixPath(each).parts or each.startswith("/") for each in saved.files)
        try:
            made.fetch(saved, str(inside))
            for each in made.part_names(saved):
                made.read_part(saved, each)
        except CheckpointError:
            pass
        assert not [each for each in tmp_path.rglob("*") if each.is_file() and not each.is_relative_to(inside)]

    kept = [b"[" * 100_000, b'{"name": ' + b"9" * 5000 + b"}", b"\xff\xfe{", b"{}", b"null"]
    fuzz(markers(), check, kept)


def test_lists_of_parts(store, tmp_path):
    made, write = store
    (tmp_path / "state").write_bytes(b"x")

    def check(contents):
        write("lists/worker-0.json", contents)
        try:
            saved = made.add(str(tmp_path), 3, name=NAME)
        except CheckpointError:
            return
        assert saved.files["state"] == 1
        found = made.find(NAME)
        assert found is None or not any(".." in PurePosixPath(each).parts for each in found.files)

    lists = st.dictionaries(PATHS, st.tuples(st.integers(-1, 3), st.integers(0, 9)) | JSON, max_size=3) | JSON
    kept = [b"[]", b'{"parts/a": 1}', b'{"parts/a": [1]}', b'{"state": [5, 5]}', b'{"../x": [1, 1]}', b"[" * 100_000]
    fuzz(lists.map(lambda each: json.dumps(each).encode()) | st.binary(max_size=40), check, kept)
