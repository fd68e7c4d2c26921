"""A virtual environment that ``tfos run`` ships to YARN."""

import os
from pathlib import Path

import pyspark
import pytest

from tensorflowonspark import storage
from tests.support.commands import options_of, output_of, start_tfos
from tests.support.environments import make_venv
from tests.support.paths import ROOT

# The small environment lacks what drivers and nodes need, which is 1.5 GB.
PYTHONPATH = f"{Path(pyspark.__file__).parents[1]}:{ROOT / 'src'}"
SETTINGS = {
    "spark.executor.instances": "2",
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.yarn.jars": f"local:{Path(pyspark.__file__).parent}/jars/*",
    "spark.executorEnv.TFOS_TEST_RUN": os.environ["TFOS_TEST_RUN"],
    "spark.executorEnv.PYTHONPATH": PYTHONPATH,
    "spark.ui.enabled": "false",
}
OF_MODES = {
    "client": {"spark.yarn.am.memory": "512m", "spark.driver.host": "127.0.0.1"},
    "cluster": {
        "spark.driver.memory": "512m",
        "spark.yarn.appMasterEnv.TFOS_TEST_RUN": os.environ["TFOS_TEST_RUN"],
        "spark.yarn.appMasterEnv.PYTHONPATH": PYTHONPATH,
    },
}


def tfos_run(conf_dir, folder, mode):
    """Run a script that needs the environment on two workers; return the output of ``tfos run``."""
    settings = {**SETTINGS, **OF_MODES[mode]}
    environment = {name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"}
    environment |= {"HADOOP_CONF_DIR": conf_dir, "HADOOP_USER_NAME": "eve"}
    given = ["--python-env", "venv", "--deploy-mode", mode, "--workers", "2", "--show", "all", *options_of(settings)]
    process = start_tfos("run", "--master", "yarn", *given, "train.py", env=environment, cwd=folder)
    output = output_of(process, 140)
    assert process.returncode == 0, output
    return output


@pytest.mark.slow
@pytest.mark.timeout(300)  # two applications, and perhaps the start of YARN
def test_an_environment_is_shipped_once(mini_cluster, hadoop_free, tmp_path):
    conf_dir = mini_cluster.yarn()
    files, _ = storage.file_system(mini_cluster.url)
    files.makedirs("/user/eve", exist_ok=True)
    files.client.set_owner("/user/eve", "eve", "eve")
    make_venv(tmp_path / "venv")
    (tmp_path / "train.py").write_text(
        "import only_here\nassert '/environment/lib/' in only_here.__file__\nprint('found', only_here.VALUE)\n"
    )

    def kept():
        paths = files.ls("/user/eve/.tfos/environments", detail=False)
        return {path: files.modified(path) for path in paths}

    output = tfos_run(conf_dir, tmp_path, "client")
    assert "later runs reuse it" in output
    assert {"[worker:0] found 42", "[worker:1] found 42"} <= set(output.splitlines())
    first = kept()
    assert len(first) == 1
    assert "later runs reuse it" not in tfos_run(conf_dir, tmp_path, "cluster")
    assert kept() == first
