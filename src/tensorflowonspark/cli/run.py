"""``tfos run``: a script on a cluster, from a shell."""

import argparse
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorflowonspark.cli.class_archive import archive_path, mapped, write_later
from tensorflowonspark.cli.cluster_mode import check_cluster_mode, run_in_cluster, staging_folder
from tensorflowonspark.cli.python_env import PythonEnvironment, add_environment_options, find_environment
from tensorflowonspark.cli.signals import Signalled, ended_by_signals, exit_code_of_signal
from tensorflowonspark.cli.spark import (
    add_spark_options,
    ineffective,
    read_frame,
    start_session,
    stop_session,
    submit_arguments,
)
from tensorflowonspark.cli.spark_settings import spark_settings, use_hadoop_settings
from tensorflowonspark.config import ClusterSpec
from tensorflowonspark.declarations import SECONDS, choices_of, keywords_of, kinds_of, summary_of, texts_of
from tensorflowonspark.driver.dashboard.page import check_report_path
from tensorflowonspark.driver.dashboard.service import require_packages
from tensorflowonspark.driver.feed.feed_settings import Data, FeedSettings
from tensorflowonspark.driver.log_files import check_log_dir
from tensorflowonspark.driver.program import configure
from tensorflowonspark.driver.run import run, run_script
from tensorflowonspark.driver.script import read_script
from tensorflowonspark.errors import SpecError
from tensorflowonspark.node.script import Script
from tensorflowonspark.restart_policy import RestartPolicy
from tensorflowonspark.secrecy import shown_words
from tensorflowonspark.settings import GROUPS, ClusterSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Settings that belong to no object, and those objects of which each field is an option by itself.
ALONE = {name: each for name, each in keywords_of(ClusterSettings).items() if name not in (*GROUPS, "restarts")}
OBJECTS: dict[str, Callable[..., Any]] = {"restarts": RestartPolicy, **GROUPS, "data": FeedSettings}
_KEYWORDS = {**ALONE, **{name: each for kind in OBJECTS.values() for name, each in signature(kind).parameters.items()}}
_OF_PROGRAMS = ("epoch_rows",)  # of mixtures, which a program states
_SCRIPT = {name: each for name, each in keywords_of(run_script).items() if name in ("module", "working_dir", "files")}
_TEXTS = texts_of(run_script, ClusterSettings, *OBJECTS.values())
_NODES_END = "the nodes have the time of --grace to end; another signal kills them"
_OFTEN_LATE = ("--workers", "--master", "--dry-run", "--deploy-mode")  # options that no script is likely to have


# ---- options


def _workers(text: str) -> int | tuple[int, int]:
    try:
        least, separator, most = text.partition(":")
        if separator and not 1 <= int(least) <= int(most):
            raise ValueError(text)
        return (int(least), int(most)) if separator else int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number, or the fewest and the most, as 2:8") from None


def _pair(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not name:
        raise argparse.ArgumentTypeError(f"{text!r}: expected NAME=VALUE, or NAME")
    if not separator and name not in os.environ:
        raise argparse.ArgumentTypeError(
            f"{name!r} is not set here: expected NAME=VALUE, or NAME of a variable that is"
        )
    return name, value if separator else os.environ[name]


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(s|m|h)?", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a time, as 30s or 2m")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600, None: 1}[match[2]]


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def _cache(text: str) -> str | None:
    return None if text == "none" else text


class _AppendList(argparse.Action):
    """Adds the parts of a list with commas, as spark-submit has them, to those that were given before."""

    def __call__(self, _parser: Any, options: Any, values: Any, _option: Any = None) -> None:
        setattr(options, self.dest, [*getattr(options, self.dest), *filter(None, values.split(","))])


