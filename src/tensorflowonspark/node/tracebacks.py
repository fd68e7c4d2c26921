"""Tracebacks of a program, for people: its own frames, without those of what runs it or of Keras and TensorFlow."""

import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import tensorflowonspark
from tensorflowonspark.errors import error_text

# Characters of a long traceback that are kept: from its beginning, and from its end with the error's text.
_FIRST, _LAST = 24_000, 8_000

_OWN = str(Path(tensorflowonspark.__file__).parent)
_LIBRARIES = ("keras", "tf_keras", "tensorflow", "wrapt", "absl")  # between a program's frames and their errors


@dataclass(frozen=True)
class ProgramTraceback:
    """The traceback of a program's error.

    Attributes
    ----------
    traceback : str
        With the frames of the program and of the packages that it uses.
    all_frames : str
        With those of this package and of Keras too; empty if there are none.
    """

    traceback: str
    all_frames: str = ""


def program_traceback(error: BaseException) -> ProgramTraceback:
    """Return the traceback of an error that a program raised, from the program's first frame on.

    All frames are shown after ``keras.config.disable_traceback_filtering()``, as Keras does.

    Parameters
    ----------
    error : BaseException
        The error.
    """
    try:
        found = traceback.TracebackException.from_exception(error)
        whole = "".join(found.format())
        if not _filters():
            return ProgramTraceback(_bounded(whole))
        roots = [each for each in (_OWN, *map(_root, _LIBRARIES)) if each]
        hidden = sum([_leave_out(each, roots) for each in _chain(found)])
        text = "".join(found.format())
    except Exception as problem:  # formatting a program's own exception may raise
        why = f"(it can't be shown: {type(problem).__name__}: {error_text(problem)})"
        return ProgramTraceback(_bounded("".join(traceback.format_tb(error.__traceback__)) + why))
    if not hidden:
        return ProgramTraceback(_bounded(text))
    frames = "1 frame" if hidden == 1 else f"{hidden} frames"
    note = (
        f"({frames} of Keras, TensorFlow and tensorflowonspark left out: the node's file in log_dir has all, and "
        "keras.config.disable_traceback_filtering() shows them)\n"
    )
    return ProgramTraceback(_bounded(text) + note, _bounded(whole))


def _filters() -> bool:
    keras = sys.modules.get("keras")
    config = getattr(keras, "config", None)
    return bool(getattr(config, "is_traceback_filtering_enabled", lambda: True)())


def _root(name: str) -> str:
    file = getattr(sys.modules.get(name), "__file__", None)
    return str(Path(file).parent) if file else ""


def _chain(found: traceback.TracebackException | None) -> Iterator[traceback.TracebackException]:
    """Yield an error, those that it was raised from, and those of its group."""
    while found is not None:
        yield found
        for each in getattr(found, "exceptions", None) or ():
            yield from _chain(each)
        found = found.__cause__ or found.__context__


def _leave_out(found: traceback.TracebackException, roots: list[str]) -> int:
    """Leave the frames of files below some directories out, or all but the last of them; return how many there were.

    Those before the program's first frame, which call it, are no part of it and not counted.
    """
    frames = list(found.stack)
    kept = [each for each in frames if not any(each.filename.startswith(f"{root}/") for root in roots)] or frames[-1:]
    if not kept:
        return 0
    found.stack[:] = kept
    return len(frames) - frames.index(kept[0]) - len(kept)


def _bounded(text: str) -> str:
    """Return a text without lone surrogates, and without the middle if it is long."""
    text = text.encode(errors="backslashreplace").decode()
    if len(text) <= _FIRST + _LAST:
        return text
    return f"{text[:_FIRST]}\n... ({len(text) - _FIRST - _LAST:,} characters are left out) ...\n{text[-_LAST:]}"
