"""An archive of Spark's classes, which ``tfos run`` has written after its first run."""

import fcntl
import os
import subprocess
import sys

import pytest

from tensorflowonspark.cli import class_archive

TFOS = [sys.executable, "-c", "import sys; from tensorflowonspark.cli import main; sys.exit(main())"]
MAPPED = "source: shared objects file (top)"  # of a class, in Java's own words


def run(tmp_path, *options):
    """Run a script; return what the driver's Java was started with."""
    script = tmp_path / "script.py"
    script.write_text("print('done')")
    settings = {"XDG_CACHE_HOME": str(tmp_path), "SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1 -verbose:class"}
    command = [*TFOS, "run", "--master", "local[1]", *options, str(script)]
    done = subprocess.run(command, env=os.environ | settings, capture_output=True, check=False, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_second_run_maps_its_classes(tmp_path, monkeypatch):
    """The process that the first run starts gives up after a minute: beside other tests it may not come to write."""
    first, folder = tmp_path / "first", tmp_path / "tensorflowonspark" / "classes"
    first.mkdir()
    assert MAPPED not in run(first)
    lock = first / "tensorflowonspark" / "classes" / "lock"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("SPARK_SUBMIT_OPTS")
    folder.mkdir(parents=True)
    class_archive.write(class_archive.archive_path(), 200)
    (archive,) = folder.glob("*.jsa")
    assert MAPPED in run(tmp_path)
    assert MAPPED not in run(tmp_path, "--no-archive")
    archive.chmod(0o644)
    os.truncate(archive, 1000)
    assert MAPPED not in run(tmp_path)  # and Java lives
    for each in (lock, folder / "lock"):  # the processes that write one end by themselves
        with each.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX)