# What differs from an option that a setting has by its type.
_OPTIONS: dict[str, dict[str, Any]] = {
    "module": {"flag": "-m", "help": "SCRIPT is the name of a module"},
    "files": {
        "action": _AppendList,
        "default": [],
        "metavar": "LIST",
        "help": "files that nodes find by their names where they work (repeatable)",
    },
    "working_dir": {"metavar": "DIR"},
    "num_workers": {"flag": "--workers", "type": _workers, "metavar": "N|MIN:MAX"},
    "num_ps": {"flag": "--ps"},
    "tensorboard": {"metavar": "DIR"},
    "env": {
        "type": _pair,
        "action": "append",
        "default": [],
        "metavar": "NAME[=VALUE]",
        "help": "a variable of the nodes, by default with the value that it has here (repeatable)",
    },
    "log_level": {"metavar": "LEVEL"},
    "max_restarts": {
        "flag": "--restarts",
        "default": 0,
        "help": "how often all nodes are started again when one has failed, from the last checkpoint on",
    },
    "backoff": {"flag": "--restart-backoff"},
    "max_backoff": {"flag": "--max-restart-backoff"},
    "causes": {
        "flag": "--restart-causes",
        "type": _names,
        "metavar": "LIST",
        "help": "the failures after which nodes are started again (default all but raised)",
    },
    "scope": {"flag": "--restart-scope"},
    "show": {"metavar": "chief|all|none|worker:0"},
    "log_dir": {"metavar": "DIR|URL"},
    "page_port": {
        "flag": "--dashboard",
        "type": int,
        "nargs": "?",
        "const": 0,
        "metavar": "PORT",
        "help": "serve a page that shows the training, and print its URL; --dashboard=8080 chooses the port",
    },
    "metrics_port": {"metavar": "PORT"},
    "network_interface": {"metavar": "NAME|NETWORK"},
    "ports": {"metavar": "FIRST-LAST"},
    "report": {"metavar": "FILE|URL"},
    "cache": {"type": _cache, "choices": ["disk", "memory", None], "metavar": "disk|memory|none"},
    "cache_limit": {"metavar": "SIZE"},
    "validation": {
        "metavar": "COLUMN|TABLE|PATH",
        "help": "the rows to validate on: a boolean column of --data that marks them, or a table or files of their own",
    },
}


def add_to(commands: Any) -> None:
    """Add the subcommand to those of a parser."""
    parser = commands.add_parser(
        "run",
        help="run a script on a cluster, unchanged",
        usage="%(prog)s [options] SCRIPT [its arguments]\n       %(prog)s [options] -m MODULE [its arguments]",
        description="Run a Python file or module on each node of a cluster, as python runs it on one machine. The exit "
        "code is that of the node that failed first; 2 for wrong usage; 69 for too few task slots.",
        allow_abbrev=False,
    )
    _add_option(parser, "module")
    parser.add_argument("script", metavar="SCRIPT", help="the file, or the module's name; what follows is its own")
    _add_cluster_options(parser.add_argument_group("the cluster"))
    _add_data_options(parser.add_argument_group("files and data"))
    add_environment_options(parser.add_argument_group("the executors' Python"))
    add_spark_options(parser)
    parser.set_defaults(run=_run, parser=parser, arguments=[])


def _add_cluster_options(group: Any) -> None:
    for name in _KEYWORDS:
        if name not in signature(FeedSettings).parameters:
            _add_option(group, name)
    add_deploy_mode(group)
    group.add_argument(
        "--staging-dir",
        metavar="URL",
        help="in cluster mode, the directory for the script and the result (by default the home in fs.defaultFS)",
    )
    group.add_argument(
        "--no-archive",
        dest="archive",
        action="store_false",
        help="read Spark's classes from their jars, and do not keep them for a sooner start of the next run",
    )
    group.add_argument("--no-wait", action="store_true", help="in cluster mode, return once Spark has accepted it")


def add_deploy_mode(group: Any) -> None:
    """Add the options of whether, and where, a driver runs to a parser or a group of one."""
    group.add_argument("--dry-run", action="store_true", help="show what would run, and start nothing")
    group.add_argument(
        "--deploy-mode",
        choices=["client", "cluster"],
        default="client",
        help="whether the driver runs here or in the cluster",
    )


