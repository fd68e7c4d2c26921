"""The windows of ordered rows that a program asks for."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from numbers import Integral, Real
from typing import Literal

from tensorflowonspark.errors import SpecError

__all__ = ["Window"]

PRESENT = "present"  # the column of windows that says which of their rows there are


@dataclass(frozen=True)
class Window:
    """Windows over the rows of each key, in the order of a column: the argument `window` of ``ctx.dataset``.

    Parameters
    ----------
    key : str or sequence of str
        The column, or columns, of the key, which are not of fractions: a window has rows of one key.
    order : str
        The column by which the rows of a key are ordered: of numbers, dates or timestamps, with another value in each
        row of a key.
    length : int
        Rows of a window, which become the features: of a column of numbers an array of this length.
    horizon : int
        Rows that follow the window, and become the label.
    stride : int
        Rows from one window of a key to the next. The last one ends with the key's last row.
    gap : number or timedelta, optional
        The most by which the order's values of two rows may differ that follow each other in a window: of dates in
        days, of timestamps in seconds. By default any.
    short : {"drop", "pad"}
        The treatment of a key, or of its rows between two gaps, with fewer rows than a window and its horizon have.
        With "pad" it is one window whose first rows are zeros, if rows are left before the horizon; the features then
        have the column ``present``, which is True for rows that there are.

    Raises
    ------
    SpecError
        If a number can't be right.

    Examples
    --------
    >>> Window("store", "day", length=56, horizon=7).stride
    1
    """

    key: str | Sequence[str]
    order: str
    length: int
    horizon: int = 1
    stride: int = 1
    gap: float | timedelta | None = None
    short: Literal["drop", "pad"] = "drop"

    def __post_init__(self) -> None:
        for name, least in (("length", 1), ("horizon", 0), ("stride", 1)):
            value = getattr(self, name)
            if not isinstance(value, Integral) or isinstance(value, bool) or int(value) < least:
                raise SpecError.of(name, value, f": expected a whole number from {least} on")
        gap = self.gap.total_seconds() if isinstance(self.gap, timedelta) else self.gap
        if gap is not None and (not isinstance(gap, Real) or isinstance(gap, bool) or not gap > 0):
            raise SpecError.of("gap", self.gap, ": expected a number above 0, or a timedelta")
        if self.short not in ("drop", "pad"):
            raise SpecError.of("short", self.short, ": expected 'drop' or 'pad'")
        if not self.keys:
            raise SpecError.of("key", self.key, ": expected a column, or several")

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns of the key."""
        return (self.key,) if isinstance(self.key, str) else tuple(self.key)

    @property
    def span(self) -> int:
        """Rows of a window and its horizon."""
        return self.length + self.horizon
