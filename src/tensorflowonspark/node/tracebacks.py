"""Tracebacks of a program, for people: its own frames, without those of what runs it or of Keras and TensorFlow."""

import contextlib
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import tensorflowonspark
from tensorflowonspark.errors import ClusterError, error_text

# Characters of a long traceback that are kept: from its beginning, and from its end with the error's text.
_FIRST, _LAST = 24_000, 8_000

_OWN = str(Path(tensorflowonspark.__file__).parent)
_LIBRARIES = ("keras", "tf_keras", "tensorflow", "wrapt", "absl")  # between a program's frames and their errors
# Frames that TensorFlow has written into the text of its error, each with its lines of source.
_FRAME = re.compile(r'^  File "([^"\n]+)", line \d+, in .*\n(?:    .*\n)*\n?', re.MULTILINE)
_BESIDE = ("<frozen ", contextlib.__file__)  # Python's own, between frames of ours
_WRAPPED = re.compile(r"^tensorflowonspark\.errors\.(\w+: .+)$", re.MULTILINE)
_SUBJECT = "tensorflowonspark_subject"
_Function = TypeVar("_Function", bound=Callable[..., object])


@dataclass(frozen=True)
class ProgramTraceback:
    """The traceback of a program's error."""

    # of the program and the packages that it uses; empty if the error is one of this package with a whole text
    traceback: str
    all_frames: str = ""  # with those of this package and of Keras too; empty if there are none


def reported_as(subject: str) -> Callable[[_Function], _Function]:
    """Return a decorator for a function of this package, which the errors of nodes name instead of "its program".

    The subject begins a sentence that goes on with "raised".

    Examples
    --------
    >>> @reported_as("the training")
    ... def train(job, ctx): ...
    >>> subject_of(train), subject_of(max)
    ('the training', 'its program')
    """

    def named(function: _Function) -> _Function:
        setattr(function, _SUBJECT, subject)
        return function

    return named


def subject_of(function: Callable[..., object]) -> str:
    """Return the words for a function in the errors of its node."""
    return str(getattr(function, _SUBJECT, "its program"))


def program_traceback(error: BaseException) -> ProgramTraceback:
    """Return the traceback of an error that a program raised, from the program's first frame on.

    All frames are shown after ``keras.config.disable_traceback_filtering()``, as Keras does.
    """
    try:
        found = traceback.TracebackException.from_exception(error)
        whole = "".join(found.format())
        if not _filters():
            return ProgramTraceback(_bounded(whole))
        roots = _roots()
        hidden = sum([_leave_out(each, roots) for each in _chain(found)])
        text = "".join(found.format())
        full = error_text(error, sys.maxsize)
        shown, written = _without_frames(full, roots)
        frames_left = any(each.stack for each in _chain(found)) or _FRAME.search(shown) is not None
    except Exception as problem:  # formatting a program's own exception may raise
        why = f"(it can't be shown: {type(problem).__name__}: {error_text(problem)})"
        return ProgramTraceback(_bounded("".join(traceback.format_tb(error.__traceback__)) + why))
    if not hidden + written:
        return ProgramTraceback(_bounded(text))
    if not frames_left and (isinstance(error, ClusterError) or wrapped_error(full)):
        return ProgramTraceback("", _bounded(whole))
    if written:
        text, hidden = text.replace(full, shown), hidden + written
    frames = "1 frame" if hidden == 1 else f"{hidden} frames"
    note = (
        f"({frames} of Keras, TensorFlow and tensorflowonspark left out: the node's file in log_dir has all, and "
        "keras.config.disable_traceback_filtering() shows them)\n"
    )
    return ProgramTraceback(_bounded(text) + note, _bounded(whole))


def wrapped_error(text: str) -> str:
    """Return the class and text of this package's error that TensorFlow has wrapped in one of its own; "" if none."""
    found = _WRAPPED.search(text)
    return found[1] if found else ""


def _without_frames(text: str, roots: list[str]) -> tuple[str, int]:
    """Return a text without the frames in it of files below some directories, and how many these are."""
    hidden = [each[0] for each in _FRAME.finditer(text) if _is_below(each[1], roots)]
    for each in hidden:
        text = text.replace(each, "", 1)
    return text, len(hidden)


def _filters() -> bool:
    keras = sys.modules.get("keras")
    config = getattr(keras, "config", None)
    return bool(getattr(config, "is_traceback_filtering_enabled", lambda: True)())


def without_hidden_frames(error: BaseException) -> TracebackType | None:
    """Return the frames of an error that the traceback of a program shows.

    These are all if Keras shows its own, or if there are no others and the error's text is not one of this package.
    """
    found, roots = error.__traceback__, _roots()
    frames = []
    while found is not None:
        if not _is_below(found.tb_frame.f_code.co_filename, roots):
            frames.append(found)
        found = found.tb_next
    if not _filters() or not (frames or isinstance(error, ClusterError)):
        return error.__traceback__
    kept = None
    for each in reversed(frames):
        kept = TracebackType(kept, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return kept


def _roots() -> list[str]:
    """Return the directories whose frames are hidden."""
    return [each for each in (_OWN, *map(_root, _LIBRARIES)) if each]


def _root(name: str) -> str:
    file = getattr(sys.modules.get(name), "__file__", None)
    return str(Path(file).parent) if file else ""


def _chain(found: traceback.TracebackException | None) -> Iterator[traceback.TracebackException]:
    """Yield an error, those that it was raised from, and those of its group."""
    while found is not None:
        yield found
        for each in getattr(found, "exceptions", None) or ():
            yield from _chain(each)
        found = found.__cause__ or (None if found.__suppress_context__ else found.__context__)


def _is_below(file: str, roots: list[str]) -> bool:
    """Return whether a file is below one of some directories, or of Python where it stands between their frames."""
    return file.startswith((*_BESIDE, *(f"{root}/" for root in roots)))


def _leave_out(found: traceback.TracebackException, roots: list[str]) -> int:
    """Leave the frames of files below some directories out; return how many there were.

    Those before the program's first frame, which call it, are no part of it and not counted.
    """
    frames = list(found.stack)
    kept = [each for each in frames if not _is_below(each.filename, roots)]
    found.stack[:] = kept
    return len(frames) - len(kept) - (frames.index(kept[0]) if kept else 0)


def _bounded(text: str) -> str:
    """Return a text without lone surrogates, and without the middle if it is long."""
    text = text.encode(errors="backslashreplace").decode()
    if len(text) <= _FIRST + _LAST:
        return text
    return f"{text[:_FIRST]}\n... ({len(text) - _FIRST - _LAST:,} characters are left out) ...\n{text[-_LAST:]}"
