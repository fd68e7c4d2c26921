"""The manifest of a run: what made a checkpoint, an export or a report, as JSON that other versions read as well.

The driver makes the first half, which reaches the nodes with the configuration; the chief adds what only it knows, and
the rows that its program reads, each time that it writes something.
"""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any

from tensorflowonspark.declarations import choices_of

FORMAT = 1  # higher once a key means something else; keys that are added need no other
FILE = "manifest.json"  # in a checkpoint's directory
IN_EXPORT = f"assets.extra/{FILE}"  # in a SavedModel, whose folder of this name no reader of models opens
BESIDE_EXPORT = f".{FILE}"  # at the end of the name of a model's file
OF_REPORT = "manifest"  # its key in the data of a report
_DATA = re.compile(r'<script[^>]*\bid="data"[^>]*>(.*?)</script>', re.DOTALL)  # of a report
_TABLES = ("program", "versions", "settings", "data")
_COMPARED = ("versions.", "backend", "program.sha256", "program.revision")

Record = dict[str, Any]  # a manifest, or a part of one, as JSON has it; what is missing or null is not known


def parse_manifest(text: bytes) -> Record:
    """Return the manifest in a file: its own, or a report's; raise `ValueError` with the reason if there is none.

    Examples
    --------
    >>> parse_manifest(b'{"format": 1, "workers": 2}')["workers"]
    2
    >>> parse_manifest(b'{"epochs": 5}')
    Traceback (most recent call last):
        ...
    ValueError: there is none in this JSON
    """
    try:
        decoded = text.decode()
        of_report = _DATA.search(decoded)
        found = json.loads(of_report[1] if of_report else decoded)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is neither JSON nor a report ({error})") from error
    if of_report and isinstance(found, dict):
        found = found.get(OF_REPORT)
    if not isinstance(found, dict) or type(found.get("format")) is not int:
        raise ValueError("there is none in this report" if of_report else "there is none in this JSON")
    return {name: each for name, each in found.items() if name not in _TABLES or isinstance(each, dict)}


def write_manifest(manifest: Record, path: str) -> None:
    """Write a manifest to a file of this machine, whose folder may be missing."""
    Path(path).parent.mkdir(exist_ok=True)
    Path(path).write_text(json.dumps(manifest, indent=1))


def later_version(manifest: Record) -> str:
    """Return a line about a manifest of a later version; empty for others."""
    number = manifest["format"]
    text = (
        f"the manifest is of a later version (format {number}, and {FORMAT} is known here): it is read as far as known"
    )
    return text if number > FORMAT else ""


def flat(record: Record, prefix: str = "") -> dict[str, str]:
    """Return what a manifest says, each as a text by its path.

    Examples
    --------
    >>> flat({"workers": 2, "versions": {"keras": "3.15.1", "java": None}})
    {'workers': '2', 'versions.keras': '3.15.1'}
    """
    found: dict[str, str] = {}
    for name, value in record.items():
        if isinstance(value, dict):
            found |= flat(value, f"{prefix}{name}.")
        elif value not in (None, []):
            found[f"{prefix}{name}"] = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return found


def differences(before: Record, now: Record) -> Iterator[str]:
    """Yield how the program, the versions and the columns of a run differ from those of the manifest of another one.

    What either of them does not know is no difference.

    Examples
    --------
    >>> before = {"versions": {"keras": "3.14.0", "jax": "0.10"}, "data": {"0": {"columns": {"x": "float"}}}}
    >>> list(differences(before, {"versions": {"keras": "3.15.1"}, "data": {"0": {"columns": {"x": "double"}}}}))
    ['keras is 3.15.1, was 3.14.0', "column 'x' is double, was float"]
    """
    was, has = flat(before), flat(now)
    feeds = [{name.partition(".columns.")[0] for name in each if ".columns." in name} for each in (was, has)]
    for name in dict.fromkeys([*has, *was]):
        feed, _, column = name.partition(".columns.")
        is_compared = feed in feeds[0] & feeds[1] if column else name in was and name in has
        if was.get(name) == has.get(name) or not is_compared or not (column or name.startswith(_COMPARED)):
            continue
        if name == "program.sha256":
            yield f"the program's file {has.get('program.file')} has changed"
        else:
            shown = f"column {column!r}" if column else name.removeprefix("versions.")
            yield f"{shown} is {has.get(name, 'gone')}, was {was.get(name, 'not there')}"


def given_settings(*groups: Any) -> Record:
    """Return the settings of declared objects that differ from their defaults, as parts of a manifest.

    Numbers, booleans and the choices that a setting declares are no secrets. A text, as a path or a URL, or a mapping,
    as of variables, may hold one: of these only the names are returned.

    Examples
    --------
    >>> from tensorflowonspark.settings import ClusterSettings, Logs
    >>> given_settings(ClusterSettings(num_workers=2, env={"TOKEN": "x"}), Logs(log_dir="/logs", log_format="json"))
    {'settings': {'num_workers': 2, 'log_format': 'json'}, 'not_recorded': ['env', 'log_dir']}
    """
    shown: Record = {}
    hidden: list[str] = []
    for each, value in ((each, getattr(group, each.name)) for group in groups for each in fields(group)):
        is_default = type(value) is type(each.default) and value == each.default  # of other types "==" may be no bool
        if each.default is MISSING or is_dataclass(value) or is_default:
            continue
        values, choices = value if isinstance(value, (tuple, list)) else (value,), choices_of(each.type)
        if all(one is None or isinstance(one, (bool, int, float)) or one in choices for one in values):
            shown[each.name] = str(value) if value == math.inf else value  # which JSON does not have
        else:
            hidden.append(each.name)
    return {"settings": shown, "not_recorded": hidden}
