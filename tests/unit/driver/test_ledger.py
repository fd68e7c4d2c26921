"""The ledger of slots: all at once and in order; never too many, no wait that can't end, no slot that is lost."""

import gc
import random
import threading
import time
from contextlib import suppress
from threading import Event, Thread

import pytest

import tensorflowonspark as tfos
from tensorflowonspark.driver.spark import ledger as module
from tensorflowonspark.driver.spark.ledger import SlotLedger, SlotRequest
from tests.support.backend import cluster_on
from tests.support.ledger import Application, ask, in_thread
from tests.support.programs import wait_for
from tests.support.scripted import returns

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """A wait is looked at after a hundredth of a second."""
    monkeypatch.setattr(module, "_CHECK_SECONDS", 0.01)


def test_slots_are_granted_in_the_order_of_the_requests():
    ledger, order = SlotLedger(), []
    first = ledger.acquire(ask("first", 3, of=4))

    def take(name, needed):
        lease = ledger.acquire(ask(name, needed, of=4))
        order.append(name)
        time.sleep(0.05)
        lease.release()

    threads = []
    for name, needed in [("large", 4), ("small", 1), ("other", 2)]:
        threads.append(in_thread(take, name, needed))
        wait_for(lambda: len(ledger._queue) == len(threads))
    assert not order  # one slot is free, but the small request came after the large one
    first.release()
    for thread in threads:
        thread.join(10)
    assert order[0] == "large"
    assert sorted(order) == ["large", "other", "small"]
    assert not ledger.held()


def test_an_elastic_request_takes_what_is_free_and_at_least_its_minimum():
    ledger = SlotLedger()
    fixed = ledger.acquire(ask("fixed", 3, of=8))
    elastic = ledger.acquire(ask("elastic", 2, 8, of=8))
    assert (elastic.count, elastic.waited) == (5, False)
    fixed.release()
    elastic.grow(8)
    assert elastic.count == 8
    elastic.shrink(2)
    assert ledger.acquire(ask("next", 6, of=8)).count == 6


def test_a_request_that_nothing_stands_before_does_not_wait_for_executors_here():
    assert SlotLedger().acquire(ask("alone", 4, of=1)).count == 4


@pytest.mark.parametrize("release", ["release", "forget"])
def test_a_lease_ends_also_when_it_is_forgotten(release):
    ledger = SlotLedger()
    leases = [ledger.acquire(ask("held", 2, of=2))]
    waiting = in_thread(lambda: leases.append(ledger.acquire(ask("next", 2, of=2))))
    wait_for(lambda: ledger._queue)
    if release == "release":
        leases[0].release()
        leases[0].release()
    leases.pop(0)
    gc.collect()
    waiting.join(10)
    assert [each.request.name for each in ledger.held()] == ["next"]


def test_a_thread_that_holds_the_slots_it_waits_for_fails_at_once():
    ledger = SlotLedger()
    held = ledger.acquire(ask("cluster 'outer' (2 workers)", 2, of=3))
    begin = time.monotonic()
    words = r"needs 2 task slots .* has 1: cluster 'outer' \(2 workers\) of the same thread has 2 more.*end it first"
    with pytest.raises(tfos.SlotsError, match=words):
        ledger.acquire(ask("inner", 2, of=3))
    assert time.monotonic() - begin < 2
    assert ledger.acquire(ask("small", 1, of=3)).count == 1
    held.release()


def test_threads_that_wait_for_each_other_do_not_wait_for_ever():
    ledger, both, errors = SlotLedger(), threading.Barrier(2), []

    def take():
        one = ledger.acquire(ask("one", 2, of=4))
        both.wait(10)
        try:
            ledger.acquire(ask("two", 2, of=4)).release()
        except tfos.SlotsError as error:
            errors.append(error)
        one.release()

    threads = [in_thread(take) for _ in range(2)]
    for thread in threads:
        thread.join(10)
    assert len(errors) == 1  # the other one then has its slots
    assert not ledger.held()


def test_a_wait_ends_with_what_its_check_raises():
    ledger, cancelled = SlotLedger(), Event()
    held = ledger.acquire(ask("held", 2, of=2))

    def check():
        if cancelled.is_set():
            raise tfos.ClusterError("the cluster has been shut down")

    errors = []

    def take():
        try:
            ledger.acquire(SlotRequest("late", 2, 2, lambda: 2, check=check))
        except tfos.ClusterError as error:
            errors.append(error)

    thread = in_thread(take)
    wait_for(lambda: ledger._queue)
    cancelled.set()
    thread.join(10)
    assert len(errors) == 1
    assert not ledger._queue
    assert ledger.held() == [held]


def test_a_long_wait_is_logged_with_the_holder(monkeypatch, caplog):
    monkeypatch.setattr(module, "_FIRST_REPORT_SECONDS", 0.05)
    ledger = SlotLedger()
    held = ledger.acquire(ask("cluster 'train' (2 workers)", 2, of=2))
    thread = in_thread(lambda: ledger.acquire(ask("cluster 'other' (1 worker)", 1, of=2)))
    wait_for(lambda: caplog.messages)
    text = caplog.messages[0]
    assert "cluster 'other' (1 worker) has waited 0 s for 1 of the 2 task slots of the Spark application" in text
    assert "held by cluster 'train' (2 workers) (2 slots for 0 s)" in text
    held.release()
    thread.join(10)


