"""The order of a mixture: which row of which source has each place in an epoch.

It follows from the seed, the epoch and the sizes of the sources alone. A source's rows come in one pass after the
other, each shuffled anew, and go on in an epoch where they ended in the one before. The rows of each source are spread
evenly over the epoch.
"""

from collections.abc import Sequence

import numpy as np

from tensorflowonspark.node.feed.order import Numbers

_DRAWN_AT_ONCE = 1 << 16  # rows: small sources need many passes for an epoch


def mixture_order(sizes: Sequence[int], counts: Sequence[int], seed: int | None, epoch: int) -> Numbers:
    """Return the rows of an epoch, by their numbers over all sources: so many of each.

    Without a seed each source's rows keep their own order.

    Examples
    --------
    >>> mixture_order([2, 10], [3, 3], None, 0), mixture_order([2, 10], [3, 3], None, 1)
    (array([0, 2, 1, 3, 0, 4]), array([1, 5, 0, 6, 1, 7]))
    """
    starts = np.cumsum([0, *sizes])
    drawn: list[Numbers] = []
    places = []
    for source, (size, count) in enumerate(zip(sizes, counts, strict=True)):
        drawn.append(starts[source] + _draws(size, epoch * count, count, None if seed is None else [seed, source]))
        shift = 0.5 if seed is None else np.random.default_rng([seed, epoch, source]).random()
        places.append((np.arange(count) + shift) / max(1, count))
    order: Numbers = np.concatenate(drawn)[np.argsort(np.concatenate(places), kind="stable")]
    return order


def _draws(size: int, first: int, count: int, seed: Sequence[int] | None) -> Numbers:
    """Return some of the rows that a source gives one after the other: from number `first` on."""
    if seed is None:
        return np.arange(first, first + count) % size
    at_once = size * max(1, _DRAWN_AT_ONCE // size)
    pieces: list[Numbers] = [np.arange(0)]
    for number in range(first // at_once, -(-(first + count) // at_once)):
        random = np.random.default_rng([*seed, number])
        if at_once == size:  # several times as fast
            drawn = random.permutation(size)
        else:
            drawn = random.permuted(np.tile(np.arange(size), (at_once // size, 1)), axis=1).reshape(-1)
        start = number * at_once
        pieces.append(drawn[max(0, first - start) : first + count - start])
    return np.concatenate(pieces)
