from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorflowonspark.node.feed.one_pass import _in_blocks
from tensorflowonspark.node.feed.plan import Step

steps_of_passes = st.lists(
    st.integers(1, 6).flatmap(lambda rows: st.integers(0, rows).map(lambda real: Step(real, rows))), max_size=30
)


@pytest.mark.deep
@given(steps_of_passes, st.integers(1, 5), st.data())
def test_blocks_have_all_steps_in_order_each_when_its_rows_are_there(steps, most, data):
    """Real rows come first in a block, since padding that follows them is one mask."""
    left = sum(step.real for step in steps)
    queue = SimpleNamespace(count=data.draw(st.integers(0, left)))
    left -= queue.count

    def add():
        nonlocal left
        added = data.draw(st.integers(min(1, left), left))
        queue.count, left = queue.count + added, left - added
        return added > 0

    found = []
    for block in _in_blocks(steps, queue, most, add):
        assert block.rows <= queue.count
        assert 0 < len(block.sizes) <= most
        queue.count -= block.rows
        real = block.rows
        for size in block.sizes:
            found.append(Step(min(real, size), size))
            real -= found[-1].real
        assert not real
    assert found == steps
    assert (queue.count, left) == (0, 0)
