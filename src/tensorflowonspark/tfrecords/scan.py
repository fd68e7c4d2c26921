"""One message of Protocol Buffers, parsed field by field by a plain loop.

It is for the few messages for which that is faster than numpy's calls (see `fields`), and for those with many more
fields than others. What is not asked for takes no memory, and what is comes in parts, so that a message of millions of
fields takes no more than its reader keeps of it.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tensorflowonspark.tfrecords.wire_format import (
    BEGIN_GROUP,
    EIGHT_BYTES,
    END_GROUP,
    FOUR_BYTES,
    LENGTH,
    VARINT,
    varint,
)

_DEEPEST_GROUP = 100  # levels, as in Protocol Buffers
_SIZES = {EIGHT_BYTES: 8, FOUR_BYTES: 4, BEGIN_GROUP: 0, END_GROUP: 0}  # of values after the tag, by wire type
_NOWHERE = 1 << 62  # stands for a position beyond all buffers
_PART_FIELDS = 1 << 14  # that are yielded at once: as Python's numbers they take ten times the memory of an array


class Wanted(NamedTuple):
    """The fields that a reader asks for; Protocol Buffers skip all others as unknown."""

    last: int = 1  # the highest field number
    kinds: tuple[int, ...] = (LENGTH,)  # wire types


class UnreadableField(Exception):
    """No field can be read at a position."""

    def __init__(self, at: int) -> None:
        super().__init__(f"no field of a message can be read at byte {at}")
        self.at = at


def scan(view: memoryview, at: int, end: int, wanted: Wanted) -> Iterator[npt.NDArray[np.int64]]:
    """Yield number, wire type, start and end of the wanted fields of one message, some thousands at a time.

    Groups, which begin and end with a field, are skipped as unknown. Like Protocol Buffers this accepts any fields in
    them, even of number 0. The buffer has zeros after the message. Raises UnreadableField where no field can be read,
    after the fields before.
    """
    found: list[tuple[int, int, int, int]] = []
    groups: list[int] = []  # the numbers of the groups around `at`
    last, kinds = wanted
    while at < end:
        number, kind, begin, stop = _field(view, at)
        if stop > end or (number == 0 and not groups):
            break
        if kind == END_GROUP and not (groups and groups.pop() == number):
            break
        if kind == BEGIN_GROUP and len(groups) == _DEEPEST_GROUP:
            break
        if kind == BEGIN_GROUP:
            groups.append(number)
        elif not groups and number <= last and kind in kinds:
            found.append((number, kind, begin, stop))
            if len(found) == _PART_FIELDS:
                yield np.array(found, np.int64)
                found.clear()
        at = stop
    if found:
        yield np.array(found, np.int64)
    if at < end or groups:
        raise UnreadableField(at)


def _field(view: memoryview, at: int) -> tuple[int, int, int, int]:
    """Return number, wire type, start and end of the field at a position; the end of an invalid one is `_NOWHERE`."""
    tag, begin = varint(view, at)
    number, kind = tag >> 3, tag & 7
    if tag >> 32:
        return number, kind, begin, _NOWHERE
    if kind == LENGTH:
        length, begin = varint(view, begin)
        return number, kind, begin, begin + length
    if kind == VARINT:
        return number, kind, begin, varint(view, begin)[1]
    return number, kind, begin, begin + _SIZES.get(kind, _NOWHERE)
