"""Files of checkpoints as others may have written them: read, or refused by name, and never of any size."""

import io
import json
import pickle
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorflowonspark.errors import CheckpointError
from tensorflowonspark.keras.callback_state import CallbackStates
from tensorflowonspark.keras.embedding.row_optimizers import row_optimizer
from tensorflowonspark.keras.embedding.table import Table
from tensorflowonspark.keras.embedding.table_parts import read_parts, written_parts
from tensorflowonspark.keras.jax.training_state import JaxState


class Value:
    """A variable as Keras has it on JAX."""

    path, shape, dtype = "dense/kernel", (2, 3), "float32"

    def __init__(self):
        self.value = np.zeros(self.shape, "f4")

    def assign(self, value):
        self.value = np.asarray(value)


class Model:
    built, metrics_variables, optimizer = True, (), None

    def __init__(self):
        self.variables = [Value()]

    def jax_state_sync(self):
        """As a model on JAX has it."""


class Remembering:
    """A callback whose own state and attributes a checkpoint has."""

    __module__ = "keras.callbacks"
    state = None

    def get_state(self):
        return {"mean": np.arange(3.0), "epochs": [1, 2]}

    def set_state(self, state):
        self.state = state


def rewritten(path, change, compression=zipfile.ZIP_STORED):
    """Write an archive anew, with what `change` makes of its entries."""
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in change(entries).items():
            archive.writestr(name, data)


def error_of(read):
    """Return the error by which a file is refused; if it is read, its path."""
    try:
        read()
    except CheckpointError as error:
        return str(error)
    return "/ckpt/step-1"


def jax_state(folder):
    JaxState(Model()).writer()(str(folder))
    return folder / "state.zip", lambda: JaxState(Model()).read(str(folder), "/ckpt/step-1")


def callback_state(folder):
    CallbackStates([Remembering()]).write(str(folder))
    return folder / "callbacks.zip", lambda: CallbackStates([Remembering()]).read(str(folder), "/ckpt/step-1")


ARCHIVES = {"state.zip": jax_state, "callbacks.zip": callback_state}


@pytest.fixture(params=ARCHIVES)
def archive(request, tmp_path):
    path, read = ARCHIVES[request.param](tmp_path)
    read()
    return path, read


def test_an_archive_whose_entries_can_be_of_any_size_is_refused(archive):
    path, read = archive
    rewritten(path, lambda entries: {**entries, "0": bytes(1 << 26)}, zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 1 << 17
    with pytest.raises(CheckpointError, match=rf"/ckpt/step-1/{path.name} is damaged.*its entry .* is compressed"):
        read()


def array_file(header):
    """Return the beginning of a file of NumPy."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue()


LIES = {
    "an array of a terabyte": array_file({"descr": "|u1", "fortran_order": False, "shape": (1 << 40,)}),
    "a pickle": array_file({"descr": "|O", "fortran_order": False, "shape": (1,)}) + pickle.dumps(print),
    "no header": b"\x93NUMPY\x01\x00\x02\x00{(",
    "nothing": b"",
}


@pytest.mark.parametrize("name", LIES)
def test_an_array_that_is_none_is_refused(tmp_path, name):
    path, read = jax_state(tmp_path)
    rewritten(path, lambda entries: {**entries, "0": LIES[name]})
    with pytest.raises(CheckpointError, match=r"/ckpt/step-1/state.zip is damaged"):
        read()


@given(
    place=st.floats(0, 1), inserted=st.binary(max_size=6), removed=st.integers(0, 6), which=st.sampled_from([*ARCHIVES])
)
def test_any_damage_of_an_archive_is_an_error_by_name_or_none(tmp_path_factory, place, inserted, removed, which):
    path, read = ARCHIVES[which](tmp_path_factory.mktemp("damaged"))
    data = path.read_bytes()
    at = int(place * len(data))
    path.write_bytes(data[:at] + inserted + data[at + removed :])
    assert "/ckpt/step-1" in error_of(read)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.sampled_from(["array", "dict", "list", "f4", "|O", "value", "0"]),
    lambda each: st.lists(each, max_size=4) | st.dictionaries(st.sampled_from(["keras", "own", "x"]), each, max_size=3),
    max_leaves=8,
)


@pytest.mark.deep
@given(states=JSON)
def test_any_states_of_callbacks_are_an_error_by_name_or_values(tmp_path_factory, states):
    path, read = callback_state(tmp_path_factory.mktemp("states"))
    rewritten(path, lambda entries: {**entries, "states.json": json.dumps({"Remembering 0": states}).encode()})
    assert "/ckpt/step-1" in error_of(read)


def test_a_checkpoint_sets_no_settings_of_callbacks(tmp_path):
    """Such as the path to which the next model is written."""
    import keras

    callback = keras.callbacks.ModelCheckpoint("mine.keras")
    callback.best = 0.5
    CallbackStates([callback]).write(str(tmp_path))
    state = ["dict", {"keras": ["dict", {"filepath": ["value", "/etc/passwd"], "best": ["value", 0.25]}]}]
    rewritten(tmp_path / "callbacks.zip", lambda _: {"states.json": json.dumps({"ModelCheckpoint 0": state}).encode()})
    states = CallbackStates([callback])
    states.read(str(tmp_path), "/ckpt/step-1")
    states.set()
    assert (callback.filepath, callback.best) == ("mine.keras", 0.25)


def part_files():
    table = Table(20, 3, 1, 0, row_optimizer("sgd"), lambda ids: np.zeros((len(ids), 3), "f4"))
    return table, dict(written_parts(table, "items"))


ABOUT = "items/00000-of-00001/about.json"


@pytest.mark.parametrize(
    "about",
    [
        {"block_rows": 0},
        {"block_rows": -1},
        {"block_rows": "7"},
        {"block_rows": None},
        {"block_rows": 3},  # of which the parts have more
        {"steps": "many"},
        {"steps": 1 << 70},
        {"learning_rate": []},
    ],
    ids=str,
)
def test_the_description_of_rows_is_refused_by_its_name(about):
    table, files = part_files()
    files[ABOUT] = json.dumps({**json.loads(files[ABOUT]), **about}).encode()
    with pytest.raises(CheckpointError, match=f"{ABOUT} of a checkpoint is damaged"):
        read_parts(table, "items", list(files), files.__getitem__)


@pytest.mark.parametrize("what", ["{", "[]", *LIES])
@pytest.mark.parametrize("which", ["about", "rows"])
def test_a_part_that_is_none_is_refused_by_its_name(what, which):
    table, files = part_files()
    name = next(each for each in files if which in each.split("/")[-1])
    files[name] = LIES.get(what, what.encode())
    with pytest.raises(CheckpointError, match=f"{ABOUT} of a checkpoint is damaged"):
        read_parts(table, "items", list(files), files.__getitem__)


def test_a_state_that_is_written_later_is_that_of_its_moment(tmp_path):
    """JAX takes the memory of the values for those of the next step."""
    model = Model()
    model.variables[0].value[:] = 1
    write = JaxState(model).writer(copied=True)
    model.variables[0].value[:] = 2
    write(str(tmp_path))
    JaxState(model).read(str(tmp_path), "/ckpt/step-1")
    np.testing.assert_array_equal(model.variables[0].value, np.ones((2, 3)))
