"""Where a script runs: in the driver's directory, if only its user can have filled it; else in a copy."""

import os

import pytest

from tensorflowonspark.driver.script import read_script

FILES = {"train.py": "import parts.model", "parts/__init__.py": "", "parts/model.py": ""}


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A script's directory that other users can't write to, below one that they can, as /tmp."""
    shared = tmp_path / "shared"
    project = shared / "project"
    (project / "parts").mkdir(parents=True)
    shared.chmod(0o1777)
    for name, text in FILES.items():
        (project / name).write_text(text)
    monkeypatch.chdir(project)
    return project


def placed(project, tmp_path, **options):
    found = read_script("train.py", **options).place(tmp_path / "copy")
    assert sorted(FILES) == sorted(
        str(each.relative_to(found)) for each in found.rglob("*.py") if each.name != "keras.py"
    )
    return found


def test_the_drivers_directory_is_used_in_place(project, tmp_path):
    assert placed(project, tmp_path) == project


@pytest.mark.parametrize(
    ("place", "change"),
    [
        (".", {"mode": 0o777}),
        (".", {"mode": 0o1777}),
        (".", {"mode": 0o775, "group": 12345}),
        ("..", {"mode": 0o777}),
        ("..", {"mode": 0o775, "group": 12345}),
        ("parts", {"mode": 0o777}),
        ("parts/model.py", {"mode": 0o666}),
        (".", {"user": 12345}),
        ("..", {"user": 12345}),
        ("train.py", {"user": 12345}),
    ],
)
def test_a_directory_that_others_can_fill_is_not(project, tmp_path, caplog, place, change):
    if os.getuid() and change.keys() & {"user", "group"}:
        pytest.skip("only root can give files to others")
    planted = project / place
    if "mode" in change:
        planted.chmod(change["mode"])
    os.chown(planted, change.get("user", -1), change.get("group", -1))
    (project / "keras.py").write_text("stolen = True")
    assert placed(project, tmp_path) == tmp_path / "copy"
    assert not (tmp_path / "copy/keras.py").exists()
    assert str(planted.resolve()) in caplog.text


@pytest.mark.parametrize("place", ["keras.py", "keras/__init__.py", "keras", "_json.cpython-311-x86_64-linux-gnu.so"])
@pytest.mark.parametrize("change", [{"mode": 0o777}, {"user": 12345}])
def test_modules_beside_the_script_are_its_users_own(project, tmp_path, caplog, place, change):
    """Which the script does not have where it was started, and would import here."""
    if os.getuid() and "user" in change:
        pytest.skip("only root can give files to others")
    script = read_script("train.py")
    planted = project / place
    planted.parent.mkdir(exist_ok=True)
    planted.touch() if "." in planted.name else planted.mkdir()
    assert script.place(tmp_path / "one") == project
    planted.chmod(change.get("mode", 0o755))
    os.chown(planted, change.get("user", -1), -1)
    assert script.place(tmp_path / "copy") == tmp_path / "copy"
    assert str(planted) in caplog.text


def test_a_group_with_one_user_is_the_users(project, tmp_path):
    project.chmod(0o775)
    os.chown(project, -1, os.getgid())
    assert placed(project, tmp_path) == project


def test_links_lead_to_what_others_can_fill(project, tmp_path, monkeypatch):
    link = tmp_path / "link"
    link.symlink_to(project)
    monkeypatch.chdir(link)
    script = read_script("train.py")
    project.chmod(0o777)
    assert script.place(tmp_path / "copy") == tmp_path / "copy"
