"""What a process that refuses code loads, and what it does not: without a Spark session, by the environment."""

import json
import pickle
import re
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
from packaging.specifiers import SpecifierSet

import tensorflowonspark as tfos
from tensorflowonspark.ml import KerasEstimator, KerasModel
from tensorflowonspark.ml.distribution import load_call
from tensorflowonspark.ml.fetching import fetch_keras_model, fetch_saved_model
from tensorflowonspark.ml.refusal import check_code
from tensorflowonspark.ml.serialization import load_model
from tests.support.custom_layers import model_of

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def refused(monkeypatch):
    monkeypatch.setenv("TFOS_LOAD_CODE", "false")


def stage_at(directory, kind, code=(), stage=KerasModel, **params):
    """Write what Spark ML and `KerasModel.save` write beside a model, whatever that is."""
    tensor = {"name": "x", "shape": [1], "dtype": "float32"}
    model = {
        "kind": kind,
        "inputs": [tensor],
        "outputs": [{**tensor, "meaning": "values", "logits": False}],
        "layers": [],
        "signature": "serving_default",
        "tags": [],
        "code": list(code),
    }
    metadata = {
        "class": f"{stage.__module__}.{stage.__name__}",
        "uid": "Stage_1",
        "paramMap": params,
        "defaultParamMap": {},
        "sparkVersion": "4.0.0",
        "history": {},
        "layers": [],
        "model": model,
    }
    Path(directory, "metadata").mkdir(parents=True)
    Path(directory, "metadata/part-00000").write_text(json.dumps(metadata))
    return directory


def lambda_in_hdf5(path):
    """A file that runs code when tf_keras reads it, under the name of one of Keras 3."""
    import tf_keras

    marker = str(path.parent / "ran")
    function = eval(f"lambda x: (open({marker!r}, 'w').close(), x)[1]")
    tf_keras.Sequential([tf_keras.Input((1,)), tf_keras.layers.Lambda(function)]).save(path.with_suffix(".h5"))
    path.with_suffix(".h5").rename(path)


def module_in_keras_file(path):
    """A file that has tf_keras import a module."""
    import tf_keras

    tf_keras.Sequential([tf_keras.Input((1,)), tf_keras.layers.Dense(1)]).save(path)
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    config = json.loads(parts["config.json"])
    parts["config.json"] = json.dumps({**config, "module": "imported_by_tf_keras", "class_name": "Imported"})
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in parts.items():
            archive.writestr(name, data)
    path.with_name("imported_by_tf_keras.py").write_text(
        f"open({str(path.parent / 'ran')!r}, 'w').close()\nfrom tf_keras import Sequential as Imported\n"
    )


def graph_that_writes(path):
    import tensorflow as tf

    class Writes(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None, 1], tf.float32)])
        def __call__(self, x):
            tf.io.write_file(str(path.parent / "ran"), "")
            return {"y": x}

    module = Writes()
    tf.saved_model.save(module, str(path), signatures=module.__call__)


def pickled_function(path):
    path.write_bytes(b"")


# What makes a model file, its name, the kind that metadata names, and the code that is then named.
HOSTILE = {
    "HDF5 for tf_keras": (lambda_in_hdf5, "model.keras", "tf_keras", "model.keras of tf_keras"),
    ".keras for tf_keras": (module_in_keras_file, "model.keras", "tf_keras", "model.keras of tf_keras"),
    "SavedModel": (graph_that_writes, "saved_model", "saved_model", "saved_model"),
    "function": (pickled_function, "function.pkl", "function", "function.pkl"),
}


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """A stage of each kind of model that runs code."""
    places = {}
    for name, (make, file, kind, _) in HOSTILE.items():
        place = tmp_path_factory.mktemp("hostile") / "stage"
        stage_at(place, kind)
        (place / "model").mkdir()
        make(place / "model" / file)
        (place / "model" / "ran").unlink(missing_ok=True)  # by what has made it
        places[name] = place
    return places


@pytest.mark.parametrize("name", HOSTILE)
def test_a_stage_that_can_run_code_is_refused_whatever_its_metadata_lists(hostile, refused, name, monkeypatch):
    place = hostile[name]
    monkeypatch.syspath_prepend(place / "model")
    with pytest.raises(tfos.SpecError, match=rf"{place} holds code \({HOSTILE[name][3]}\), and TFOS_LOAD_CODE=false"):
        KerasModel.read().load_locally(str(place))
    assert not (place / "model/ran").exists()


@pytest.mark.parametrize("name", [name for name in HOSTILE if name != "function"])
def test_a_model_file_that_can_run_code_is_refused(hostile, refused, name, monkeypatch):
    _, file, kind, code = HOSTILE[name]
    monkeypatch.syspath_prepend(hostile[name] / "model")
    path = str(hostile[name] / "model" / file)
    with pytest.raises(tfos.SpecError, match=rf"{path} holds code \({code}\)"):
        fetch_saved_model(path, "serving_default") if kind == "saved_model" else fetch_keras_model(path, kind)
    assert not (hostile[name] / "model/ran").exists()


@pytest.mark.parametrize("name", [".keras for tf_keras", "SavedModel"])
def test_where_code_is_allowed_these_models_run_it(hostile, name, tmp_path, monkeypatch):
    """So that the tests above prove something."""
    place = shutil.copytree(hostile[name], tmp_path / "stage")
    monkeypatch.syspath_prepend(place / "model")
    call = load_call(KerasModel.read().load_locally(str(place))._bundle)
    if name == "SavedModel":
        call({"x": np.ones((1, 1), "float32")})
    assert (hostile[name] / "model/ran").exists()
    (hostile[name] / "model/ran").unlink()


