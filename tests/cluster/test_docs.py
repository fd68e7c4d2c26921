"""The pages for users: all their code runs, in order, each page as one program."""

import os
import re
import subprocess
import sys
import textwrap

import pytest

from tests.support.paths import DOCS, ROOT

# What the pages leave out that show parts of programs: data, and the model that each part is about.
_BEFORE = """
import sys
from pyspark.sql import SparkSession
import tensorflowonspark as tfos

spark = SparkSession.builder.master("local[2]").getOrCreate()
tfos.register_tfrecord(spark)
digits = spark.createDataFrame([([float(n % 7)] * 64, n % 10) for n in range(96)], "image array<float>, digit long")
df, test = digits, digits
df.write.format("tfrecord").mode("append").save("hdfs://nn/digits")
parts = []
"""
_MODEL = """
    import keras
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(10, "softmax")])
    model.compile("adam", "sparse_categorical_crossentropy")
"""
_AFTER = """
def all_parts(_, ctx):
    for part in parts:
        part({}, ctx)

tfos.run(spark, all_parts, num_workers=1, data=digits.repartition(1))
"""


def _blocks(page):
    return re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


def _part(block):
    """Return a block that shows a part of a node's function as such a function, and any other as it is."""
    if re.search(r"^\w+ = ctx\.", block, re.MULTILINE):
        block = "def program(args, ctx):\n" + textwrap.indent(block, "    ")
    if "def program(" in block:
        block = (
            block.replace("def program(args, ctx):\n", f"def program(args, ctx):{_MODEL}") + "\nparts.append(program)\n"
        )
    return block


@pytest.mark.slow
@pytest.mark.timeout(480)
def test_the_code_of_pages_that_show_parts_of_programs(tmp_path):
    """They share one session; the parts of nodes share one cluster."""
    pages = [
        ROOT / "README.md",
        *(DOCS / f"{name}.md" for name in ("training", "scripts", "security", "storage", "network")),
    ]
    blocks = [_part(block) for page in pages for block in _blocks(page)]
    assert len(blocks) >= 9
    last = [block for block in blocks if "storage.use(" in block]  # it is about another store
    text = "\n".join([_BEFORE, *(block for block in blocks if block not in last), _AFTER])
    for shown, here in [
        ("examples/mnist/script.py", f"{ROOT}/examples/mnist/script.py"),
        ("hdfs://nn", f"file://{tmp_path}"),
        ("hdfs://name:8020", f"file://{tmp_path}"),
        ("s3a://bucket/digits", f"file://{tmp_path}/copy"),
        ('"/models/', f'"{tmp_path}/models/'),
    ]:
        text = text.replace(shown, here)
    program = tmp_path / "program.py"
    program.write_text("\n".join([text, *last]))
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [sys.executable, program], check=False, cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert not done.returncode, done.stderr
    assert "is the old name" not in done.stderr
    assert (tmp_path / "models/digits-stage/model/model.keras").exists()
    assert (tmp_path / "models/checkpoints").is_dir()
    assert list((tmp_path / "logs/run-1").iterdir())


@pytest.mark.slow
@pytest.mark.timeout(480)
@pytest.mark.parametrize(
    "page",
    [
        "checkpoints.md",
        "dashboard.md",
        "dataframe.md",
        "each.md",
        "embeddings.md",
        "failures.md",
        "first-half-hour.md",
        "from-others.md",
        "jax.md",
        "keras-model.md",
        "local-sgd.md",
        "logs.md",
        "manifest.md",
        "metrics.md",
        "migrating.md",
        "migrating-reference.md",
        "mlflow.md",
        "model-parallel.md",
        "recipes.md",
        "serving.md",
        "spark-ml.md",
        "tfrecord.md",
        "tune.md",
    ],
)
def test_the_code_of(page, tmp_path):
    blocks = _blocks(DOCS / page)
    assert len(blocks) > 2
    program = tmp_path / "program.py"
    program.write_text("\n".join(blocks))
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [sys.executable, program], check=False, cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert not done.returncode, done.stderr
    assert "is the old name" not in done.stderr
