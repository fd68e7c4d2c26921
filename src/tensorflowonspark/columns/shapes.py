"""The shape of one row's value: what a column's arrays give by themselves, or what the program declares."""

from collections.abc import Sequence
from math import prod
from operator import index

from tensorflowonspark.errors import FeedError
from tensorflowonspark.parts import Extent

__all__ = ["shape_of"]

Shape = tuple[int | None, ...]


def shape_of(name: str, depth: int, extents: Sequence[Extent], declared: Sequence[int | None] | None) -> Shape:
    """Return the shape that the values of a column have, or can be folded into.

    Parameters
    ----------
    name : str
        The column's.
    depth : int
        How many levels of arrays it has; 0 if its values are scalars.
    extents : sequence of Extent
        Of its arrays, from the outermost level on. Levels are missing of which no row has an array that is not null;
        more than `depth` are not looked at.
    declared : sequence of int or None, optional
        The shape that is wanted.

    Raises
    ------
    FeedError
        If it has no shape, or not that one.

    Examples
    --------
    >>> shape_of("x", 1, [Extent(4, 4)], None), shape_of("x", 1, [Extent(4, 4)], (2, 2))
    ((4,), (2, 2))
    >>> shape_of("x", 2, [Extent(1, 4), Extent(3, 3)], (None, 3))
    (None, 3)
    """
    known = tuple(extents[:depth])
    if declared is None:
        return _own_shape(name, depth, known)
    wanted = _checked(name, declared)
    varying = wanted.count(None)
    if varying > depth:
        raise FeedError(
            f"column {name!r} holds {_nested(depth)}, and {_told(name, wanted)} wants arrays nested "
            f"{varying} deep that vary in length"
        )
    _refuse_varying(name, known, varying, f"{_told(name, wanted)} wants one length")
    _refuse_other_size(name, depth, known, wanted)
    return wanted


def _own_shape(name: str, depth: int, known: tuple[Extent, ...]) -> Shape:
    _refuse_varying(name, known, 0, "without a declared shape all must have one length")
    if known and known[-1].longest == 0:  # there is nothing inside of arrays that are all empty
        known += (Extent(0, 0),) * (depth - len(known))
    if len(known) < depth:
        raise FeedError(
            f"column {name!r} holds {_nested(depth)}, of which all {'inner ones ' if known else ''}are null, so that "
            f"their shape can't be told: declare it, as in {_told(name, (3,) * depth)}"
        )
    return tuple(extent.longest for extent in known)


def _checked(name: str, declared: Sequence[int | None]) -> Shape:
    """Return a declared shape as a tuple, if it can be one."""
    try:
        shape = tuple(None if size is None else index(size) for size in declared)
    except TypeError:
        shape = (-1,)
    if any(size is not None and size < 0 for size in shape):
        raise FeedError(
            f"shapes={{{name!r}: {declared!r}}}: expected a tuple of sizes, as in (28, 28, 1), with None for those "
            "that vary"
        )
    if None in shape[shape.count(None) :]:
        raise FeedError(f"{_told(name, shape)}: the dimensions that vary must come first, as in (None, 3)")
    return shape


def _refuse_varying(name: str, known: tuple[Extent, ...], first: int, rule: str) -> None:
    """Refuse arrays of several lengths at a level from the first on."""
    varying = [level for level, extent in enumerate(known) if extent.shortest != extent.longest]
    if not varying or varying[-1] < first:
        return
    extent = next(known[level] for level in varying if level >= first)
    ragged = (None,) * (varying[-1] + 1) + tuple(extent.longest for extent in known[varying[-1] + 1 :])
    raise FeedError(
        f"column {name!r} holds arrays of different lengths ({extent.shortest} to {extent.longest} values), and "
        f"{rule}; see {extent.shortest_at}, and {extent.longest_at}. Pad or cut them in Spark, or declare a "
        f"ragged column, as in {_told(name, ragged)}"
    )


def _refuse_other_size(name: str, depth: int, known: tuple[Extent, ...], wanted: Shape) -> None:
    """Refuse arrays with another number of values than a shape has, below the dimensions that vary."""
    varying = wanted.count(None)
    needs = prod(size for size in wanted if size is not None)
    fixed = known[varying:]
    has = prod(extent.longest for extent in fixed)
    # Arrays that are null everywhere can be of any length, if only those around them leave room for one.
    if needs == has if len(known) == depth or not has else needs % has == 0:
        return
    if varying == depth:
        raise FeedError(f"column {name!r} holds single values where {_told(name, wanted)} needs {needs}")
    own = (None,) * varying + tuple(extent.longest for extent in fixed)
    inside = f"in each array of level {varying}" if varying else "in each row"
    raise FeedError(
        f"column {name!r} holds {has} value{'' if has == 1 else 's'} {inside}, as in {fixed[0].longest_at}, and "
        f"{_told(name, wanted)} needs {needs}; what fits is {_told(name, own)}"
    )


def _nested(depth: int) -> str:
    return {0: "single values", 1: "arrays"}.get(depth, f"arrays nested {depth} deep")


def _told(name: str, shape: Shape) -> str:
    return f"shapes={{{name!r}: {shape}}}"
