"""A check after each draw of failures."""

import pytest

from tests.support.processes import check_nothing_left


@pytest.fixture(autouse=True)
def nothing_left(request):
    """Fail a test after which a process or a directory of ours is still there."""
    yield
    check_nothing_left(request.node.name)
