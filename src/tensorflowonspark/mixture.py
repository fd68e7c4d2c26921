"""Mixtures: several sources of rows, of which an epoch has stated shares."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from tensorflowonspark.errors import SpecError

_TOLERANCE = 1e-6  # of the sum of shares, as of three times 1/3


@dataclass(frozen=True)
class Mixture:
    """Which shares of an epoch's rows come from which source."""

    column: str  # of the rows that are fed: the number of each one's source
    names: tuple[str, ...]  # of the sources, by number
    shares: tuple[float, ...]  # which add up to 1
    epoch_rows: int | None = None  # None: as many as all sources have together

    def rows_of_sources(self, rows: int) -> dict[str, int]:
        """Return the rows of each source in an epoch, by its name (`counts`)."""
        return dict(zip(self.names, self.counts(rows), strict=True))

    def counts(self, rows: int) -> tuple[int, ...]:
        """Return the rows of each source in an epoch, where all sources have so many together.

        Examples
        --------
        >>> Mixture("source", ("web", "books"), (0.7, 0.3), epoch_rows=1000).counts(8)
        (700, 300)
        >>> Mixture("source", ("web", "books", "code"), (1 / 3, 1 / 3, 1 / 3)).counts(8)
        (3, 3, 2)
        """
        return split_by_shares(rows if self.epoch_rows is None else self.epoch_rows, self.shares)


def order_of(mixture: Mixture | None) -> str:
    """Return how messages name an order of steps that all workers share: that of a mixture, or of one DataFrame."""
    return "order='global'" if mixture is None else "a mixture"


def split_by_shares(rows: int, shares: Sequence[float]) -> tuple[int, ...]:
    """Return how many of some rows each share is: each is rounded up or down, and together they are all rows."""
    exact = [rows * share / sum(shares) for share in shares]
    counts = [int(each) for each in exact]
    largest = sorted(range(len(shares)), key=lambda source: counts[source] - exact[source])
    for source in largest[: rows - sum(counts)]:
        counts[source] += 1
    return tuple(counts)


def parse_mixture(what: str, given: Mapping[Any, Any], epoch_rows: Any) -> tuple[dict[str, Any], Mixture]:
    """Return the sources that a user states, by name, and their mixture, as yet without a column.

    `what` is the argument, for the `SpecError` that says what is wrong with it.
    """
    sources: dict[str, Any] = {}
    shares = []
    if not given:
        raise SpecError(f"{what}={{}}: a mixture has at least one source")
    for name, pair in given.items():
        if not isinstance(name, str):
            raise SpecError(f"{what}: the source {name!r} has no name: expected a text")
        match pair:
            case (source, Real() as share) if not isinstance(share, bool) and 0 < float(share) <= 1:
                sources[name] = source
                shares.append(float(share))
            case _:
                raise SpecError(
                    f"{what}[{name!r}]={pair!r}: expected a pair, a source and its share, which is a number above 0 "
                    "and at most 1"
                )
    if not math.isclose(sum(shares), 1, abs_tol=_TOLERANCE):
        stated = ", ".join(f"{name!r}: {share:g}" for name, share in zip(sources, shares, strict=True))
        raise SpecError(f"{what}: the shares of a mixture must add up to 1, and these make {sum(shares):g}: {stated}")
    mixture = Mixture("", tuple(sources), tuple(shares), _parse_rows(epoch_rows))
    for name, count in mixture.rows_of_sources(0).items() if epoch_rows is not None else ():
        if not count:
            raise SpecError(f"epoch_rows={epoch_rows}: source {name!r} would have no row in an epoch: pass more")
    return sources, mixture


def _parse_rows(epoch_rows: Any) -> int | None:
    if epoch_rows is None:
        return None
    if not isinstance(epoch_rows, Integral) or isinstance(epoch_rows, bool) or epoch_rows < 1:
        raise SpecError(f"epoch_rows={epoch_rows!r}: expected the number of rows of an epoch, above 0")
    return int(epoch_rows)


def check_alike(what: str, own: Mapping[str, Any], first: Mapping[str, Any]) -> None:
    """Raise `SpecError` if rows have other columns than the first source, or of other types."""
    for name in dict.fromkeys([*first, *own]):
        if own.get(name) != first.get(name):
            raise SpecError(
                f"{what}: column {name!r} is {own.get(name, 'missing')}, and in the first source "
                f"{first.get(name, 'missing')}: all sources must have the same columns"
            )
