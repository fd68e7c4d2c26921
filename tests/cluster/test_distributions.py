"""What `make dist` makes: equal bytes from equal commits, an installation without a network, and a list of packages."""

import hashlib
import json
import os
import subprocess
import sys

import pytest

import tensorflowonspark
from tests.support.paths import ROOT
from tools import dist

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
_WITHOUT_NETWORK = ["unshare", "--net"] if os.geteuid() == 0 else []  # which only root may ask for


def _run(*command):
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=300
    )
    assert not done.returncode, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def clones(tmp_path_factory):
    """Return two clones of the last commit, whose files have other times and other permissions."""
    made = []
    for name, mask in (("one", 0o022), ("two", 0o077)):
        folder = tmp_path_factory.mktemp(name) / name
        before = os.umask(mask)
        try:
            _run("git", "clone", "--quiet", "--depth", "1", f"file://{ROOT}", str(folder))
        finally:
            os.umask(before)
        for each in dist.tracked_files(folder):
            os.utime(folder / each, (len(made) * 1000, len(made) * 1000))
        made.append(folder)
    return made


@pytest.fixture(scope="module")
def built(clones):
    """Return the wheel and the source distribution of each clone."""
    return [dist.build(clone / "dist", clone) for clone in clones]


def test_equal_commits_give_equal_bytes(built):
    checksums = [[hashlib.sha256(each.read_bytes()).hexdigest() for each in of_clone] for of_clone in built]
    assert checksums[0] == checksums[1]


def test_a_wheelhouse_is_installed_without_a_network(built, tmp_path):
    wheel, _ = built[0]
    houses, environment = tmp_path / "wheelhouse", tmp_path / "environment"
    _run(sys.executable, "-m", "pip", "wheel", "--quiet", "--wheel-dir", str(houses), str(wheel))
    _run(sys.executable, "-m", "venv", "--without-pip", str(environment))
    pip = [sys.executable, "-m", "pip", "--python", str(environment / "bin/python"), "--isolated"]
    install = ["install", "--quiet", "--no-index", "--no-cache-dir", "--find-links", str(houses), "tensorflowonspark"]
    _run(*_WITHOUT_NETWORK, *pip, *install)
    _run(*pip, "check")
    assert _run(str(environment / "bin/tfos"), "--version") == f"tensorflowonspark {tensorflowonspark.__version__}\n"


def test_the_list_of_packages_has_what_the_extras_install(built, clones):
    wheel, _ = built[0]
    listed = json.loads(dist.list_packages(wheel, clones[0]).read_text())
    assert listed["bomFormat"] == "CycloneDX"
    assert listed["metadata"]["component"]["version"] == tensorflowonspark.__version__
    versions = {each["name"]: each["version"] for each in listed["components"]}
    for name in ("pyarrow", "pyspark", "tensorflow", "keras", "hdfs-native", "cryptography", "optuna", "deltalake"):
        assert versions[name][0].isdigit(), name
    assert not {"pytest", "ruff", "twine"} & set(versions)
