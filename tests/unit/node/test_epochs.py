import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorflowonspark.errors import SpecError
from tensorflowonspark.node.feed.epochs import more_steps, plan_epoch

rows_of_workers = st.lists(st.integers(0, 500), min_size=1, max_size=5)


@given(rows_of_workers, st.integers(5, 200))
def test_all_workers_take_the_same_steps_and_each_row_once(rows, batch_size):
    plans = [plan_epoch(rows, batch_size, index) for index in range(len(rows))]
    assert len({plan.steps for plan in plans}) == 1
    assert sum(plan.batch_rows for plan in plans) == batch_size
    for plan, count in zip(plans, rows, strict=True):
        assert sum(plan.real_rows(step) for step in range(plan.steps)) == count


@given(rows_of_workers, st.integers(5, 200))
def test_no_step_is_more_than_the_longest_worker_needs_and_no_batch_is_empty(rows, batch_size):
    plans = [plan_epoch(rows, batch_size, index) for index in range(len(rows))]
    for step in range(plans[0].steps):
        assert any(plan.real_rows(step) for plan in plans)
        for plan in plans:
            assert 0 < plan.real_rows(step) + plan.padding(step) <= plan.batch_rows


def test_nearly_even_workers_need_no_padding():
    first, second = (plan_epoch([719, 718], 64, index) for index in range(2))
    assert first.steps == second.steps == 23
    assert not any(plan.padding(step) for plan in (first, second) for step in range(23))


@pytest.mark.parametrize("batch_size", [0, 1, -3, 2.5, "64"])
def test_a_batch_size_that_can_not_be_divided_is_refused(batch_size):
    with pytest.raises(SpecError, match="batch_size="):
        plan_epoch([10, 10], batch_size, 0)


@pytest.mark.parametrize(
    ("rows", "batch_size", "words"),
    [
        ([800, 800, 800], 8, "400 steps, many with fewer rows than batch_size=8: one process takes 300"),
        ([37, 0], 8, "let them have equal numbers of rows"),
        ([19, 18], 8, ""),
        ([800, 800, 800], 9, ""),
        ([37], 8, ""),
    ],
)
def test_more_steps_than_one_process_takes_are_a_warning(rows, batch_size, words):
    text = more_steps(rows, batch_size, plan_epoch(rows, batch_size, 0).steps)
    assert words in text
    assert bool(text) == bool(words)
