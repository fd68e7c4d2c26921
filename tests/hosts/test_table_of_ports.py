"""Each connection between hosts is in the table of docs/network.md, and each row of the table is seen."""

import json
import re
import socket
import sys
import time
import urllib.parse
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

import tensorflowonspark as tfos
from tests.support.coordinated import Loop, coordinated
from tests.support.paths import ROOT
from tests.support.programs import fit, small_frame, small_model

_SPARK = {"spark.driver.port": "7301", "spark.driver.blockManager.port": "7302", "spark.blockManager.port": "7303"}
_PORTS = {"in step": "7000-7019", "rounds": "7020-7039", "servers": "7040-7059", "jax": "7060-7079"}
_PAGE, _METRICS = 8080, 9100
# What listens there, by "from" and "to" of a row.
_ROWS = {
    ("supervisors, Spark tasks", "the driver"): "driver",
    ("tasks on other hosts, other nodes", "a node"): "rows",
    ("workers in rounds of local SGD", "a worker"): "rounds",
    ("nodes", "a node's TensorFlow (with JAX the first worker's coordinator)"): "TensorFlow",
    ("nodes with GPUs, or on JAX", "nodes"): "Gloo",
    ("supervisors, to find out what is closed", "a node's TensorFlow"): "closed",
    ("you", "TensorBoard beside the chief"): "TensorBoard",
    ("you, Prometheus", "the driver"): "page",
    ("executors", "the driver, and each other"): "Spark",
}
# Only when all nodes have done nothing for `heartbeat_timeout`: test_ports.py has it. NCCL would need GPUs.
_NOT_HERE = {"closed"}
_FETCH = """
import ssl, sys, urllib.request
urllib.request.urlopen(sys.argv[1], timeout=20, context=ssl._create_unverified_context()).read()
"""
_HELLO = bytes.fromhex("16030100310100002d0303") + bytes(32) + bytes.fromhex("0000061301130213030100")


@dataclass(frozen=True)
class Row:
    """A row of the table: what listens, at which ports here, and whether it is encrypted."""

    kind: str
    port: str
    encrypted: str

    def allows(self, port):
        """Whether a port is one of those that the row names."""
        if self.port.startswith("NCCL and Gloo: any"):
            return True
        if "spark." in self.port:
            return port in {int(_SPARK[name]) for name in re.findall(r"`(spark\.[\w.]+)`", self.port)}
        if "dashboard=" in self.port:
            return port in {int(number) for number in re.findall(r"=(\d+)", self.port)}
        assert "`ports`" in self.port or self.port == "as above", self.port
        return 7000 <= port < 7100


def table():
    """Return the rows of the page, by what listens."""
    page = (ROOT / "docs/network.md").read_text()
    lines = page.partition("## Ports and firewalls")[2].partition("\n## ")[0].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    assert cells[0] == ["from", "to", "port", "carries", "encrypted"]
    found = {(cell[0], cell[1]): Row(_ROWS[cell[0], cell[1]], cell[2], cell[4]) for cell in cells[2:]}
    assert found.keys() == _ROWS.keys()
    return {each.kind: each for each in found.values()}


def listening():
    """Return the ports at which this process listens for other hosts."""
    found = psutil.Process().net_connections("tcp")
    return {each.laddr.port for each in found if each.status == "LISTEN" and each.laddr.ip not in ("127.0.0.1", "::1")}


def shown(program):
    """Return a program whose results are the node's address, and what it listened at in the beginning and the end."""

    def call(args, ctx):
        first = listening()
        program(args, ctx)
        return ctx.host, sorted(first), sorted(listening() - first)

    return call


def average(args, ctx):
    model = small_model()
    rows = ctx.dataset(10, features="features", label="label")
    model.fit(rows, epochs=2, verbose=0, callbacks=[tfos.keras.DiLoCo(every=2)])
    ctx.serve(lambda ids: {"twice": 2 * ids}, features="id")


def train_on_jax(args, ctx):
    small_model().fit(ctx.batches(10, features="features", label="label"), epochs=2, verbose=0)


def coordinate(args, ctx, coordinator):
    feed, loop = ctx.feed(), Loop(coordinator)
    loop.to_the_end(feed, iter(loop.dataset(feed)))


