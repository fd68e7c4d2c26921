"""A task's rows and their results, where a node is lost at the edges of the dialogue."""

from contextlib import nullcontext
from types import SimpleNamespace

import pyarrow as pa

from tensorflowonspark.task import inference
from tensorflowonspark.transport import ConnectionLost


def test_a_node_that_is_lost_after_all_results_costs_no_task(monkeypatch):
    class Exchange:
        def request(self, batch):
            return [batch]

        def close(self):
            raise ConnectionLost("the connection failed: Connection reset by peer")

    node = SimpleNamespace(exchange=lambda header, schema: Exchange())
    monkeypatch.setattr("pyspark.TaskContext.get", lambda: SimpleNamespace(partitionId=lambda: 3))
    monkeypatch.setattr(inference, "connect_to", lambda endpoint, credentials: nullcontext(node))
    monkeypatch.setattr(inference, "near", lambda endpoints: True)
    monkeypatch.setattr(inference, "choose", lambda endpoints, partition: endpoints[0])
    rows = pa.record_batch({"x": [1, 2]})
    (found,) = inference.infer_partition(("a node",), None, [], b"", iter([rows]))
    assert found.equals(rows)
