"""The reference: options of the command ``tfos``, and a check that each public name is described once."""

import argparse
import re
from collections.abc import Iterator
from importlib import import_module

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

__all__ = ["PACKAGES", "setup"]

PACKAGES = [f"tensorflowonspark{name}" for name in ("", ".frames", ".keras", ".ml", ".ml.mlflow", ".storage")]
_ACCESSOR = re.compile(r"copy|read|write|(get|set(?!Params))[A-Z]\w*")
_LOG = logging.getLogger(__name__)


class _Options(SphinxDirective):
    """The options of a subcommand of ``tfos``, by the groups of its parser."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        from tensorflowonspark import cli

        parser = cli._parser([])
        (commands,) = (each for each in parser._actions if isinstance(each, argparse._SubParsersAction))
        command = commands.choices[self.arguments[0]]
        lines = list(_lines(command))
        return self.parse_text_to_nodes(StringList(lines, f"tfos {self.arguments[0]}"))


def _lines(command: argparse.ArgumentParser) -> Iterator[str]:
    yield from ["```{eval-rst}", f".. program:: {command.prog}", ""]
    yield from [".. code-block:: text", "", *(f"   {line}" for line in command.format_usage().splitlines()), ""]
    for group in command._action_groups:
        actions = [action for action in group._group_actions if action.help is not argparse.SUPPRESS]
        if not actions:
            continue
        yield from [f".. rubric:: {group.title}", ""]
        for action in actions:
            names = action.option_strings or [action.metavar or action.dest]
            value = (
                "" if action.nargs == 0 or not action.option_strings else f" {action.metavar or action.dest.upper()}"
            )
            shown = ", ".join(f"{name}{value}" for name in names)
            text = (action.help or "").replace("%(default)s", str(action.default)).replace("%%", "%")
            yield from [f".. option:: {shown}", "", f"   {text}", ""]
    yield "```"


def _missing(app: Sphinx, env: BuildEnvironment, node: nodes.Element, content: nodes.Element) -> nodes.Node | None:
    """Show a name that is no public one (a parameter, a type of another package) without a link."""
    if node.get("refdomain") == "py" and not node.get("refwarn") and not node.get("refexplicit"):
        return content
    return None


def _skip(app: Sphinx, what: str, name: str, item: object, skip: bool, options: object) -> bool | None:
    """Leave out the accessors of Spark ML's params, which the parameters of a stage describe."""
    return True if _ACCESSOR.fullmatch(name) and "ml" in str(getattr(item, "__module__", "")).split(".") else None


def _check(app: Sphinx, env: BuildEnvironment) -> None:
    described = set(env.get_domain("py").objects)
    for package in PACKAGES:
        for name in import_module(package).__all__:
            if name != "__version__" and f"{package}.{name}" not in described:
                _LOG.warning("docs/reference describes no %s.%s", package, name)


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("tfos-options", _Options)
    app.connect("autodoc-skip-member", _skip)
    app.connect("missing-reference", _missing)
    app.connect("env-check-consistency", _check)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
