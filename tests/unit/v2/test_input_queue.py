"""``DataFeed`` without Spark: batches, partitions, results and ends of feeds."""

import pickle
import threading

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorflowonspark import TFNode
from tensorflowonspark.errors import FeedError
from tensorflowonspark.v2.inlet import Inlet, RowsHeader
from tensorflowonspark.v2.pickled_rows import in_batches
from tests.support.programs import wait_for


class FakeFeed:
    def __init__(self, parts, queue):
        self.parts, self.queue, self.begun = parts, queue, False

    def partitions(self):
        self.begun = True
        for part in self.parts:
            yield in_batches((pickle.dumps(block) for block in part), self.queue)


class FakeContext:
    """A node that is fed lists of partitions, which are lists of blocks, which are lists of rows."""

    def __init__(self, feeds, queue="input"):
        self.fed = [FakeFeed(parts, queue) for parts in feeds]
        self.asked = 0
        self._lock = threading.Lock()

    def serve_batches(self, answerer):
        self.answerer = answerer

    def feeds(self):
        while True:
            with self._lock:
                self.asked += 1
                if self.asked > len(self.fed):
                    return
            yield self.fed[self.asked - 1]


def data_feed(feeds, train_mode=True, **settings):
    return TFNode.DataFeed(Inlet(FakeContext(feeds), ["input", "output", "error"]), train_mode, **settings)


def all_batches(feed, size):
    batches = []
    while not feed.should_stop():
        batches.append(feed.next_batch(size))
    return batches


blocks = st.lists(st.lists(st.integers(), max_size=7), max_size=4)
some_feeds = st.lists(st.lists(blocks, max_size=4), max_size=3)


@settings(deadline=None, max_examples=60)
@given(some_feeds, st.integers(1, 12))
def test_batches_for_training_are_full_across_blocks_partitions_and_feeds(feeds, size):
    rows = [row for parts in feeds for part in parts for block in part for row in block]
    batches = all_batches(data_feed(feeds), size)
    assert [row for batch in batches for row in batch] == rows
    assert all(len(batch) == size for batch in batches[:-1])
    assert len(batches) == len(rows) // size + 1  # the last one is short: it saw the end


@settings(deadline=None, max_examples=60)
@given(some_feeds, st.integers(1, 12))
def test_without_training_batches_end_with_their_partition(feeds, size):
    parts = [[row for block in part for row in block] for parts in feeds for part in parts]
    expected = [part[at : at + size] for part in parts for at in range(0, len(part), size)]
    batches = all_batches(data_feed(feeds, train_mode=False), size)
    assert [batch for batch in batches if batch] == expected


def test_columns_are_those_of_the_mapping_in_the_order_of_their_names():
    feed = data_feed([[[[("a", 1), ("b", 2)]]]], input_mapping={"y": "label", "image": "x"})
    assert feed.next_batch(2) == {"x": ["a", "b"], "label": [1, 2]}
    assert feed.next_batch(2) == {"x": [], "label": []}
    assert feed.should_stop()


def test_an_unknown_queue_and_a_node_that_is_not_fed():
    with pytest.raises(FeedError, match=r"no queue 'inputs'; .*queues=\['input', 'output', 'error'\]"):
        data_feed([], qname_in="inputs")
    with pytest.raises(FeedError, match="input_mode=InputMode.SPARK"):
        TFNode.DataFeed(None)


@pytest.mark.parametrize("taken", [0, 3, 50])
def test_terminate_asks_for_the_feeds_to_come_and_drops_them(taken):
    feed = data_feed([[[[row] for row in range(50)]], [[[1]]]])
    feed.next_batch(taken)
    feed.terminate()
    assert feed.should_stop()
    assert feed.next_batch(5) == []
    context = feed.mgr._context
    wait_for(lambda: context.asked == 3, 5)  # two feeds and the end: none was passed over


def test_an_error_of_the_feed_is_the_programs():
    feed = data_feed([])
    feed._inbox.put(FeedError("the stream broke off"))
    broken = data_feed([[[None]]])  # no pickled rows
    with pytest.raises(TypeError):
        while not broken.should_stop():
            broken.next_batch(1)


# ---- answers


def asked(inlet, rows, *, blocks=2, timeout=5.0):
    """Return what the program answers for a partition, as a task would collect it."""
    step = max(1, len(rows) // blocks)
    pickles = [pickle.dumps(rows[at : at + step]) for at in range(0, len(rows), step)]
    batches = [pa.RecordBatch.from_pydict({"input": pa.array([each], pa.binary())}) for each in pickles]
    answers = inlet.answer(RowsHeader(0, b"", "input", timeout), iter(batches))
    return [result for answer in answers for each in answer.column(0) for result in pickle.loads(each.as_py())]


def serving(program):
    inlet = Inlet(FakeContext([]), ["input"])
    inlet._receiving = True  # no feed, and so no end of it
    threading.Thread(target=program, args=(TFNode.DataFeed(inlet, train_mode=False),), daemon=True).start()
    return inlet


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 40), max_size=4), st.integers(1, 9), st.integers(1, 5))
def test_many_partitions_at_a_time_get_their_own_results(sizes, size, late):
    """Results that are given some batches later belong to the rows that were handed out first."""

    def program(feed):
        held = []
        while True:
            held.append(feed.next_batch(size))
            if len(held) >= late or len(held[-1]) < size:
                for batch in held:
                    feed.batch_results([row * 10 for row in batch])
                held = []

    inlet = serving(program)
    partitions = [[1000 * number + row for row in range(count)] for number, count in enumerate(sizes)]
    # At the end of a partition that is a multiple of the batch size nothing tells the program: it waits for more.
    partitions = [part for part in partitions if late == 1 or len(part) % size]
    found = [None] * len(partitions)

    def ask(number):
        found[number] = asked(inlet, partitions[number])

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(len(partitions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[row * 10 for row in part] for part in partitions]


def test_missing_results_are_an_error_that_counts_them():
    def program(feed):
        feed.batch_results(feed.next_batch(10)[:-1])

    with pytest.raises(
        FeedError, match="given 10 rows of this partition and has answered 9; .*one result for each row"
    ):
        asked(serving(program), list(range(10)), timeout=0.3)


def test_too_many_results_are_the_programs_error():
    feed = data_feed([])
    with pytest.raises(FeedError, match="2 results, and 0 rows wait for one"):
        feed.batch_results([1, 2])


def test_a_program_that_takes_no_rows_is_named():
    inlet = Inlet(FakeContext([]), ["input"])
    with pytest.raises(FeedError, match="taken no row for 0.3 s .*next_batch"):
        asked(inlet, list(range(10)), blocks=10, timeout=0.3)


@pytest.mark.parametrize("how", ["returned", "terminated"])
def test_a_program_that_has_ended_answers_nothing(how):
    inlet = Inlet(FakeContext([]), ["input"])
    if how == "returned":
        inlet.close()
    else:
        TFNode.DataFeed(inlet).terminate()
    with pytest.raises(FeedError, match="its program has returned" if how == "returned" else r"terminate\(\)"):
        asked(inlet, [1, 2])


def test_a_partition_that_waits_when_the_program_ends_learns_it():
    def program(feed):
        feed.next_batch(1)
        feed.terminate()

    with pytest.raises(FeedError, match=r"terminate\(\)"):
        asked(serving(program), list(range(100)), blocks=50)
