"""Preflight checks: versions of Python, Java and the packages, and installations of TensorFlowOnSpark 2.x."""

import json
import os
import re
import shutil
import site
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import PathFinder
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from tensorflowonspark import __version__
from tensorflowonspark.errors import RequirementError
from tensorflowonspark.keras.wheels import clashes, wheels_of

_PYTHON = (3, 10)
_REQUIREMENTS = {"pyspark": "pyspark>=3.5", "tensorflow": "tensorflow>=2.16", "pyarrow": "pyarrow>=15"}
_SPARK_ON_JAVA_17, _NUMPY_2, _PYARROW_ON_NUMPY_2 = 4, 2, 26  # major versions
_JAVA_22, _SPARK_AFTER_JAVA_22 = 22, (4, 1)  # Hadoop's client before calls Subject.getSubject, which Java 23 refuses
_SECONDS = 30  # for a process that only prints a version or its search path
_SEARCH_PATH = "import json, site, sys; print(json.dumps([sys.prefix, site.getusersitepackages(), sys.path]))"


def check_environment() -> dict[str, str]:
    """Check that this machine can run a Spark driver and nodes.

    No Spark session and no TensorFlow is started. Of the executors, only the Python that Spark would start on this
    machine is examined: ``PYSPARK_PYTHON``, or the first ``python3`` on the ``PATH``.

    Returns
    -------
    dict
        The versions found: of ``tensorflowonspark``, ``python``, ``pyspark``, ``tensorflow``, ``pyarrow`` and ``java``.

    Raises
    ------
    RequirementError
        If something is missing or too old, or if TensorFlowOnSpark 2.x is installed. The message has one line for
        each problem, with its cause and its remedy.

    Examples
    --------
    >>> sorted(check_environment())
    ['java', 'pyarrow', 'pyspark', 'python', 'tensorflow', 'tensorflowonspark']
    """
    found, problems = examine_environment()
    if problems:
        raise RequirementError("\n".join(problems))
    return found


def examine_environment() -> tuple[dict[str, str], list[str]]:
    """Return the versions that `check_environment` finds, and a line for each problem."""
    problems = list(_older_releases())
    found = {"tensorflowonspark": __version__, "python": ".".join(map(str, sys.version_info[:3]))}
    if sys.version_info[:2] < _PYTHON:
        problems.append(f"Python {found['python']} is too old: use Python 3.10 or newer")
    for module in _REQUIREMENTS:
        if version := _version(module):
            found[module] = version
        else:
            problems.append(not_importable(module))
    if clash := pyarrow_problem(found.get("pyarrow", "0"), _version("numpy")):
        problems.append(clash.replace("pip", f"{sys.executable} -m pip"))
    problems.extend(clashes())
    java, problem = _java(found.get("pyspark", "4.1"))
    found.update({"java": java} if java else {})
    problems.extend([problem] if problem else [])
    return found, problems


def not_importable(module: str) -> str:
    """Return the problem of a module that can't be imported, and what to do."""
    home = os.environ.get("SPARK_HOME") if module == "pyspark" else None
    where = f", and SPARK_HOME={home} has no python/pyspark: set it to Spark's own directory, or" if home else ":"
    return f'{module} can\'t be imported{where} {sys.executable} -m pip install "{_REQUIREMENTS.get(module, module)}"'


def add_pyspark() -> None:
    """Have this process, and those that it starts, import the pyspark below SPARK_HOME if there is no other.

    A distribution or an image of Spark has it there, where only Spark's own scripts look.
    """
    home = os.environ.get("SPARK_HOME")
    if not home or _version("pyspark"):
        return
    python = Path(home, "python").absolute()
    if not (python / "pyspark/__init__.py").exists():
        return  # which is an error where pyspark is needed
    folders = [str(python), *map(str, python.glob("lib/py4j-*-src.zip"))]
    sys.path += folders
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), *folders]))


def pyarrow_problem(pyarrow: str, numpy: str) -> str:
    """Return the problem of a pyarrow that refuses this NumPy; empty if there is none.

    Examples
    --------
    >>> pyarrow_problem("26.0.1", "1.26.4")
    'pyarrow 26.0.1 refuses NumPy 1.26.4: pip install "pyarrow<26"'
    """
    if _major(numpy) < _NUMPY_2 and _major(pyarrow) >= _PYARROW_ON_NUMPY_2:
        return f'pyarrow {pyarrow} refuses NumPy {numpy}: pip install "pyarrow<{_PYARROW_ON_NUMPY_2}"'
    return ""


def _major(version: str) -> int:
    return _release(version)[0]


def _release(version: str) -> tuple[int, int]:
    """Return the first two numbers of a version; of one that has none, those of a version newer than all."""
    match = re.match(r"(\d+)(?:\.(\d+))?", version)
    return (int(match[1]), int(match[2] or 0)) if match else (sys.maxsize, 0)


# TensorFlowOnSpark 2.x has the same name for its distribution and its package.


