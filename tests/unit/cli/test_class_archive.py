"""The archive of Spark's classes: which one it is, who uses it, and what happens where it can't be had."""

import os

import pytest

from tensorflowonspark.cli import class_archive


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("SPARK_SUBMIT_OPTS")
    return tmp_path / "tensorflowonspark" / "classes"


@pytest.fixture
def started(monkeypatch):
    """Return the commands that are started in place of being run."""
    commands = []
    monkeypatch.setattr(class_archive.subprocess, "Popen", lambda command, **_: commands.append(command))
    return commands


def test_another_java_has_another_archive(cache, tmp_path, monkeypatch):
    known = class_archive.archive_path()
    assert known.parent == cache
    assert known == class_archive.archive_path()
    java = tmp_path / "other" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(java.parents[1]))
    assert class_archive.archive_path() not in (None, known)
    java.unlink()
    assert class_archive.archive_path() is None


@pytest.mark.parametrize("options", ["-XX:SharedArchiveFile=/tmp/own.jsa", "-Xmx1g -Xshare:off"])
def test_options_of_the_user_s_own_are_left_alone(monkeypatch, options):
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", options)
    assert class_archive.archive_path() is None


@pytest.mark.parametrize("own", [None, "-Xmx1g"])
def test_a_driver_maps_its_classes_from_an_archive_that_exists(cache, monkeypatch, own):
    if own:
        monkeypatch.setenv("SPARK_SUBMIT_OPTS", own)
    archive = class_archive.archive_path()
    with class_archive.mapped(archive):
        assert os.environ.get("SPARK_SUBMIT_OPTS") == own
    cache.mkdir(parents=True, exist_ok=True)
    cut_off, file = (archive.with_name(f"{archive.name}-{size}.jsa") for size in (5, 6))
    for each in (cut_off, file):
        each.write_text("classe")
    os.utime(file, (0, 0))
    with class_archive.mapped(archive):
        assert f"-XX:SharedArchiveFile={file}" in os.environ["SPARK_SUBMIT_OPTS"]
        assert os.environ["SPARK_SUBMIT_OPTS"].endswith(own or "stderr")
    assert os.environ.get("SPARK_SUBMIT_OPTS") == own
    assert file.stat().st_mtime > 0  # it is not removed as unused


def test_an_archive_is_written_once_and_not_where_java_could_not(cache, started):
    class_archive.write_later(None)
    archive = class_archive.archive_path()
    class_archive.write_later(archive)
    assert [each[-1] for each in started] == [str(archive)]
    failed = archive.with_suffix(".failed")
    for there in (archive.with_name(f"{archive.name}-0.jsa"), failed):
        there.write_text("")
        class_archive.write_later(archive)
        there.unlink()
    assert len(started) == 1


def test_a_directory_that_can_t_be_written_is_named(cache, started, capsys):
    cache.parent.mkdir(parents=True)
    cache.write_text("a file")
    class_archive.write_later(class_archive.archive_path())
    assert not started
    assert str(cache) in capsys.readouterr().err


@pytest.mark.parametrize("planted", ["a directory of others", "a link", "a link to a file"])
def test_an_archive_that_others_could_have_written_is_not_mapped(cache, tmp_path, capsys, planted):
    archive = class_archive.archive_path()
    file = archive.with_name(f"{archive.name}-6.jsa")
    file.write_text("classe")
    if planted == "a directory of others":
        cache.chmod(0o777)
    elif planted == "a link":
        cache.rename(tmp_path / "elsewhere")
        cache.symlink_to(tmp_path / "elsewhere")
    else:
        file.rename(tmp_path / "file")
        file.symlink_to(tmp_path / "file")
    with class_archive.mapped(class_archive.archive_path()):
        assert "SPARK_SUBMIT_OPTS" not in os.environ
    assert (str(cache) in capsys.readouterr().err) == (planted != "a link to a file")


def test_java_that_can_t_write_one_leaves_its_reason(cache, tmp_path, monkeypatch):
    spark = tmp_path / "spark-submit"
    spark.write_text("#!/bin/sh\necho Unrecognized VM option\nexit 1\n")
    spark.chmod(0o755)
    monkeypatch.setattr(class_archive, "program_of_spark", lambda _: str(spark))
    archive = class_archive.archive_path()
    cache.mkdir(parents=True, exist_ok=True)
    unused = cache / "old.jsa"
    unused.write_text("")
    os.utime(unused, (0, 0))
    class_archive.write(archive, 60)
    assert archive.with_suffix(".failed").read_text() == "Unrecognized VM option\n"
    assert sorted(each.name for each in cache.iterdir()) == [archive.with_suffix(".failed").name, "lock"]


def test_a_busy_machine_leaves_nothing_behind(cache, tmp_path, monkeypatch):
    spark = tmp_path / "spark-submit"
    spark.write_text("#!/bin/sh\nsleep 100\n")
    spark.chmod(0o755)
    monkeypatch.setattr(class_archive, "program_of_spark", lambda _: str(spark))
    cache.mkdir(parents=True, exist_ok=True)
    class_archive.write(class_archive.archive_path(), 0.5)
    assert [each.name for each in cache.iterdir()] == ["lock"]
