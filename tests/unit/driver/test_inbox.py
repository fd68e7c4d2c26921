"""Events of the driver: one after the other, whoever brings them; and threads that wait for what they change."""

import time
from threading import Thread, get_ident

import pytest

from tensorflowonspark.driver.inbox import Inbox


@pytest.fixture
def inbox():
    one = Inbox(lambda error: one.errors.append(str(error)))
    one.errors = []
    one.start()
    yield one
    one.close()


def test_an_event_that_comes_during_another_one_waits_for_its_end(inbox):
    order = []

    def event():
        inbox.put(lambda: order.append("second"))
        order.append("first")

    inbox.handle(event)
    assert inbox.wait(lambda: order == ["first", "second"], 5)


def test_a_message_is_handled_by_the_thread_that_brings_it_and_all_else_by_another(inbox):
    threads = []
    inbox.handle(lambda: threads.append(get_ident()))
    assert threads == [get_ident()]
    inbox.put(lambda: threads.append(get_ident()))
    assert inbox.wait(lambda: len(threads) == 2, 5)
    assert threads[1] != get_ident()


def test_events_never_overlap(inbox):
    inside, overlaps, done = [], [], []

    def event():
        overlaps.extend(inside)
        inside.append(None)
        time.sleep(1e-4)
        inside.pop()
        done.append(None)

    def bring():
        for _ in range(50):
            inbox.handle(event)

    threads = [Thread(target=bring) for _ in range(4)]
    for each in threads:
        each.start()
    for _ in range(50):
        inbox.put(event)
    assert inbox.wait(lambda: len(done) == 250, 20)
    assert not overlaps


def test_timers_go_off_in_the_order_of_their_times(inbox):
    order = []
    for seconds in (0.2, 0.05, 0.1):
        inbox.handle(lambda seconds=seconds: inbox.later(seconds, lambda: order.append(seconds)))
    assert inbox.wait(lambda: len(order) == 3, 5)
    assert order == [0.05, 0.1, 0.2]


def test_after_an_error_the_next_event_is_handled(inbox):
    inbox.put(lambda: 1 / 0)
    assert inbox.wait(lambda: inbox.errors == ["division by zero"], 5)
    done = []
    inbox.put(lambda: done.append(None))
    assert inbox.wait(lambda: bool(done), 5)


def test_a_wait_within_a_condition_holds_up_no_event(inbox):
    """As that of a signal's handler of the user's, which ends the cluster while the main thread looks at its state."""
    done = []
    inbox.put(lambda: inbox.later(0.05, lambda: done.append(None)))
    assert inbox.wait(lambda: inbox.wait(lambda: bool(done), 5), 5)
    with inbox.lock:
        assert done


def test_a_wait_ends_with_its_time(inbox):
    begin = time.monotonic()
    assert not inbox.wait(lambda: False, 0.1)
    assert 0.1 <= time.monotonic() - begin < 5
    assert not inbox.wait(lambda: False, 0)
