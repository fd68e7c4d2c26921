"""The contender of one revision: calls of a server in a process of its own, over a port, over TLS and a Unix socket.

    python -m benchmarks.connections.contender

Run with the library of any revision from 3.0.0rc1 on (PYTHONPATH).
"""

import json
import subprocess
import sys
import tempfile
import time
from contextlib import suppress

import numpy as np
import pyarrow as pa

from benchmarks.common.rounds import serve_rounds

_ROWS, _WIDTH = 10_000, 784


def serve(way):
    """Serve calls until standard input ends; print the address."""
    from tensorflowonspark import transport

    known = transport.Credentials.from_text(sys.stdin.readline())

    def echo(channel):
        with suppress(transport.ConnectionLost):
            while True:
                channel.send(channel.receive())

    address = f"{tempfile.mkdtemp()}/socket" if way == "unix" else ("127.0.0.1", 0)
    server = transport.Server(
        address,
        known,
        on_channel=echo,
        on_put=lambda header, schema, items: sum(batch.num_rows for batch in items),
        on_exchange=lambda header, batches: batches,
    )
    print(json.dumps(address if isinstance(address, str) else ["127.0.0.1", server.port]), flush=True)
    sys.stdin.read()


class Client:
    """Calls of a server over one way."""

    def __init__(self, way):
        from tensorflowonspark import transport

        self._transport = transport
        self._known = transport.new_credentials(tls=way == "tls")
        self._server = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.connections.contender", way],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._server.stdin.write(f"{self._known.to_text()}\n")
        self._server.stdin.flush()
        address = json.loads(self._server.stdout.readline())
        self._address = address if isinstance(address, str) else tuple(address)
        self._connection = transport.connect(self._address, self._known)
        self._channel = self._connection.channel()
        values = np.random.default_rng(1).random(_ROWS * _WIDTH, np.float32)
        rows = pa.FixedSizeListArray.from_arrays(pa.array(values), _WIDTH)
        self._batch = pa.record_batch([rows], ["x"])

    def figures(self):
        """Return the figures of one round."""
        return {
            "message": self._each(2000, self._send_message) * 1e6,
            "connect": self._each(40, self._connect) * 1e3,
            "part": self._each(200, lambda: self._put(self._batch.slice(0, 64), 1)) * 1e6,
            "rows": self._speed(16 * self._batch.nbytes, lambda: self._put(self._batch, 16)),
            "small": self._speed(
                2000 * self._batch.slice(0, 64).nbytes, lambda: self._put(self._batch.slice(0, 64), 2000)
            ),
            "answers": self._speed(200 * self._batch.slice(0, 1000).nbytes, self._exchange),
        }

    def _each(self, times, call):
        begin = time.perf_counter()
        for _ in range(times):
            call()
        return (time.perf_counter() - begin) / times

    def _speed(self, size, call):
        return size / self._each(1, call) / 1e6

    def _send_message(self):
        self._channel.send(("a message", 1))
        self._channel.receive()

    def _connect(self):
        connection = self._transport.connect(self._address, self._known, identity="")
        channel = connection.channel()
        channel.send(1)
        channel.receive()
        channel.close()
        connection.close()

    def _put(self, batch, times):
        stream = self._connection.put("header", batch.schema)
        for _ in range(times):
            stream.write(batch)
        assert stream.finish() == times * batch.num_rows

    def _exchange(self):
        batch = self._batch.slice(0, 1000)
        exchange = self._connection.exchange("header", batch.schema)
        for _ in range(200):
            assert sum(each.num_rows for each in exchange.request(batch)) == 1000
        exchange.close()

    def close(self):
        """End the server."""
        self._server.stdin.close()
        self._server.wait(10)


def weight(_request):
    """Return the megabytes and the seconds of processor time that a supervisor's imports take."""
    program = (
        "import time; import tensorflowonspark.supervisor.__main__, psutil; "
        "print(psutil.Process().memory_info().rss / 2**20, time.process_time())"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    size, seconds = map(float, done.stdout.split())
    return {"megabytes": size, "seconds": seconds}


def main():
    """Answer requests for rounds: over a way, or of a supervisor's weight."""
    clients = {}

    def run_round(request):
        way = request["way"]
        if way == "supervisor":
            return weight(request)
        if way not in clients:
            clients[way] = Client(way)
        return clients[way].figures()

    serve_rounds(run_round)
    for each in clients.values():
        each.close()


if __name__ == "__main__":
    serve(sys.argv[1]) if len(sys.argv) > 1 else main()
