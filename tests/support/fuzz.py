"""Fuzzing: a test draws some inputs at once, and goes on for TFOS_TEST_FUZZ_SECONDS with other seeds."""

import os
import time

import hypothesis

SECONDS = float(os.environ.get("TFOS_TEST_FUZZ_SECONDS", "0"))


def fuzz(inputs, check, kept=(), examples=100):
    """Check inputs that hypothesis draws, and those that are kept; print how many there were.

    Parameters
    ----------
    inputs : hypothesis strategy
        Draws them.
    check : callable
        Fails for an input that shows a fault.
    kept : iterable
        Inputs that have shown one, or that few draws would find.
    examples : int
        How many are drawn in a run of the tests.
    """
    count = 0
    begin = time.monotonic()
    for each in kept:
        check(each)
    turn = 0
    while not turn or time.monotonic() < begin + SECONDS:

        @hypothesis.seed(turn)
        @hypothesis.settings(max_examples=examples, database=None)
        @hypothesis.given(inputs)
        def checked(drawn):
            nonlocal count
            count += 1
            check(drawn)

        checked()
        turn += 1
    print(f"{count} inputs in {time.monotonic() - begin:.0f} s")
