"""A partition's rows are answered in order, batch by batch, whatever the program's function takes at once."""

from threading import Barrier, Thread

import numpy as np
import pyarrow as pa
import pytest

from tensorflowonspark.errors import FeedError
from tensorflowonspark.feed_messages import InferenceHeader
from tensorflowonspark.node.feed.inference_server import FunctionServer
from tensorflowonspark.node.feed.selection import FeatureOptions

WANTED = pa.schema({"y": pa.float32()})


def answers(function, batches, *, batch_rows=4, wanted=WANTED, **options):
    header = InferenceHeader(5, wanted.serialize().to_pybytes())
    return list(FunctionServer(function, batch_rows, FeatureOptions(**options)).answer(header, iter(batches)))


def batch(*values):
    return pa.record_batch({"x": list(values)})


def test_each_batch_has_one_of_results_in_order():
    sizes = []

    def double(x):
        sizes.append(len(x))
        return x * 2

    found = answers(double, [batch(*range(10)), batch(10, 11)])
    assert [each.to_pydict() for each in found] == [{"y": [2 * x for x in range(10)]}, {"y": [20, 22]}]
    assert sizes == [4, 4, 2, 2]


def test_a_batch_without_rows_is_answered_by_one():
    (found,) = answers(lambda x: x, [batch(1).slice(1)])
    assert (found.num_rows, found.schema) == (0, WANTED)


def test_several_columns_structs_too_come_as_a_dict():
    rows = pa.record_batch({"s": pa.array([{"a": 1}, {"a": 2}]), "b": [10, 20]})
    (found,) = answers(lambda columns: columns["s.a"] + columns["b"], [rows])
    assert found.to_pydict() == {"y": [11, 22]}


def test_ragged_rows_come_as_arrays():
    rows = pa.record_batch({"x": [[1, 2], [3]]})
    (found,) = answers(lambda x: [row.sum() for row in x], [rows], shapes={"x": (None,)})
    assert found.to_pydict() == {"y": [3, 3]}


def test_a_null_is_named_by_its_place_in_the_partition():
    with pytest.raises(FeedError, match="column 'x' holds 1 null, the first in row 6 of partition 5: df.where"):
        answers(lambda x: x, [batch(1, 2, 3, 4, 5), batch(6, None)])
    (found,) = answers(lambda x: x, [batch(6, None)], fill={"x": -1})
    assert found.to_pydict() == {"y": [6, -1]}


def test_what_the_function_raises_is_reported_with_the_rows():
    def fail(x):
        raise KeyError("oops")

    with pytest.raises(FeedError, match=r"inference raised KeyError: 'oops' \(rows 0 to 1 of partition 5\)") as caught:
        answers(fail, [batch(1, 2)])
    assert isinstance(caught.value.__cause__, KeyError)


def test_results_that_do_not_fit_are_reported_with_the_rows():
    with pytest.raises(FeedError, match=r"4 rows went in, and 3 values came out: .* \(rows 4 to 7 of partition 5\)"):
        answers(lambda x: x if x[0] < 4 else x[1:], [batch(*range(10))])


def test_the_function_is_called_by_one_partition_at_a_time():
    inside, both = [], Barrier(2)

    def function(x):
        inside.append(1)
        assert len(inside) == 1
        inside.pop()
        return x

    server = FunctionServer(function, 1, FeatureOptions())
    header = InferenceHeader(0, WANTED.serialize().to_pybytes())
    rows = []

    def ask():
        both.wait(10)
        rows.extend(server.answer(header, iter([batch(*range(200))])))

    threads = [Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert [each.column("y").to_pylist() for each in rows] == [list(np.arange(200.0))] * 2