@pytest.mark.parametrize("library", ["keras", "tf_keras"])
def test_a_file_in_another_format_is_none_of_keras_even_where_code_is_allowed(hostile, library):
    path = hostile["HDF5 for tf_keras"] / "model"
    with pytest.raises(tfos.SpecError, match=r"no .keras file, which is a zip archive: it begins with b'.x89HDF"):
        fetch_keras_model(str(path / "model.keras"), library)
    assert not (path / "ran").exists()


@pytest.mark.parametrize("kind", ["jax", "os", None, "Keras", ["keras"]])
def test_a_kind_of_model_is_one_of_four(tmp_path, kind):
    place = stage_at(tmp_path / "stage", kind)
    with pytest.raises(
        tfos.SpecError, match=rf"{place}: .* kind of model {re.escape(repr(kind))}: expected one of ker"
    ):
        KerasModel.read().load_locally(str(place))


def test_metadata_that_is_damaged_is_refused_by_the_stage(tmp_path):
    place = stage_at(tmp_path / "stage", "keras")
    with pytest.raises(tfos.SpecError, match=rf"{place} holds no model that can be read \(FileNotFoundError"):
        KerasModel.read().load_locally(str(place))


@pytest.mark.parametrize(
    ("value", "allowed"), [("true", True), ("TRUE", True), ("", True), ("false", False), ("no", False), ("0", False)]
)
def test_only_true_allows_code(monkeypatch, value, allowed):
    monkeypatch.setenv("TFOS_LOAD_CODE", value)
    if allowed:
        assert not check_code("/stage", ["Scale"])
        return
    assert check_code("/stage", [])
    with pytest.raises(tfos.SpecError, match=rf"/stage holds code \(Scale\), and TFOS_LOAD_CODE={value} forbids"):
        check_code("/stage", ["Scale"])


def test_params_and_an_environment_for_nodes_are_code(tmp_path, refused):
    """The environment can name what Python imports."""
    params = {"env": {"PYTHONPATH": "/there"}, "clusterOptions": {"tls": True}}
    place = stage_at(tmp_path / "stage", "keras", stage=KerasEstimator, **params)
    (place / "objects").mkdir()
    (place / "objects/objects.pkl").write_bytes(b"is not read")
    with pytest.raises(tfos.SpecError, match=r"holds code \(objects/objects.pkl, env\)"):
        KerasEstimator.read().load_locally(str(place))


def test_params_that_connect_or_remove_files_are_refused_as_code_is(tmp_path, monkeypatch):
    params = {"checkpointDir": "/mine", "clusterOptions": {"tls": True}, "cacheDir": "", "epochs": 2}
    place = str(stage_at(tmp_path / "stage", "keras", stage=KerasEstimator, **params))
    assert KerasEstimator.read().load_locally(place).getCheckpointDir() == "/mine"
    monkeypatch.setenv("TFOS_LOAD_CODE", "false")
    with pytest.raises(
        tfos.SpecError, match="stage sets checkpointDir, clusterOptions, by.*TFOS_LOAD_CODE=false.*set "
    ):
        KerasEstimator.read().load_locally(place)
    plain = str(stage_at(tmp_path / "plain", "keras", stage=KerasEstimator, epochs=2))
    assert KerasEstimator.read().load_locally(plain).getEpochs() == 2


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A stage of Keras 3 without code."""
    place = stage_at(tmp_path_factory.mktemp("plain") / "stage", "keras")
    (place / "model").mkdir()
    model_of().save(place / "model/model.keras")
    return place


def test_a_plain_model_of_keras_3_is_used_where_code_is_refused(plain, refused):
    stage = KerasModel.read().load_locally(str(plain))
    assert stage.custom_code == []
    assert stage.keras().count_params() == 2
    assert fetch_keras_model(str(plain / "model/model.keras"), "keras").code_names == []


VERSIONS = {
    **dict.fromkeys(["3.10.0", "3.12.3", "3.13.2", "3.14.1", "3.15.0"], False),
    **dict.fromkeys(["3.12.4", "3.15.1", "3.16.0", "4.0"], True),
}


@pytest.mark.parametrize(("version", "allowed"), VERSIONS.items())
def test_where_code_is_refused_keras_has_no_known_way_around_that(plain, refused, version, allowed, monkeypatch):
    """Also in another process, which has got the model from one where code is refused."""
    import keras

    stage = KerasModel.read().load_locally(str(plain))
    received = pickle.loads(pickle.dumps(stage._bundle))
    monkeypatch.delenv("TFOS_LOAD_CODE")
    monkeypatch.setattr(keras, "__version__", version)
    if allowed:
        load_model(received)
        return
    for use in (lambda: load_model(received), stage.keras, lambda: load_call(stage._bundle)):
        with pytest.raises(tfos.SpecError, match=rf"Keras {version} has known faults.*install .keras>=3.15.1"):
            use()


def test_what_is_installed_is_such_a_keras():
    """By the extra ``local``, which ends with the newest minor version that was tested."""
    project = (Path(__file__).parents[3] / "pyproject.toml").read_text()
    wanted = SpecifierSet(re.search(r'local = \[\n  "keras([^"]*)"', project)[1])
    assert {version: wanted.contains(version) for version in VERSIONS} == {**VERSIONS, "4.0": False}