def drive(spark, shared):
    """Run each kind of cluster; return what each node listened at, and what the driver did."""
    rows = small_frame(spark, [40, 30, 50, 20]).repartition(6).cache()
    found, drivers, before = {}, {}, listening()

    def begin(name, cluster):
        drivers[name] = sorted(listening() - before - {_PAGE, _METRICS})
        return cluster

    step = {
        "network": tfos.Network(ports=_PORTS["in step"], tls=True),
        "dashboard": tfos.Dashboard(page_port=_PAGE, metrics_port=_METRICS),
        "tensorboard": f"{shared}/logs",
    }
    with tfos.Cluster(spark, shown(fit), {"batch_size": 10}, num_workers=2, **step) as cluster:
        begin("in step", cluster).train(rows, feed_timeout=120)
        while cluster.tensorboard_url is None:
            time.sleep(0.1)
        urls = {"page": cluster.dashboard_url, "metrics": cluster.metrics_url, "TensorBoard": cluster.tensorboard_url}
        print("visit", json.dumps(urls), flush=True)
        while not Path(shared, "visited").exists():
            time.sleep(0.1)
        found["in step"] = cluster.join()
    with tfos.Cluster(spark, shown(average), num_workers=2, network=tfos.Network(ports=_PORTS["rounds"])) as cluster:
        begin("rounds", cluster).train(rows, feed_timeout=120)
        assert cluster.inference(spark.range(0, 300, 1, 6), "twice long").count() == 300
    found["rounds"] = cluster.join()
    servers = {"num_workers": 1, "num_ps": 1, "chief": True, "network": tfos.Network(ports=_PORTS["servers"])}
    with tfos.Cluster(spark, coordinated(coordinate), **servers) as cluster:
        begin("servers", cluster).train(rows, feed_timeout=120)
        found["servers"] = [[each.host, each.port] for each in cluster.nodes]
    jax = {"env": {"KERAS_BACKEND": "jax"}, "network": tfos.Network(ports=_PORTS["jax"])}
    with tfos.Cluster(spark, shown(train_on_jax), num_workers=2, **jax) as cluster:
        begin("jax", cluster).train(rows, feed_timeout=120)
        found["jax"] = cluster.join()
    return found, drivers


def of_sparks_cluster(cluster, connections):
    """Return the connections to Spark's master, which belong to the cluster and not to an application."""
    return {each for each in connections if each[2] == int(cluster.master.rpartition(":")[2])}


def sources(kind, port, places, cluster):
    """Return the addresses from which a row lets something connect."""
    if kind in ("TensorFlow", "rounds"):
        (name,) = [each for each, ports in _PORTS.items() if int(ports[:4]) <= port <= int(ports[5:])]
        return places[name]
    return places["jax"] if kind == "Gloo" else {each.address for each in cluster.hosts}


def all_listeners(cluster):
    """Return the addresses and ports at which something of ours listens now."""
    found = set()
    for host in cluster.hosts:
        ports = {int(line.split()[3].rpartition(":")[2]) for line in host.run("ss", "-Hltn").splitlines()}
        found |= {(host.address, port) for port in ports if 7000 <= port < 7100 or port in (_PAGE, _METRICS)}
    return found


def greets_with_tls(address, port):
    """Return whether a listener answers the first message of TLS with one of TLS."""
    with socket.create_connection((address, port), 10) as connection:
        connection.settimeout(5)
        connection.sendall(_HELLO)
        try:
            return connection.recv(1)[:1] in (b"\x15", b"\x16")
        except OSError:
            return False


def listeners(found, drivers, urls, own):
    """Return what listens at each address and port, and the hosts that have nodes, by the cluster's name."""
    kinds, places = {}, {}
    for ports in drivers.values():
        kinds |= {(own, port): "driver" for port in ports}
    kinds |= {(own, _PAGE): "page", (own, _METRICS): "page"}
    board = urllib.parse.urlsplit(urls["TensorBoard"])
    kinds[board.hostname, board.port] = "TensorBoard"
    later = {"in step": "TensorFlow", "rounds": "rounds", "jax": "TensorFlow"}
    for name, kind in later.items():
        places[name] = {host for host, *_ in found[name].values()}
        for host, first, after in found[name].values():
            assert len(first) == 1
            kinds[host, first[0]] = "rows"
            low, high = map(int, _PORTS[name].split("-"))
            kinds |= {(host, port): kind if low <= port <= high else "Gloo" for port in after}
    places["servers"] = {host for host, _ in found["servers"]}
    low, high = map(int, _PORTS["servers"].split("-"))
    for host in places["servers"]:  # whose programs end with the cluster, and tell nothing
        free = [(host, port) for port in range(low, high + 1) if (host, port) not in kinds]
        kinds |= {each: "TensorFlow" if list(each) in found["servers"] else "rows" for each in free}
    return kinds, places


@pytest.mark.slow
@pytest.mark.timeout(450)
def test_the_table_has_each_connection_between_hosts(cluster):
    pytest.importorskip("jax")
    pytest.importorskip("cryptography")
    rows, shared = table(), cluster.shared
    one, _, three = cluster.hosts
    with cluster.network.connections() as seen:
        driver = cluster.start(drive, shared, settings=_SPARK, seconds=430)
        driver.wait_for("visit {", 300)
        urls = json.loads(re.search(r"^visit ({.*})$", driver.output, re.MULTILINE)[1])
        for url in urls.values():
            visitor = one if f"//{three.address}:" in url else three
            visitor.run(sys.executable, "-c", _FETCH, url)
        greeted = {each: greets_with_tls(*each) for each in all_listeners(cluster)}
        (shared / "visited").touch()
        found, drivers = driver.result()
        connections = seen()
    kinds, places = listeners(found, drivers, urls, one.address)
    strays, met = [], set()
    for source, target, port in sorted(connections - of_sparks_cluster(cluster, connections)):
        kind = "Spark" if rows["Spark"].allows(port) else kinds.get((target, port), "unknown")
        if kind in rows and rows[kind].allows(port) and source in sources(kind, port, places, cluster):
            met.add(kind)
        else:
            strays.append((source, target, port, kind))
    assert not strays, (strays, kinds)
    assert met == rows.keys() - _NOT_HERE
    for place, answer in greeted.items():
        assert rows[kinds[place]].encrypted == ("with `tls`" if answer else "never"), (place, kinds[place])
