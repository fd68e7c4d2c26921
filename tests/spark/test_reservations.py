"""Slots that are reserved for a thread, in a real application: Spark's own threads inherit them."""

import threading

import pytest
from pyspark import InheritableThread

import tensorflowonspark as tfos
from tensorflowonspark.driver.spark.slots import ApplicationSlots, Reservation, reserved

pytestmark = [pytest.mark.masters("local"), pytest.mark.smoke]


def test_threads_of_spark_inherit_a_reservation_and_others_do_not(spark):
    context, found = spark.sparkContext, {}
    slots = ApplicationSlots(context)

    def look(name):
        found[name] = ApplicationSlots(context).reservation()

    def run(kind, name):
        thread = kind(target=look, args=(name,))
        thread.start()
        thread.join()

    lease = slots.acquire("a trial", 3, 3, lambda: None)
    reservation = Reservation(lease)
    with reserved(context, reservation):
        run(InheritableThread, "spark")
        run(threading.Thread, "plain")
        assert (slots.share(), slots.reservation()) == (3, reservation)
        with pytest.raises(tfos.SlotsError, match="needs 4 task slots.*has 3: that is what a trial has reserved"):
            slots.acquire("a cluster", 4, 4, lambda: None)
        own = slots.acquire("a cluster", 2, 8, lambda: None)
        assert (own.count, slots.ledger.held()) == (3, [lease])
        own.release()
    run(InheritableThread, "afterwards")
    assert found == {"spark": reservation, "plain": None, "afterwards": None}
    assert (slots.share(), slots.ledger.held()) == (4, [])


def test_a_search_that_its_own_thread_leaves_no_slot_fails_at_once(spark):
    slots = ApplicationSlots(spark.sparkContext)
    lease = slots.acquire("cluster 'outer' (3 workers)", 3, 3, lambda: None)
    slots.require(1, 60)
    with pytest.raises(
        tfos.SlotsError, match=r"has 1: cluster 'outer' \(3 workers\) of the same thread has the others"
    ):
        slots.require(2, 60)
    lease.release()
    with pytest.raises(tfos.SlotsError, match="ask for a larger master"):
        slots.require(5, 60)


def test_an_application_that_has_ended_is_named():
    class Ended:
        master, _jsc = "local[2]", None

    with pytest.raises(tfos.ClusterError, match="the Spark application has ended while a cluster asked"):
        ApplicationSlots(Ended()).capacity()
