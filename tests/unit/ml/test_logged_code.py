"""The code that is logged with a model applies it where this package is not, and has what the model needs."""

import pickle
import re
import sys
import textwrap

import cloudpickle
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.ml.linalg import VectorUDT

import tensorflowonspark as tfos
import tensorflowonspark.ml.mlflow as flavor
from tensorflowonspark.columns import arrow_type
from tensorflowonspark.keras.structure import TensorInfo
from tensorflowonspark.ml.features import TakenColumns
from tensorflowonspark.ml.logged_code import own_code, users_code
from tensorflowonspark.ml.outputs import Columns, Meaning, OutputInfo
from tensorflowonspark.ml.registration import Registration
from tensorflowonspark.ml.served import FILE, Served
from tests.support.commands import run_python

pytestmark = pytest.mark.timeout(120)

# Only what a served model's requirements install can be imported.
APART = """
import sys
from importlib import import_module

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("tensorflowonspark", "pyspark", "py4j", "google_crc32c", "psutil", "fsspec"):
            raise ModuleNotFoundError(f"no module {name} here")

sys.meta_path.insert(0, Absent())
sys.path.insert(0, sys.argv[1])
"""


def served(columns, shapes=(), code=b"", **changes):
    """Return what is logged of a function of columns, whose result is the probability of one of two classes."""
    output = OutputInfo(TensorInfo("y", (1,), "float32"), Meaning.BINARY)
    results = pa.schema([("probability", pa.list_(pa.float64())), ("prediction", pa.float64())])
    given = {
        "kind": "function",
        "inputs": (),
        "signature": "",
        "tags": (),
        "layers": (),
        "code": code,
        "taken": TakenColumns(tuple(columns), {"shapes": dict(shapes), "dtypes": {}, "fill": {}}),
        "schema": pa.schema(columns),
        "zone": "UTC",
        "outputs": (((output,), Columns(raw="")),),
        "results": results,
        "batch_rows": None,
    }
    return Served(**{**given, **changes})


def write(directory, files):
    for name, text in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(textwrap.dedent(text))
    return directory


@pytest.mark.slow
def test_the_logged_source_applies_a_model_without_this_package(tmp_path):
    def share(columns):
        import numpy as np

        return np.array([[each.sum() / 10] for each in columns["x"]], np.float32)

    module, files = own_code()
    code = write(tmp_path / "code", files)
    model = served({"x": pa.list_(pa.float32()), "day": pa.date32()}, {"x": (None,)}, cloudpickle.dumps(share))
    (tmp_path / "stage").mkdir()
    (tmp_path / "stage" / FILE).write_bytes(pickle.dumps(model))
    program = f"""{APART}
import pandas as pd

model = import_module(sys.argv[2])._load_pyfunc(sys.argv[3])
print(model.predict(pd.DataFrame({{"x": [[1.0], [2.0, 5.0]], "day": ["2024-02-03"] * 2}})).to_dict("list"))
print(len(model.predict(pd.DataFrame({{"x": [], "day": []}}))))
for wrong in ({{"x": [None], "day": ["2024-02-03"]}}, {{"x": [[1.0]]}}):
    try:
        model.predict(pd.DataFrame(wrong))
    except Exception as error:
        print(type(error).__name__, str(error)[:44])
"""
    found = run_python(program, code, module, tmp_path / "stage").splitlines()
    assert pickle.loads(pickle.dumps(model)).results == model.results
    numbers = np.array(eval(found[0], {})["probability"])
    np.testing.assert_allclose(numbers, [[0.9, 0.1], [0.3, 0.7]], rtol=1e-6)
    assert eval(found[0], {})["prediction"] == [0.0, 1.0]
    assert found[1:] == [
        "0",
        "MlflowException column 'x' holds 1 null, the first in row 0 ",
        "MlflowException the data has no column 'day'; it has ['x']",
    ]


def test_the_logged_source_has_the_name_of_its_content():
    module, files = own_code()
    name = module.partition(".")[0]
    assert re.fullmatch("tfos_[0-9a-f]{12}", name)
    assert module == f"{name}.ml.served"
    assert {each.partition("/")[0] for each in files} == {name}
    assert not any(re.search(r"^\s*(from|import) tensorflowonspark", text, re.MULTILINE) for text in files.values())
    assert not any("/driver/" in each or "/task/" in each for each in files)


PACKAGE = {
    "mine56/__init__.py": "",
    "mine56/parts/__init__.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import pyspark",
    "mine56/parts/layers.py": "import yaml\nfrom ..numbers import TWO\n\ndef twice(x):\n    return TWO * x\n\n"
    "def never():\n    import keras_tuner",
    "mine56/numbers.py": "from . import other\nTWO = 2",
    "mine56/other.py": "",
    "mine56/never.py": "raise RuntimeError",
    "uses56.py": "import pyspark\n\ndef twice(x):\n    return 2 * x\n\ndef spark(x):\n    return pyspark.sql.Row(x)",
}


