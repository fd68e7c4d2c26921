"""A training on an HDFS with Kerberos, which its nodes reach with a delegation token, as in YARN's containers."""

import os

import numpy as np
import pytest

from tensorflowonspark import storage
from tensorflowonspark.node.checkpoint.store import CheckpointStore
from tests.support.commands import options_of, output_of, start_tfos
from tests.support.paths import SUPPORT


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_records_checkpoints_and_a_model_in_an_hdfs_with_kerberos(secure_hdfs, tmp_path):
    from tests.support.tfrecord_examples import example, floats, write

    directory = f"{secure_hdfs.url}/user/ann"
    points = np.random.default_rng(1).uniform(-1, 1, (1000, 2))
    examples = [example(features=floats(*point), label=floats(point[0] > point[1])) for point in points]
    storage.publish(f"{directory}/points.tfrecord", lambda path: write(path, *examples) and None)

    environment = {name: value for name, value in os.environ.items() if not name.startswith("KRB5")}
    environment |= {"HADOOP_TOKEN_FILE_LOCATION": secure_hdfs.token, "SPARK_USER": "ann"}  # as YARN and Spark set them
    environment["JAVA_TOOL_OPTIONS"] = f"-Djava.security.krb5.conf={secure_hdfs.krb5_conf}"
    settings = options_of({f"spark.hadoop.{key}": value for key, value in secure_hdfs.settings.items()})
    script = [SUPPORT / "hdfs_script.py", directory]
    process = start_tfos("run", *settings, "--data", f"{directory}/points.tfrecord", *script, env=environment)
    output = output_of(process, 150)
    assert process.returncode == 0, output
    assert "epoch 5 accuracy 0.9" in output
    assert CheckpointStore(f"{directory}/checkpoints", keep=1).latest().epoch == 5
    assert storage.fetch(f"{directory}/model", str(tmp_path / "model"))
    files, within = storage.file_system(f"{directory}/model")
    assert files.info(within)["owner"] == "ann"
