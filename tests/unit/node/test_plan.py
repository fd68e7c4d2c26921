from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorflowonspark.errors import SpecError
from tensorflowonspark.feed_messages import Shares
from tensorflowonspark.node.feed.plan import plan_epoch, uneven_rows

rows_of_workers = st.lists(st.integers(0, 500), min_size=1, max_size=5)


def plans_of(rows, batch_size, **options):
    return [plan_epoch(rows, batch_size, index, **options) for index in range(len(rows))]


@given(rows_of_workers, st.integers(5, 200), st.booleans())
def test_all_workers_take_the_same_steps_and_each_row_once(rows, batch_size, in_order):
    plans = plans_of(rows, batch_size, in_order=in_order)
    assert len({plan.steps for plan in plans}) == 1
    for plan, count in zip(plans, rows, strict=True):
        assert sum(step.real for step in plan.steps_from(0)) == count


@given(st.integers(0, 500), st.integers(1, 5), st.integers(5, 200), st.randoms())
def test_rows_that_are_dealt_evenly_take_the_steps_of_one_process(total, workers, batch_size, order):
    """Whoever has the remainder of the division."""
    rows = [total // workers + (worker < total % workers) for worker in range(workers)]
    order.shuffle(rows)
    plans = plans_of(rows, batch_size)
    steps = -(-total // batch_size)
    assert [plan.steps for plan in plans] == [steps] * workers
    for step, taken in enumerate(zip(*(plan.steps_from(0) for plan in plans), strict=True)):
        shares = [plan.shares.rows(step) for plan in plans]
        assert sum(shares) == batch_size
        assert max(shares) - min(shares) <= 1
        assert sum(each.real for each in taken) == min(batch_size, total - step * batch_size)


@given(st.integers(5, 200), st.integers(1, 5), st.integers(0, 500), st.integers(0, 4))
def test_shares_are_counted_as_they_are_dealt(batch_size, workers, count, drawn):
    shares = Shares(batch_size, workers, drawn % workers)
    dealt = [shares.rows(step) for step in range(count // (batch_size // workers) + workers + 1)]
    before = list(accumulate(dealt, initial=0))
    assert before == [shares.before(step) for step in range(len(before))]
    assert shares.full_steps(count) == max(step for step, rows in enumerate(before) if rows <= count)
    assert shares.steps(count) == min(step for step, rows in enumerate(before) if rows >= count)
    assert shares.cycle in before


@given(rows_of_workers, st.integers(5, 200))
def test_no_step_is_more_than_the_longest_worker_needs_and_no_batch_is_empty(rows, batch_size):
    plans = plans_of(rows, batch_size)
    for taken in zip(*(plan.steps_from(0) for plan in plans), strict=True):
        assert any(each.real for each in taken)
        for each, plan in zip(taken, plans, strict=True):
            assert 0 < each.rows <= plan.batch_rows


def test_nearly_even_workers_need_no_padding():
    first, second = (plan_epoch([719, 718], 64, index) for index in range(2))
    assert first.steps == second.steps == 23
    assert all(each.rows == each.real for plan in (first, second) for each in plan.steps_from(0))


@pytest.mark.parametrize("batch_size", [0, 1, -3, 2.5, "64"])
def test_a_batch_size_that_can_not_be_divided_is_refused(batch_size):
    with pytest.raises(SpecError, match="batch_size="):
        plan_epoch([10, 10], batch_size, 0)


@pytest.mark.parametrize(
    ("rows", "batch_size", "words"),
    [
        ([37, 0], 8, "10 steps, many with fewer rows than batch_size=8: one process takes 5"),
        ([37, 0], 8, "let them have equal numbers"),
        ([19, 18], 8, ""),
        ([800, 800, 800], 8, ""),
        ([37], 8, ""),
    ],
)
def test_more_steps_than_one_process_takes_are_a_warning(rows, batch_size, words):
    text = uneven_rows(rows, batch_size, plan_epoch(rows, batch_size, 0).steps)
    assert words in text
    assert bool(text) == bool(words)