@pytest.fixture
def package(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(write(tmp_path / "user", PACKAGE))
    yield
    for name in [name for name in sys.modules if name.startswith(("mine56", "uses56"))]:
        del sys.modules[name]


def test_the_users_modules_are_logged_with_those_that_they_import(package, tmp_path):
    from mine56.parts.layers import twice

    data, files, others = users_code({"twice": twice})
    expected = {name for name in PACKAGE if name.startswith("mine56") and "never" not in name}
    assert set(files) == expected
    assert {"yaml", "keras_tuner"} <= others  # of which one is not imported yet
    assert not {"pyspark", "typing"} & others
    code = write(tmp_path / "code", files)
    (tmp_path / "code.pkl").write_bytes(data)
    program = f"{APART}\nimport pickle\nprint(pickle.load(open(sys.argv[2], 'rb'))['twice'](4))"
    assert run_python(program, code, tmp_path / "code.pkl") == "8\n"


def test_of_a_module_that_needs_spark_the_code_is_logged_that_the_model_uses(package, tmp_path):
    import uses56

    data, files, _ = users_code({"twice": uses56.twice})
    assert not files
    (tmp_path / "code.pkl").write_bytes(data)
    program = f"{APART}\nimport pickle\nprint(pickle.load(open(sys.argv[2], 'rb'))['twice'](4))"
    assert run_python(program, tmp_path, tmp_path / "code.pkl") == "8\n"
    with pytest.raises(tfos.SpecError, match=r"code of the model \(spark\) uses pyspark, and a logged model is served"):
        users_code({"spark": uses56.spark})


def test_a_module_without_source_is_refused_by_name(package, monkeypatch, tmp_path):
    import mine56.other

    (tmp_path / "user/mine56/other.py").unlink()
    monkeypatch.setattr(mine56.other.__spec__, "loader", None)
    monkeypatch.setattr(mine56.other.__spec__, "origin", "other.so")
    mine56.other.scale = eval("lambda x: x", vars(mine56.other))
    mine56.other.scale.__qualname__ = mine56.other.scale.__name__ = "scale"
    with pytest.raises(tfos.SpecError, match=r"module mine56.other, which the model needs, has no source .*other.so"):
        users_code({"scale": mine56.other.scale})


@pytest.mark.parametrize(
    ("kind", "shape", "value"),
    [
        (pa.float32(), None, np.float32(0)),
        (pa.int8(), None, np.int8(0)),
        (pa.string(), None, ""),
        (pa.bool_(), None, np.False_),
        (pa.date32(), None, pd.Timestamp(0)),
        (pa.list_(pa.float32()), (2, 2), [0.0] * 4),
        (pa.list_(pa.list_(pa.int32())), (2, 1), [[0], [0]]),
        (pa.list_(pa.string()), (None,), [""]),
        (pa.binary(), None, b""),
        (arrow_type(VectorUDT()), (3,), [0.0] * 3),
        (pa.binary(), (4,), None),
        (pa.duration("us"), None, None),
        (pa.list_(pa.float32()), (10_001,), None),
    ],
)
def test_the_example_has_a_zero_of_each_type(kind, shape, value):
    found = flavor._example(served({"x": kind}, {} if shape is None else {"x": shape}))
    if value is None:
        assert found is None
        return
    (given,) = found["x"]
    assert (given.tolist() if isinstance(given, np.ndarray) else given) == value


@pytest.mark.deep
@pytest.mark.parametrize(
    ("registry", "name", "aliases", "problem"),
    [
        ("http://localhost", "", (), "name '': expected a text"),
        ("http://localhost", "a/b", (), "name 'a/b': expected a text without '/' and ':'"),
        ("http://localhost", "a:1", (), "name 'a:1': expected"),
        ("databricks-uc", "digits", (), "name 'digits': in Unity Catalog.*catalog.schema.model"),
        ("databricks-uc://profile", "ml.digits", (), "Unity Catalog"),
        ("uc:http://localhost", "main..digits", (), "Unity Catalog"),
        ("http://localhost", "digits", ("latest",), "alias 'latest'"),
        ("http://localhost", "digits", ("V2",), "alias 'V2'"),
        ("http://localhost", "digits", ("the best",), "alias 'the best': expected letters"),
        ("http://localhost", None, ("best",), "aliases .'best'. are of a registered model"),
        ("http://localhost", "digits", ("v2-best", "x"), None),
        ("databricks-uc", "main.ml.digits", (), None),
        ("databricks-uc", None, (), None),
    ],
)
def test_names_of_a_registry_are_checked_before_anything_starts(monkeypatch, registry, name, aliases, problem):
    import mlflow

    monkeypatch.setattr(mlflow, "get_registry_uri", lambda: registry)
    if problem is None:
        assert Registration.of(name, None, aliases).name == (name or "")
        return
    with pytest.raises(tfos.SpecError, match=problem):
        Registration.of(name, None, aliases)
