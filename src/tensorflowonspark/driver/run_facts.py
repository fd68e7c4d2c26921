"""What the driver knows of a run before it starts, for its manifest: the program's file, the settings, the versions."""

import functools
import hashlib
import inspect
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tensorflowonspark import __version__
from tensorflowonspark.driver.program import Program, program_name
from tensorflowonspark.driver.script import module_file
from tensorflowonspark.node.script import Script
from tensorflowonspark.processes import kill_group
from tensorflowonspark.restart_policy import RestartPolicy
from tensorflowonspark.run_manifest import FORMAT, Record, given_settings
from tensorflowonspark.settings import GROUPS, ClusterSettings, as_group

_OWN = "tensorflowonspark."
_REVISION, _NO_REVISION = "# branch.oid ", "(initial)"  # in what git prints
_GIT_SECONDS = 2.0  # for an answer of git, whose work tree may be on a disk that does not answer


def run_facts(function: Program, settings: Mapping[str, Any], spark: Any) -> Record:
    """Return the driver's half of a manifest; what can't be found out is left out, and no error."""
    groups = [as_group(kind, settings[name], name) for name, kind in GROUPS.items()]
    policy = [each for each in [settings["restarts"]] if isinstance(each, RestartPolicy)]
    versions = {"tensorflowonspark": __version__, "spark": getattr(spark, "version", None)}
    with suppress(Exception):  # over Spark Connect there is none here; `tfos check` warns of a name that is missing
        versions["java"] = str(spark._jvm.java.lang.System.getProperty("java.version"))
    program: Record = {"name": program_name(function)}
    if file := program_file(function):
        program["file"] = str(file)
        with suppress(OSError):
            program["sha256"] = hashlib.sha256(file.read_bytes()).hexdigest()
        program["revision"] = git_revision(file)
    given = given_settings(ClusterSettings(**settings), *groups, *policy)
    return {"format": FORMAT, "program": program, "versions": versions, **given}


def program_file(function: Program) -> Path | None:
    """Return the file of a program; None if it has none, as in a notebook.

    That of a program whose function is of this package, as an estimator's, is the file that Python runs here.

    Examples
    --------
    >>> program_file(inspect.unwrap).name
    'inspect.py'
    >>> program_file(eval("lambda ctx: 1", {"__name__": "typed"})) is None
    True
    """
    file: Path | None
    if isinstance(function, Script):
        root = Path(function.root)
        file = module_file(function.name, root) if function.is_module else root / function.name
    elif isinstance(function, (str, os.PathLike)):
        file = Path(function)
    else:
        while isinstance(function, functools.partial):
            function = function.func
        name = str(getattr(inspect.unwrap(function), "__module__", ""))
        module = sys.modules.get("__main__" if name.startswith(_OWN) else name)
        file = Path(getattr(module, "__file__", None) or "")
    return file.resolve() if file is not None and file.is_file() else None


def git_revision(file: Path) -> str | None:
    """Return the revision of the work tree that has a file, with ``-dirty`` if it has changes; None if there is none.

    A file that git does not have is a change, too.
    """
    lines = (_git(file, "status", "--porcelain=v2", "--branch", "--untracked-files=no") or "").splitlines()
    revision = next((each.removeprefix(_REVISION) for each in lines if each.startswith(_REVISION)), _NO_REVISION)
    if revision == _NO_REVISION:
        return None
    has_changes = any(not each.startswith("#") for each in lines) or not _git(file, "ls-files", "--", file.name)
    return f"{revision}-dirty" if has_changes else revision


def _git(file: Path, *words: str) -> str | None:
    """Return what git prints of the directory of a file; None if it fails, or does not answer in time."""
    # A work tree may name programs that git runs to find changes; and nothing is to be written there.
    command = ["git", "-C", str(file.parent), "-c", "core.fsmonitor=false", *words]
    own = {name: value for name, value in os.environ.items() if not name.startswith(("GIT_DIR", "GIT_WORK_TREE"))}
    own["GIT_OPTIONAL_LOCKS"] = "0"
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    try:
        with subprocess.Popen(
            command, stdin=null, stdout=pipe, stderr=null, env=own, start_new_session=True
        ) as process:
            try:
                text, _ = process.communicate(timeout=_GIT_SECONDS)
            except BaseException:
                kill_group(process.pid)
                raise
    except (OSError, subprocess.TimeoutExpired):  # there is no git, or it hangs
        return None
    return os.fsdecode(text).strip() if process.returncode == 0 else None
