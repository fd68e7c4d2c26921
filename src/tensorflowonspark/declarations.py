"""Keywords that are declared once: signatures, their texts in ``help``, and checks come from the declaration.

A declaration is a function or a dataclass with parameters that are named at the call, each with a type, a default and
an entry under Parameters in its docstring. A function or class with the same keywords is decorated with `takes`. Type
checkers and editors read them in ``keywords.pyi``, which ``make keywords`` writes.
"""

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from types import MappingProxyType, NoneType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

from tensorflowonspark.errors import SpecError, did_you_mean

SECONDS = "seconds"  # the unit of a field, in ``Annotated``
_SECTION = re.compile(r"^Parameters\n-{10}\n(.*?)(?=\n\n\w+\n-{3,}\n|\Z)", re.MULTILINE | re.DOTALL)
_ENTRIES = re.compile(r"\n(?=\S)")
_REST = re.compile(r"^\*\*\w+\n(?:    .*\n?)*", re.MULTILINE)
_SENTENCE = re.compile(r"\.(?:\s|$)")

Declaration = Callable[..., Any]
Keywords = dict[str, Any]
Item = TypeVar("Item", bound=Callable[..., Any])


@functools.cache
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


@functools.cache
def entries_of(*declared: Declaration) -> dict[str, str]:
    """Return the entries under Parameters of docstrings, by the names of the parameters; {} if Python has dropped them.

    Examples
    --------
    >>> def draw(*, colour="red"):
    ...     '''Draw a line.
    ...
    ...     Parameters
    ...     ----------
    ...     colour : str
    ...         Of the line.
    ...     '''
    >>> print(entries_of(draw)["colour"])
    colour : str
        Of the line.
    >>> texts_of(draw)["colour"]
    'of the line.'
    """
    found: dict[str, str] = {}
    for item in (each for one in declared for each in reversed(getattr(one, "__mro__", (one,)))):
        section = _SECTION.search(inspect.cleandoc(item.__doc__ or ""))
        for entry in _ENTRIES.split(section[1]) if section else []:
            found |= dict.fromkeys(re.findall(r"\w+", re.split(r" : |\n", entry, maxsplit=1)[0]), entry)
    return found


def texts_of(*declared: Declaration) -> dict[str, str]:
    """Return what the docstrings say of each parameter, on one line that begins with a small letter."""
    texts = {name: " ".join(entry.split("\n", 1)[-1].split()) for name, entry in entries_of(*declared).items()}
    return {name: text[:1].lower() + text[1:] for name, text in texts.items()}


def summary_of(text: str) -> str:
    """Return the first sentence of a text, without its full stop and quotation, as the help of an option.

    Examples
    --------
    >>> summary_of("a directory (``logs``). It is made.")
    'a directory (logs)'
    """
    return _SENTENCE.split(text, maxsplit=1)[0].replace("`", "")


def kinds_of(annotation: Any) -> list[Any]:
    """Return a type with all of which it consists, and with what ``Annotated`` adds."""
    return [annotation, get_origin(annotation), *(kind for each in get_args(annotation) for kind in kinds_of(each))]


def choices_of(annotation: Any) -> tuple[str, ...]:
    """Return the choices of a ``Literal``, which may be optional; none for another type."""
    return next((get_args(each) for each in kinds_of(annotation) if get_origin(each) is Literal), ())


def plain_type(annotation: Any) -> Any:
    """Return a type without what ``Annotated`` adds."""
    return annotation.__origin__ if get_origin(annotation) is Annotated else annotation


def takes(
    *declared: Declaration,
    old: Callable[[Keywords], Keywords] | None = None,
    elsewhere: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
) -> Callable[[Item], Item]:
    """Return a decorator of a function or class that gets the keywords of declarations in its ``**`` parameter.

    Those that are not given have their defaults. Signature and docstring show all (`shows`); an unknown keyword is a
    `TypeError`, as of any function. `old` returns what was given with the names of today in place of former ones, for
    each of which it warns (`warn_renamed`). `elsewhere` has the names that others have for these keywords, for the hint
    in the error (`did_you_mean`).
    """

    def decorate(item: Item) -> Item:
        if inspect.isclass(item):
            item.__init__ = decorate(item.__init__)  # type: ignore[method-assign]
            return shows(*declared)(item)
        known = {**keywords_of(*declared), **inspect.signature(item).parameters}
        defaults = {name: each.default for name, each in known.items() if each.kind is each.KEYWORD_ONLY}

        @functools.wraps(item)
        def called(*args: Any, **given: Any) -> Any:
            if old is not None:
                given = old(given)
            unknown = next((name for name in given if name not in known), None)
            if unknown is not None:
                guess = did_you_mean(unknown, known, elsewhere)
                raise TypeError(f"{item.__qualname__}() got an unexpected keyword argument {unknown!r}{guess}")
            return item(*args, **{**defaults, **given})

        return shows(*declared)(called)  # type: ignore[return-value]

    return decorate


def shows(*declared: Declaration) -> Callable[[Item], Item]:
    """Return a decorator that puts keywords in place of a ``**`` parameter: in the signature and in the docstring."""

    def decorate(item: Item) -> Item:
        function: Any = item.__init__ if inspect.isclass(item) else item
        signature = inspect.signature(function)
        own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
        keywords = [each for name, each in keywords_of(*declared).items() if name not in signature.parameters]
        if len(own) < len(signature.parameters):
            shown = [each.replace(annotation=plain_type(each.annotation)) for each in keywords]
            function.__signature__ = signature.replace(parameters=[*own, *shown])
        if function is not item:  # whose own would be that of its __new__
            shown = [*inspect.signature(function).parameters.values()][1:]
            item.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]
        entries = entries_of(*declared)
        texts = dict.fromkeys(entries[name] for name in keywords_of(*declared) if name in entries)
        if item.__doc__:
            item.__doc__ = _REST.sub(
                "\n".join([*texts, ""]).replace("\\", r"\\"), inspect.cleandoc(item.__doc__), count=1
            )
        return item

    return decorate


def check_fields(settings: Any) -> None:
    """Check the fields of a dataclass: by the functions in their ``Annotated``, and the choices of a ``Literal``.

    A function takes a field's name and value, and raises a SpecError if the value can't be right.
    """
    for each in fields(settings):
        value, kinds = getattr(settings, each.name), kinds_of(each.type)
        choices: tuple[Any, ...] = choices_of(each.type)
        for check in getattr(each.type, "__metadata__", ()):
            if callable(check):
                check(each.name, value)
        if not choices and bool in kinds and int not in kinds:
            choices = (True, False)
        if choices and NoneType in kinds:
            choices = (*choices, None)
        if choices and value not in choices:
            raise SpecError.of(each.name, value, f": expected {' or '.join(map(repr, choices))}")