def test_tasks_with_gpus_share_the_slots_of_all_tasks_or_have_executors_of_their_own():
    ledger = SlotLedger()
    gpus = ledger.acquire(SlotRequest("gpus", 2, 2, lambda: 2, pool=1, shared=lambda: 4))
    assert ledger.acquire(ask("processors", 1, 4, of=4)).count == 2
    gpus.release()
    apart = ledger.acquire(SlotRequest("apart", 2, 2, lambda: 2, pool=2))
    assert apart.limit() == 2


@pytest.mark.parametrize("seed", range(20))
def test_random_clusters_neither_hold_too_many_slots_nor_wait_for_ever(seed):
    """Elastic, fixed, cancelled and nested ones, in threads, on executors that come and go."""
    draw = random.Random(seed)
    total = draw.randint(2, 8)
    present, ledger, done = [total], SlotLedger(), []

    def check_count():
        assert sum(each.count for each in ledger.held()) <= total

    def run(number):
        own = random.Random(f"{seed} {number}")
        for _ in range(6):
            needed = own.randint(1, total)
            wanted = own.choice([needed, total])
            until = time.monotonic() + own.choice([0.02, 20.0, 20.0])

            def check(until=until):
                if time.monotonic() > until:
                    raise InterruptedError

            try:
                lease = ledger.acquire(SlotRequest(f"{number}", needed, wanted, lambda: present[0], check=check))
            except InterruptedError:
                continue
            check_count()
            time.sleep(own.random() * 0.004)
            if own.random() < 0.3:
                with suppress(tfos.SlotsError):  # a cluster in the block of another one
                    inner = SlotRequest(f"{number} inner", own.randint(1, total), total, lambda: total)
                    ledger.acquire(inner).release()
            check_count()
            lease.release()
        done.append(number)

    threads = [in_thread(run, number) for number in range(8)]
    while any(each.is_alive() for each in threads):
        present[0] = draw.choice([total, total, max(1, total - 1)])
        time.sleep(0.005)
    present[0] = total
    assert len(done) == 8
    assert not ledger.held()
    assert not ledger._queue


# ---- clusters


def test_clusters_that_hold_their_slots_run_one_after_the_other():
    shared = Application(4)
    results = []

    def run(number):
        cluster = cluster_on(shared.backend(*[returns(number)] * 2), num_workers=2, nodes=tfos.Nodes(hold=True))
        with cluster:
            shared.check()
            time.sleep(0.02)
        results.append(number)

    threads = [in_thread(run, number) for number in range(8)]
    for thread in threads:
        thread.join(30)
    assert sorted(results) == list(range(8))
    assert not shared.ledger.held()


def test_a_detached_cluster_gives_its_slots_back_when_it_is_up():
    shared = Application(2)
    with cluster_on(shared.backend(*[returns(1)] * 2), num_workers=2):
        assert not shared.ledger.held()
        with cluster_on(shared.backend(*[returns(2)] * 2), num_workers=2):
            pass


def test_a_held_cluster_in_the_block_of_another_one_fails_at_once():
    shared = Application(2)
    with cluster_on(shared.backend(*[returns(1)] * 2), num_workers=2, nodes=tfos.Nodes(hold=True)):
        with pytest.raises(tfos.SlotsError, match=r"cluster 'program' \(2 workers\) of the same thread has 2 more"):
            cluster_on(shared.backend(returns(2)), num_workers=1, nodes=tfos.Nodes(hold=True)).start()
    assert not shared.ledger.held()


def test_a_cluster_that_is_ended_while_it_waits_leaves_the_queue():
    shared, errors = Application(2), []
    waiting = cluster_on(shared.backend(returns(2)), num_workers=1, nodes=tfos.Nodes(hold=True))

    def start():
        try:
            waiting.start()
        except tfos.ClusterError as error:
            errors.append(error)

    with cluster_on(shared.backend(*[returns(1)] * 2), num_workers=2, nodes=tfos.Nodes(hold=True)):
        thread = Thread(target=start, daemon=True)
        thread.start()
        wait_for(lambda: shared.ledger._queue)
        waiting._monitor.end.cancel(tfos.ClusterError("not wanted any more"))
        thread.join(10)
    assert [str(each) for each in errors] == ["not wanted any more"]
    assert not shared.ledger.held()


@pytest.mark.parametrize("hold", [True, False])
def test_a_start_that_fails_leaves_no_slot_behind(hold):
    shared = Application(2)
    with pytest.raises(tfos.StartError, match="no memory"):
        cluster_on(
            shared.backend(returns(1), problems=["h7: no memory"]), num_workers=1, nodes=tfos.Nodes(hold=hold)
        ).start()
    assert not shared.ledger.held()