def _add_data_options(group: Any) -> None:
    for name in ("files", "working_dir"):
        _add_option(group, name)
    group.add_argument("--data", metavar="TABLE|PATH", help="what ctx.dataset() reads: a table, or files")
    group.add_argument(
        "--data-format",
        metavar="FORMAT",
        help="parquet, orc, json, csv, tfrecord or another of Spark's; by default by the path's ending",
    )
    for name in signature(FeedSettings).parameters:
        if name not in _OF_PROGRAMS:
            _add_option(group, name)


def _add_option(group: Any, name: str) -> None:
    """Add the option for a setting, or a keyword of `run_script`: by its type, unit and text, but for `_OPTIONS`."""
    declared = {**_SCRIPT, **_KEYWORDS}[name]
    kinds = kinds_of(declared.annotation)
    option: dict[str, Any] = {"dest": name, "default": declared.default, "help": summary_of(_TEXTS.get(name, ""))}
    special = _OPTIONS.get(name, {})
    if bool in kinds and "type" not in special:
        option["action"] = argparse.BooleanOptionalAction if declared.default is not False else "store_true"
    elif choices_of(declared.annotation):
        option["choices"] = choices_of(declared.annotation)
    elif SECONDS in kinds:
        option |= {"type": _seconds, "metavar": "TIME"}
    elif int in kinds and str not in kinds:
        option |= {"type": int, "metavar": "N"}
    option |= special
    default = option["default"]
    if isinstance(default, (str, float)) or type(default) is int:
        option["help"] += f" (default {default:g}s)" if SECONDS in kinds else f" (default {default})"
    option.pop("flag", None)
    group.add_argument(_flag(name), **option)


def _flag(name: str) -> str:
    """Return the option for a setting."""
    flag: str = _OPTIONS.get(name, {}).get("flag", f"--{name.replace('_', '-')}")
    return flag


@contextmanager
def _named_as_options() -> Iterator[None]:
    """Raise errors about settings, in a block, with the options that have their values."""
    try:
        yield
    except SpecError as error:
        name, shown = error.setting or ("", "")
        if name not in {**_SCRIPT, **_KEYWORDS}:
            raise
        given = f"{_flag(name)} {shown.removeprefix(f'{name}=')}"
        raise SpecError(str(error).replace(shown, given, 1)) from error


def note_late_options(options: argparse.Namespace) -> None:
    """Warn of options of this command that stand after the script, and so are the script's own."""
    for word in options.arguments:
        if word.partition("=")[0] in _OFTEN_LATE:
            own = f"options of {options.parser.prog} stand before it"
            print(f"{word} stands after {options.script}, so it is the script's own: {own}", file=sys.stderr)


def _note_ineffective(options: argparse.Namespace, submit: list[str], nodes: ClusterSpec) -> None:
    """Warn of options about executors that Spark ignores with its master, as their number is not that of workers."""
    master = spark_settings(submit)["spark.master"]
    if found := ineffective(options, master):
        has = f"the cluster has {nodes} ({_flag('num_workers')} sets their number)"
        print(f"{', '.join(found)}: no effect with the master {master}; {has}", file=sys.stderr)


def _refuse_port_as_script(options: argparse.Namespace) -> None:
    """Raise `SpecError` if the script is the number of a port, which a space separates from ``--dashboard``."""
    port = options.script
    if options.page_port is not None and port.isdecimal() and not Path(options.working_dir or "", port).exists():
        raise SpecError(f"--dashboard {port} runs a script {port}, which there is not: the port is --dashboard={port}")


