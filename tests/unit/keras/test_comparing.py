"""What differs between the models of several workers before their first step."""

import pytest

from tensorflowonspark.keras.workers import compared

FIRST = [("dense/kernel", False, 1), ("normal/moving_mean", True, 2), ("adam/iteration", False, 3)]


def other(place, checksum):
    return [(path, of, checksum if at == place else known) for at, (path, of, known) in enumerate(FIRST)]


@pytest.mark.parametrize(
    ("of_all", "found"),
    [
        ([FIRST], set()),
        ([FIRST] * 3, set()),
        ([FIRST, other(1, 9), FIRST], {1}),
        ([FIRST, FIRST, other(0, 9)], (2, "dense/kernel")),
        ([FIRST, other(1, 9), other(2, 9)], (2, "adam/iteration")),
        ([FIRST, [("other/name", *rest) for _, *rest in FIRST]], set()),
        ([FIRST, FIRST[:2]], (1, "adam/iteration")),  # its optimizer is not built
        ([FIRST[:2], FIRST], (1, "adam/iteration")),  # that of the first worker is not
    ],
)
def test_a_difference_is_one_of_statistics_or_names_the_worker_and_the_variable(of_all, found):
    assert compared(of_all) == found