class _Environment(NamedTuple):
    """The part of a Python interpreter that decides which packages it imports."""

    prefix: str
    user_site: str
    search_path: Sequence[str]

    def owns(self, directory: Path) -> bool:
        """Return whether the interpreter's pip installs into and uninstalls from the directory."""
        return any(directory.is_relative_to(root) for root in (self.prefix, self.user_site))


def _older_releases() -> Iterator[str]:
    """Yield a line for each interpreter on whose search path there is TensorFlowOnSpark 2.x."""
    reported = set()
    for python, purpose in ((sys.executable, ""), _worker_python()):
        environment = _environment(python)
        if environment is None:
            continue
        for position, (version, directory) in enumerate(_releases(environment.search_path)):
            if _major(version) >= _major(__version__) or directory in reported:
                continue
            reported.add(directory)
            owned = environment.owns(directory)
            steps = [] if owned else [f"take {directory} off PYTHONPATH and --py-files"]
            if owned and position:
                steps.append(f"run `{python} -m pip uninstall tensorflowonspark`")
            if owned or not position:
                steps.append(f"run `{python} -m pip install .` in a clone of this release")
            yield (
                f"TensorFlowOnSpark {version} is installed in {directory} {'beside' if position else 'instead of'} "
                f"this release ({__version__}) for {python}{purpose}: {', then '.join(steps)}"
            )


def _worker_python() -> tuple[str, str]:
    """Return the Python that Spark starts for its workers, and a clause that names the cause."""
    if python := os.environ.get("PYSPARK_PYTHON"):
        return python, ", which is PYSPARK_PYTHON"
    return shutil.which("python3") or sys.executable, ", which Spark starts unless PYSPARK_PYTHON is set"


def _environment(python: str) -> _Environment | None:
    """Return the environment of an interpreter; None if it can't be started here (it may exist on executors only)."""
    if python == sys.executable:
        return _Environment(sys.prefix, site.getusersitepackages(), sys.path)
    try:
        done = subprocess.run(
            [python, "-c", _SEARCH_PATH],
            env={**os.environ, "PYTHONSAFEPATH": "1"},  # no json.py of the working directory
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=True,
        )
        return _Environment(*json.loads(done.stdout))
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


def _releases(search_path: Sequence[str]) -> Iterator[tuple[str, Path]]:
    """Yield version and directory of each ``tensorflowonspark`` on the search path; the first one is imported."""
    for directory in dict.fromkeys(Path(entry).absolute() for entry in search_path):
        spec = PathFinder.find_spec("tensorflowonspark", [str(directory)])
        if spec is None or spec.origin is None:
            continue
        metadata = [found.version for found in distributions(name="tensorflowonspark", path=[str(directory)])]
        source = getattr(spec.loader, "get_source", str)("tensorflowonspark") or ""
        yield _assigned_version(source) or next(iter(metadata), "(of unknown version)"), directory


# Versions without an import: that of TensorFlow takes seconds.


def _version(module: str) -> str:
    """Return the version of a module; empty if it can't be imported.

    A distribution has another name than its module (tensorflow-cpu, tf-nightly), or there is none: pyspark may be on
    the path only, as under spark-submit.
    """
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):
        return ""
    if spec is None or spec.origin is None:  # a directory of that name, without a package in it
        return ""
    for file in ("version.py", "__init__.py"):
        if version := _assigned_version(_text(Path(spec.origin).parent / file)):
            return version
    return next(iter(wheels_of(module).values()), "(of unknown version)")


def _assigned_version(source: str) -> str:
    match = re.search(r'^__version__(?:: str)? = "([^"]+)"', source, re.MULTILINE)
    return match[1] if match else ""


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""


def java_program() -> str | None:
    """Return the Java that Spark would start, which may not exist; None without JAVA_HOME and a java on the PATH."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin" / "java") if home else shutil.which("java")


def _java(pyspark: str) -> tuple[str, str]:
    """Return the version of the Java that Spark would start, and a line if it is unfit for a version of Spark."""
    needed = 17 if _major(pyspark) >= _SPARK_ON_JAVA_17 else 8
    advice = f"install a Java runtime, version {max(needed, 17)} (Debian: apt install openjdk-17-jre-headless)"
    java = java_program()
    if java is None:
        return "", f"no java on the PATH and no JAVA_HOME, which Spark needs: {advice}"
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        home = os.environ.get("JAVA_HOME")
        source = f"JAVA_HOME={home}" if home else java
        return "", f"{source} holds no Java that runs ({error}): {advice}"
    match = re.search(r'version "((?:1\.)?(\d+)[^"]*)"', done.stderr)
    if match is None:
        return "", f"{java} prints no version of Java: {advice}"
    if int(match[2]) < needed:
        return match[1], f"Java {match[1]} ({java}) is too old for the installed Spark: {advice}, or set JAVA_HOME"
    if int(match[2]) > _JAVA_22 and _release(pyspark) < _SPARK_AFTER_JAVA_22:
        text = f"Java {match[1]} ({java}) is too new for the installed Spark, {pyspark}, which starts on none after 22"
        return match[1], f"{text}: {advice}, or set JAVA_HOME"
    return match[1], ""
