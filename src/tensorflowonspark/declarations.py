"""Keywords that are declared once: signatures, their texts in ``help``, and checks come from the declaration.

A declaration is a function or a dataclass with parameters that are named at the call, each with a type, a default and
an entry under Parameters in its docstring. What takes the same keywords says so by `takes`. Type checkers and editors
read them in ``keywords.pyi``, which ``make keywords`` writes.
"""

import functools
import inspect
import re
from collections.abc import Callable
from dataclasses import fields
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

from tensorflowonspark.errors import SpecError

__all__ = ["SECONDS", "check_fields", "entries_of", "keywords_of", "summaries_of", "takes"]

SECONDS = "seconds"  # the unit of a field, in ``Annotated``
_SECTION = re.compile(r"^Parameters\n-{10}\n(.*?)(?=\n\n\w+\n-{3,}\n|\Z)", re.MULTILINE | re.DOTALL)
_ENTRIES = re.compile(r"\n(?=\S)")
_REST = re.compile(r"^\*\*\w+\n(?:    .*\n?)*", re.MULTILINE)
_SENTENCE = re.compile(r"(.+?)\.(?:\s|$)", re.DOTALL)

Declaration = Callable[..., Any]
Item = TypeVar("Item", bound=Callable[..., Any])


def keywords_of(*declared: Declaration) -> dict[str, inspect.Parameter]:
    """Return the parameters of declarations that are named at the call.

    Examples
    --------
    >>> def draw(width, *, colour="red"): ...
    >>> list(keywords_of(draw))
    ['colour']
    """
    parameters = [each for item in declared for each in inspect.signature(item).parameters.values()]
    return {each.name: each for each in parameters if each.kind is each.KEYWORD_ONLY}


def entries_of(declared: Declaration) -> dict[str, str]:
    """Return the entries under Parameters of a docstring, by the names of the parameters; {} if Python has dropped it.

    Examples
    --------
    >>> print(entries_of(takes)["declared"])
    *declared : callable
        Functions or dataclasses.
    """
    found = _SECTION.search(inspect.getdoc(declared) or "")
    entries = _ENTRIES.split(found[1]) if found else []
    return {name: each for each in entries for name in re.findall(r"\w+", re.split(r" : |\n", each, maxsplit=1)[0])}


def summaries_of(*declared: Declaration) -> dict[str, str]:
    """Return the first sentence about each parameter, without a full stop and quotation, as the help of an option."""
    texts = {name: entry for item in declared for name, entry in entries_of(item).items()}
    summaries = {}
    for name, entry in texts.items():
        found = _SENTENCE.match(" ".join(entry.split("\n")[1:]).strip())
        text = re.sub(r"\s+", " ", found[1] if found else "").replace("`", "")
        summaries[name] = text[:1].lower() + text[1:]
    return summaries


def takes(*declared: Declaration) -> Callable[[Item], Item]:
    """Return a decorator of a function or class that gets the keywords of declarations in its ``**`` parameter.

    Those that are not given have their defaults. Signature and docstring show all, the latter in place of the entry of
    the ``**`` parameter; an unknown keyword is a `TypeError`, as of any function.

    Parameters
    ----------
    *declared : callable
        Functions or dataclasses.
    """
    keywords = keywords_of(*declared)
    entries = {name: entry for item in declared for name, entry in entries_of(item).items()}

    def decorate(item: Item) -> Item:
        if inspect.isclass(item):
            item.__init__ = decorate(item.__init__)  # type: ignore[method-assign]
            item.__doc__ = _documented(item, [entries[name] for name in keywords if name in entries])
            return item
        signature = inspect.signature(item)
        own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
        known = {name: each for name, each in keywords.items() if name not in signature.parameters}
        shown = [each.replace(annotation=_plain(each.annotation)) for each in known.values()]
        defaults = {name: each.default for name, each in known.items()}

        @functools.wraps(item)
        def called(*args: Any, **given: Any) -> Any:
            unknown = next((name for name in given if name not in known and name not in signature.parameters), None)
            if unknown is not None:
                raise TypeError(f"{item.__qualname__}() got an unexpected keyword argument {unknown!r}")
            return item(*args, **{**defaults, **given})

        called.__signature__ = signature.replace(parameters=[*own, *shown])  # type: ignore[attr-defined]
        called.__doc__ = _documented(item, [entries[name] for name in known if name in entries])
        return called  # type: ignore[return-value]

    return decorate


def _plain(annotation: Any) -> Any:
    return annotation.__origin__ if get_origin(annotation) is Annotated else annotation


def _documented(item: Any, entries: list[str]) -> str | None:
    doc = inspect.getdoc(item) if item.__doc__ else None
    return doc and _REST.sub("\n".join([*dict.fromkeys(entries), ""]).replace("\\", r"\\"), doc, count=1)


def check_fields(settings: Any) -> None:
    """Check the fields of a dataclass: by the functions in their ``Annotated``, and the choices of a ``Literal``.

    Raises
    ------
    SpecError
        If a value can't be right; by a function of a field's name and value.
    """
    for each in fields(settings):
        value = getattr(settings, each.name)
        for check in getattr(each.type, "__metadata__", ()):
            if callable(check):
                check(each.name, value)
        choices = get_args(each.type) if get_origin(each.type) is Literal else ()
        if choices and value not in choices:
            raise SpecError(f"{each.name}={value!r}: expected {' or '.join(map(repr, choices))}")