def _run(options: argparse.Namespace) -> int:
    note_late_options(options)
    _refuse_port_as_script(options)
    with ended_by_signals(_NODES_END) as install, _named_as_options():
        script = read_script(
            options.script,
            options.arguments,
            module=options.module,
            working_dir=options.working_dir,
            files=options.files,
        )
        check_cluster_mode(options)
        nodes = _check(options)
        name = options.script if options.module else Path(options.script).name
        submit = submit_arguments(options, name, len(nodes.roles))
        _note_ineffective(options, submit, nodes)
        use_hadoop_settings(submit)
        if options.log_dir is not None and not options.dry_run:
            check_log_dir(options.log_dir)
        if options.report is not None:
            check_report_path(options.report, "report")
        folder = staging_folder(options.staging_dir) if options.deploy_mode == "cluster" else ""
        environment = find_environment(options, submit)
        submit += environment.arguments(submit) if environment else []
        if options.dry_run:
            about: dict[str, str | list[str]] = {
                "script": [*(["-m"] if script.is_module else []), script.name, *script.arguments],
                "from": script.root,
                "works in": script.directory or "a copy on each node",
                "files": ", ".join(sorted([*script.files, *script.extras])) or "none: the module is installed",
                "nodes": str(nodes),
            }
            describe(options, about, submit, environment)
            return 0
        if environment:
            environment.publish()
        if folder:
            return run_in_cluster(options, script, submit, folder)
        archive = archive_path() if options.archive else None
        with mapped(archive):
            spark = start_session(submit)
        try:
            install()  # again: Spark has a handler of SIGINT that cancels its jobs, and with them the nodes
            _run_on(spark, script, options)
        finally:
            stop_session(spark)
        write_later(archive)
    return 0


def run_staged(spark: "SparkSession", script: Script, options: argparse.Namespace) -> int:
    """Run a script in the driver of cluster mode; return the exit code, unless it fails."""
    try:
        with ended_by_signals(_NODES_END), _named_as_options():
            _run_on(spark, script, options)
    except (Signalled, KeyboardInterrupt) as ended:
        return exit_code_of_signal(ended)
    return 0


def _run_on(spark: "SparkSession", script: Script, options: argparse.Namespace) -> None:
    run(spark, script, data=_read_data(spark, options), **_settings(options))


def _read_data(spark: "SparkSession", options: argparse.Namespace) -> Data | None:
    if options.data is None:
        return None
    frame, how = read_frame(spark, options.data, options.data_format), _group(options, "data")
    if options.validation is not None and options.validation not in frame.columns:
        how["validation"] = read_frame(spark, options.validation, options.data_format, "--validation")
    return Data(frame, **how)


# ---- checks


def _check(options: argparse.Namespace) -> ClusterSpec:
    """Return the cluster's nodes; refuse what can't be right before Spark starts."""
    config = configure(b"", _settings(options))
    if options.deploy_mode == "client":
        require_packages(config)
    how = FeedSettings(**_group(options, "data"))
    if options.data is None and how != FeedSettings():
        name = next(each.name for each in fields(how) if getattr(how, each.name) != each.default)
        raise SpecError(f"{_flag(name)} is about the rows of --data: name those too, or leave it out")
    if options.data is not None and len(config.spec.roles) != len(config.spec.fed):
        raise SpecError(f"--data feeds every node, and not all are workers in {config.spec}: leave the others out")
    return config.spec


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    """Return the keywords of `run`, but for the data."""
    own = {name: getattr(options, name) for name in ALONE} | {"env": dict(options.env)}
    return own | {name: kind(**_group(options, name)) for name, kind in OBJECTS.items() if name != "data"}


def _group(options: argparse.Namespace, name: str) -> dict[str, Any]:
    """Return the options of an object of settings, by the names of its fields."""
    return {each: getattr(options, each) for each in signature(OBJECTS[name]).parameters if each not in _OF_PROGRAMS}


def _python(options: argparse.Namespace, submit: list[str]) -> str:
    """Return the Python of the executors."""
    in_pod = options.deploy_mode == "cluster" and options.master.startswith("k8s://")  # the image's, for the driver too
    default = "python3" if in_pod else sys.executable
    return spark_settings(submit).get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON") or default


def describe(
    options: argparse.Namespace,
    about: Mapping[str, str | Sequence[str]],
    submit: list[str],
    environment: PythonEnvironment | None,
) -> None:
    """Print what would run.

    `about` is what the command runs: texts, and command lines as lists of words, which are shown without secrets.
    """
    lines: dict[str, str | Sequence[str]] = {
        **about,
        "Spark": submit,
        "driver": "in the cluster" if options.deploy_mode == "cluster" else "this process",
        "Python": _python(options, submit),
        **({"packed": environment.describe()} if environment else {}),
    }
    for name, value in lines.items():
        print(f"{name:10}{value if isinstance(value, str) else shlex.join(shown_words(value))}")
