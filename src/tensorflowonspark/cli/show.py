"""``tfos show``: the manifest of a checkpoint, an export or a report."""

import argparse
import json
import os
import sys
from pathlib import PurePosixPath
from typing import Any

from tensorflowonspark import storage
from tensorflowonspark.errors import ClusterError, SpecError, did_you_mean
from tensorflowonspark.node.checkpoint.store import CheckpointStore
from tensorflowonspark.run_manifest import BESIDE_EXPORT, FILE, IN_EXPORT, Record, flat, later_version, parse_manifest
from tensorflowonspark.terminal import printable


def add_to(commands: Any) -> None:
    """Add the subcommand to those of a parser."""
    parser = commands.add_parser(
        "show",
        help="show what made a checkpoint, an export or a report",
        description="Print the manifest of a run: its program, versions, settings and rows. Of a directory of "
        "checkpoints, that of the newest complete one, after a list of all.",
        allow_abbrev=False,
    )
    text = "a directory of checkpoints, one of them, an exported model or a report: a path, or a URL of any file system"
    parser.add_argument("path", metavar="PATH", help=text)
    parser.add_argument("--json", action="store_true", help="print the manifest's JSON alone")
    parser.set_defaults(run=_show, parser=parser)


def _show(options: argparse.Namespace) -> int:
    manifest, checkpoints = read_manifest(options.path)
    texts = flat(manifest)
    width = max(map(len, texts))
    lines = [*checkpoints, later_version(manifest), *(f"{name:{width}}  {text}" for name, text in texts.items())]
    text = json.dumps(manifest, indent=1) if options.json else "\n".join(printable(line) for line in lines if line)
    try:
        print(text, flush=True)
    except BrokenPipeError:  # as of `head`; Python would flush again at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def read_manifest(path: str) -> tuple[Record, list[str]]:
    """Return the manifest of what is at a path, and a line for each checkpoint there.

    What has none is a `SpecError`, and one that can't be read a `ClusterError`.
    """
    path = path.rstrip("/") or path
    try:
        files, root = storage.file_system(path)
        name, checkpoints = _find(files, root, path)
        return parse_manifest(files.cat_file(f"{root}{name}")), checkpoints
    except ClusterError:
        raise
    except Exception as error:  # each file system raises other types
        reason = error if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        raise ClusterError(f"the manifest of {path} can't be read: {reason}") from error


def _find(files: Any, root: str, path: str) -> tuple[str, list[str]]:
    """Return what follows a path in the name of the file that has its manifest, and a line for each checkpoint."""
    if files.isfile(root):
        return BESIDE_EXPORT if files.exists(f"{root}{BESIDE_EXPORT}") else "", []
    if not files.exists(root):
        parent = PurePosixPath(root).parent
        names = (
            [PurePosixPath(each).name for each in files.ls(str(parent), detail=False)] if files.isdir(parent) else []
        )
        raise SpecError(f"there is no {path}{did_you_mean(PurePosixPath(root).name, names)}")
    for name in (f"/{FILE}", f"/{IN_EXPORT}"):
        if files.exists(f"{root}{name}"):
            return name, []
    saved = CheckpointStore(path, keep=1).complete()
    if not saved:
        raise SpecError(
            f"{path} has no manifest: expected a directory of checkpoints of which one is complete, one of them, a "
            "model that ctx.export has written, or a report"
        )
    newest = saved[-1]
    if FILE not in newest.files:
        raise SpecError(f"{path}/{newest.name} has no manifest: an earlier version of this package has written it")
    lines = [f"{each.name}  epoch {each.epoch}, step {each.step}" for each in saved]
    return f"/{newest.name}/{FILE}", [*lines[:-1], f"{lines[-1]}, the newest:"]
