"""Scripts, checked and read before anything starts."""

import os
from modulefinder import ModuleFinder

import pytest

from tensorflowonspark.driver.script import read_script
from tensorflowonspark.errors import SpecError
from tests.support.commands import run_python


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A working directory with a script, modules and a package."""
    files = {
        "train.py": "import settings, numpy\nfrom parts import model\n",
        "settings.py": "import json",
        "unused.py": "import settings",
        "data.csv": "1,2",
        "parts/__init__.py": "",
        "parts/__main__.py": "from . import model",
        "parts/model.py": "from . import layers",
        "parts/layers.py": "",
        "parts/other.py": "",
        "parts/data.csv": "3",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_file_brings_what_it_imports_of_its_directory(project):
    script = read_script("train.py", ["--lr", "0.1"])
    assert (script.name, script.arguments, script.root) == ("train.py", ("--lr", "0.1"), str(project))
    assert sorted(script.files) == [
        "parts/__init__.py",
        "parts/layers.py",
        "parts/model.py",
        "settings.py",
        "train.py",
    ]


@pytest.mark.parametrize("name", ["parts", "parts.model"])
def test_a_module_of_the_working_directory(project, name):
    script = read_script(name, module=True)
    expected = {"parts/__init__.py", "parts/layers.py", "parts/model.py"}
    assert set(script.files) == expected | ({"parts/__main__.py"} if name == "parts" else set())
    assert script.is_module


def test_an_installed_module_needs_no_files(project):
    assert read_script("json.tool", module=True).files == {}


def test_directories_without_an_init_are_packages_too(project):
    (project / "tools/deep").mkdir(parents=True)
    (project / "tools/deep/shapes.py").write_text("")
    (project / "tools/old.py").write_text("print 'of Python 2'")
    (project / "numpy").mkdir()  # a folder of logs with the name of a library
    (project / "train.py").write_text(
        "import numpy, tools.deep.shapes\ntry:\n    from tools import old\nexcept: pass\n"
    )
    assert sorted(read_script("train.py").files) == ["tools/deep/shapes.py", "tools/old.py", "train.py"]
    assert set(read_script("tools.deep.shapes", module=True).files) == {"tools/deep/shapes.py"}


def test_what_is_no_regular_file_of_a_working_directory_is_left_out(project):
    (project / "dangling").symlink_to("nowhere")
    (project / "loop").symlink_to(project)
    os.mkfifo(project / "pipe")
    (project / "run.sh").write_text("")
    (project / "run.sh").chmod(0o755)
    script = read_script("train.py", working_dir=project)
    assert not {"dangling", "pipe", "loop/train.py"} & set(script.files)
    assert script.executables == {"run.sh"}


def test_a_linked_script_has_the_modules_beside_the_file_itself(project):
    (project / "bin").mkdir()
    (project / "bin/train").symlink_to(project / "train.py")
    script = read_script("bin/train")
    assert (script.root, script.name) == (str(project), "train.py")
    assert "settings.py" in script.files


def test_a_working_directory_comes_whole(project):
    (project / "__pycache__").mkdir()
    (project / "__pycache__/train.pyc").write_text("")
    script = read_script(project / "train.py", working_dir=".", files=[__file__])
    assert {"data.csv", "unused.py", "parts/other.py"} <= set(script.files)
    assert set(script.extras) == {"test_script.py"}
    assert "__pycache__/train.pyc" not in script.files
    assert script.directory == ""


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("trian.py",), {}, r"there is no script trian.py; in that directory there are settings.py, train.py"),
        (("parts",), {}, r"parts is a directory: name a script in it"),
        (("train.py", "--lr 0.1"), {}, r"the script's arguments are '--lr 0.1': expected a list"),
        (("train.py", ["--lr", 0.1]), {}, r"0.1 is no string"),
        (("nothing.here",), {"module": True}, r"there is no module nothing.here, neither in .* nor among the inst"),
        (("train.py",), {"working_dir": "missing"}, r"working_dir='missing': there is no such directory"),
        (("train.py",), {"working_dir": "parts"}, r"train.py is not in working_dir='.*parts'"),
        (("train.py",), {"files": ["data.csv", "parts/data.csv"]}, r"files: .*would both be data.csv.*rename one"),
        (("train.py",), {"files": ["missing.csv"]}, r"there is no file missing.csv; in that directory there are data"),
    ],
)
def test_what_is_not_there_is_refused(project, arguments, options, message):
    with pytest.raises(SpecError, match=message):
        read_script(*arguments, **options)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (b"import numpy\nx = (\n", r"train.py, line 2: SyntaxError: '\(' was never closed"),
        (b"x = '\xff'", "train.py.*is no Python program|train.py.*SyntaxError"),
        (b"\0\0", "train.py.*(null bytes|is no Python)"),
    ],
)
def test_what_is_no_python_is_refused(project, source, message):
    (project / "train.py").write_bytes(source)
    with pytest.raises(SpecError, match=message):
        read_script("train.py")


def test_a_package_that_is_no_python_is_refused(project):
    (project / "parts/__init__.py").write_text("x = (")
    with pytest.raises(SpecError, match=r"parts/__init__.py, line 1: SyntaxError"):
        read_script("parts.model", module=True)


def test_a_module_is_one_of_the_working_directory(project, tmp_path_factory, monkeypatch):
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert "parts/model.py" in read_script("parts.model", module=True, working_dir=project).files
    with pytest.raises(SpecError, match=r"there is no module parts.model, neither in .*elsewhere"):
        read_script("parts.model", module=True)


def test_a_file_with_the_name_of_a_directory_is_refused(project, tmp_path_factory):
    other = tmp_path_factory.mktemp("other") / "parts"
    other.write_text("")
    with pytest.raises(SpecError, match="would both be parts"):
        read_script("train.py", working_dir=project, files=[other])


def test_a_module_that_can_not_be_read_is_left_to_the_program(project, monkeypatch):
    find = ModuleFinder.find_module

    def refuse(self, name, *rest):
        if name == "settings":
            raise PermissionError(13, "Permission denied")
        return find(self, name, *rest)

    monkeypatch.setattr(ModuleFinder, "find_module", refuse)
    assert "settings.py" not in read_script("train.py").files


def test_a_chain_of_imports_that_is_too_long_to_follow_is_refused(project):
    for number in range(400):
        (project / f"m{number}.py").write_text(f"import m{number + 1}")
    (project / "train.py").write_text("try:\n    import m0\nexcept ImportError:\n    pass\n")
    with pytest.raises(SpecError, match="nested too deeply to follow: ship the whole directory"):
        read_script("train.py")


def test_warnings_of_the_compiler_are_left_to_the_nodes(project, recwarn):
    (project / "train.py").write_text("import settings\nassert (1 is 1)")
    (project / "settings.py").write_text("assert (1 is 1)")
    read_script("train.py")
    assert not recwarn.list


def test_too_much_is_refused_before_it_is_read(project):
    with (project / "weights.bin").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(SpecError, match=r"1048576 MiB, more than 64 \(the largest is .*weights.bin\)"):
        read_script("train.py", working_dir=project)


@pytest.mark.deep
def test_neither_the_script_nor_tensorflow_is_imported(project):
    (project / "train.py").write_text("raise SystemExit(9)")
    program = (
        "import sys; from tensorflowonspark.driver.script import read_script; read_script('train.py');"
        "sys.exit('tensorflow' in sys.modules)"
    )
    run_python(program)
