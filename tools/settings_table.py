"""Generate the table in ``docs/reference/settings.md``: each setting, and how it is given at each of the entrances.

``python tools/settings_table.py`` rewrites it; the tests compare it with `table`.
"""

from collections.abc import Iterator
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

from tensorflowonspark import cli
from tensorflowonspark.cli.run import ALONE, OBJECTS
from tensorflowonspark.declarations import keywords_of
from tensorflowonspark.ml.training_params import NOT_FITTED, EstimatorSettings
from tensorflowonspark.restart_policy import RestartPolicy

__all__ = ["PAGE", "entrances", "page", "settings", "table"]

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "settings.md"
_BEGIN, _END = "<!-- begin of the table -->\n", "<!-- end of the table -->\n"
_PARAMS = {  # of the estimator, where the name is not the setting's in Spark's letters
    **dict.fromkeys(signature(RestartPolicy).parameters, "restarts"),
    "validation": "validationData",
}


def settings() -> Iterator[tuple[str, str, Parameter]]:
    """Yield each setting that is given alone: its name, its object (empty if it has none), and its declaration."""
    for name, each in ALONE.items():
        yield name, "", each
    for group, kind in OBJECTS.items():
        for name, each in signature(kind).parameters.items():
            yield name, group, each


def entrances(name: str, group: str) -> tuple[str, str, str, str]:
    """Return the argument, class of object, method, param or option by which a setting is given, at each entrance."""
    words = name.split("_")
    param = _PARAMS.get(name, words[0] + "".join(map(str.title, words[1:])))
    is_param = param in keywords_of(EstimatorSettings)
    known = _options().get(name)
    options = [] if known is None else known.option_strings
    option = next((each for each in reversed(options) if not each.startswith("--no-")), "none")
    by_estimator = param if is_param else "none" if name in NOT_FITTED else "clusterOptions"
    if not group:
        return name, name, by_estimator, option
    if group == "data":
        return "train", "Data", by_estimator, option
    return OBJECTS[group].__name__, OBJECTS[group].__name__, by_estimator, option


def _options() -> dict[str, Any]:
    """Return the options of ``tfos run`` by their names in a program."""
    parser: Any = cli._parser([])
    return {action.dest: action for action in parser._subparsers._group_actions[0].choices["run"]._actions}


def table() -> str:
    """Return the table in Markdown."""
    rows = [("setting", "default", "`Cluster`", "`run`", "`KerasEstimator`", "`tfos run`"), ("---",) * 6]
    for name, group, each in settings():
        default = {"causes": "all but 'raised'", "max_restarts": "0"}.get(name, repr(each.default))
        cells = [name, default, *entrances(name, group)]
        rows.append(tuple(f"`{cell}`" for cell in cells))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def page(text: str) -> str:
    """Return the text of the page with the table of today in it."""
    before, rest = text.split(_BEGIN)
    return before + _BEGIN + "\n" + table() + "\n" + _END + rest.split(_END)[1]


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
