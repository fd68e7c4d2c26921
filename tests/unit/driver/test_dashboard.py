"""The dashboard's servers: who may read, what they send, and when they end."""

import http.client
import logging
import os
import socket
import subprocess
import sys
import time
from concurrent.futures import Future
from contextlib import closing, suppress
from threading import Thread
from urllib.parse import urlsplit

import pytest

import tensorflowonspark as tfos
from tensorflowonspark.config import ClusterConfig, ClusterSpec
from tensorflowonspark.driver.dashboard import page_server as server_module
from tensorflowonspark.driver.dashboard import service
from tensorflowonspark.driver.placement import Placement
from tests.support.backend import cluster_on
from tests.support.pages import get, state, states
from tests.support.paths import ROOT
from tests.support.played_training import PlayedTraining
from tests.support.programs import wait_for
from tests.support.scripted import ScriptedBackend, returns

# ---- who may read


def test_the_url_has_a_token_of_its_own(served):
    training, dashboard = served
    other = training.serve()
    assert len(urlsplit(dashboard.url).query) > len("token=") + 30
    assert urlsplit(other.url).query != urlsplit(dashboard.url).query
    other.close()


@pytest.mark.parametrize(
    "path", ["/", "/state", "/node?number=0", "/metrics", "/report", "/other", "/?token=wrong", "/?token="]
)
def test_without_the_token_nothing_is_shown(served, path):
    _, dashboard = served
    status, headers, body = get(dashboard.url, path)
    assert status == 403
    assert b"dashboard_url" in body
    assert b"worker" not in body
    assert headers["Content-Type"] == "text/plain; charset=utf-8"


def test_the_token_may_be_a_header(served):
    _, dashboard = served
    token = urlsplit(dashboard.url).query.partition("=")[2]
    assert get(dashboard.url, "/", Authorization=f"Bearer {token}")[0] == 200
    assert get(dashboard.url, "/", Authorization=f"Bearer {token}x")[0] == 403
    assert get(dashboard.url, "/", Authorization=f"Basic {token}")[0] == 403
    assert get(dashboard.url, "/", Authorization="Bearer \xff")[0] == 403


def peer_of(dashboard):
    parts = urlsplit(dashboard.url)
    return socket.create_connection((parts.hostname, parts.port), timeout=20)


def test_a_request_before_the_token_has_so_many_bytes(served):
    """Not a hundred headers of 64 kB each, times 64 connections."""
    _, dashboard = served
    with peer_of(dashboard) as peer, suppress(ConnectionError):
        peer.sendall(b"GET / HTTP/1.1\r\n")
        for number in range(100):
            peer.sendall(b"h%d: %s\r\n" % (number, b"x" * 60_000))
            time.sleep(0.01)
        pytest.fail("100 headers of 60 kB were taken")
    assert get(dashboard.url)[0] == 200


def test_a_request_before_the_token_has_so_much_time(served, monkeypatch):
    """However it is divided: each byte used to begin the time anew."""
    _, dashboard = served
    monkeypatch.setattr(server_module, "_REQUEST_SECONDS", 1.0)
    began = time.monotonic()
    with peer_of(dashboard) as peer, suppress(ConnectionError):
        peer.sendall(b"GET / HTTP/1.1\r\nh: ")
        while time.monotonic() < began + 15:
            peer.sendall(b"x")
            time.sleep(0.1)
    assert time.monotonic() - began < 10


def test_the_token_is_none_of_the_clusters_secrets():
    backend = ScriptedBackend(returns(1))
    with cluster_on(backend, dashboard=True) as cluster:
        assert cluster._credentials.token not in cluster.dashboard_url
        assert get(cluster.dashboard_url, f"/?token={cluster._credentials.token}")[0] == 403


def test_the_environment_may_fix_the_token(training, monkeypatch):
    monkeypatch.setenv("TFOS_DASHBOARD_TOKEN", "a-token-for-prometheus")
    with closing(training.serve()) as dashboard:
        assert dashboard.url.endswith("/?token=a-token-for-prometheus")
        assert get(dashboard.url)[0] == 200


@pytest.mark.parametrize("token", ["", "short", "a token with spaces in it", "länger-als-sechzehn"])
def test_a_token_that_can_be_guessed_or_is_no_part_of_a_url_is_refused(training, monkeypatch, token):
    monkeypatch.setenv("TFOS_DASHBOARD_TOKEN", token)
    with pytest.raises(tfos.StartError, match="TFOS_DASHBOARD_TOKEN has .* expected at least 16"):
        training.serve()


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD", "OPTIONS", "NONSENSE"])
def test_only_get_is_answered(served, method):
    _, dashboard = served
    status, headers, _ = get(dashboard.url, method=method)
    assert status == 405
    assert headers["Content-Type"] == "text/plain; charset=utf-8"


def test_the_headers_forbid_other_sites_and_caches(served):
    _, dashboard = served
    for path in (None, "/wrong"):
        _, headers, _ = get(dashboard.url, path)
        policy = headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'")
        assert "frame-ancestors 'none'" in policy
        assert "http" not in policy
        assert "unsafe" not in policy
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["Cache-Control"] == "no-store"
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert "Access-Control-Allow-Origin" not in headers
        assert "Python" not in headers["Server"]


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.nip.io:80", ""])
def test_under_any_name_the_token_alone_decides(served, host):
    """Names of tunnels work; a page of another site, under whatever name, has neither a token nor a cookie."""
    _, dashboard = served
    assert get(dashboard.url, Host=host)[0] == 200
    for path in (None, "/", "/?token=wrong"):
        status, headers, _ = get(dashboard.url, path, Host=host, Cookie=urlsplit(dashboard.url).query)
        assert status == (403 if path else 200)
        assert "Set-Cookie" not in headers
        assert "Access-Control-Allow-Origin" not in headers


def test_each_page_has_scripts_of_its_own(served):
    _, dashboard = served
    policies = [get(dashboard.url)[1]["Content-Security-Policy"] for _ in range(2)]
    assert policies[0] != policies[1]


def test_no_request_is_logged(served, capfd):
    _, dashboard = served
    get(dashboard.url)
    get(dashboard.url, "/wrong")
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "sent", [b"", b"nonsense\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01" * 99 + b"\n", b"GET /" + b"x" * 70000]
)
def test_what_is_no_request_harms_nothing(served, sent):
    _, dashboard = served
    parts = urlsplit(dashboard.url)
    with socket.create_connection((parts.hostname, parts.port), timeout=5) as peer:
        with suppress(OSError):  # the server leaves some of it unread
            peer.sendall(sent)
            peer.shutdown(socket.SHUT_WR)
            while peer.recv(4096):
                pass
    assert get(dashboard.url)[0] == 200


def test_strangers_that_send_nothing_keep_nobody_out(served):
    _, dashboard = served
    parts = urlsplit(dashboard.url)
    etag = state(dashboard.url)[0]["ETag"]
    answered = Future()
    Thread(target=lambda: answered.set_result(state(dashboard.url, etag))).start()  # waits for the next snapshot
    served[0].play(1)
    strangers = [socket.create_connection((parts.hostname, parts.port)) for _ in range(server_module._CONNECTIONS + 20)]
    assert get(dashboard.url)[0] == 200
    assert answered.result(10)[1]["nodes"]
    for each in strangers:
        each.close()


def test_a_peer_that_does_not_read_its_answer_loses_its_connection(monkeypatch):
    monkeypatch.setattr(server_module._Handler, "timeout", 0.2)
    long = server_module.Response(bytes(32 << 20))
    with closing(
        server_module.PageServer("127.0.0.1", 0, "token", {"/": lambda _: long}, setting="dashboard")
    ) as server:
        with socket.create_connection(("127.0.0.1", server.port)) as peer:
            peer.sendall(b"GET /?token=token HTTP/1.1\r\n\r\n")
            wait_for(lambda: any(server._connections.values()), 5)
            wait_for(lambda: not any(server._connections.values()), 5)


# ---- start and end


@pytest.mark.parametrize("setting", ["dashboard", "metrics_port"])
def test_a_port_that_is_taken_is_an_error_before_a_node_starts(setting):
    backend = ScriptedBackend(returns(1))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        cluster = cluster_on(backend, **{"dashboard": True, setting: port})
        text = f"{setting}={port}: the driver can't listen at port {port} of 127.0.0.1 .*pass another port"
        with pytest.raises(tfos.StartError, match=text):
            cluster.start()
    assert backend.nodes == []
    assert cluster.metrics().state == "failed"


def test_a_host_that_is_not_this_one_is_named():
    with pytest.raises(tfos.StartError, match="set TFOS_SERVER_HOST to an address of this machine"):
        server_module.PageServer("192.0.2.1", 0, "token", {}, setting="dashboard")


def test_the_page_lives_from_before_the_start_to_the_end_of_the_cluster(caplog):
    backend = ScriptedBackend(lambda node: node.feeding.wait() and returns(7)(node))
    cluster = cluster_on(backend, dashboard=True)
    assert cluster.dashboard_url is None
    with caplog.at_level(logging.INFO, "tensorflowonspark.nodes"), cluster:
        url = cluster.dashboard_url
        assert [each.getMessage() for each in caplog.records] == [f"[training] dashboard: {url}"]
        assert cluster.metrics_url is None
        seen = states(url)
        next(seen)
        rest = Future()
        Thread(target=lambda: rest.set_result(list(seen))).start()
        backend.nodes[0].feeding.set()
        cluster.shutdown()
    last = rest.result(10)[-1]
    assert last["summary"]["state"] == "ended"
    assert last["events"][-1][1] == "ended"
    with pytest.raises(ConnectionRefusedError):
        get(url)
    assert cluster.dashboard_url == url


def test_a_cluster_without_a_page_serves_none():
    with cluster_on(ScriptedBackend(returns(1))) as cluster:
        assert (cluster.dashboard_url, cluster.metrics_url) == (None, None)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_the_page_ends_with_a_block_that_raises(error):
    with pytest.raises(error):
        with cluster_on(ScriptedBackend(lambda node: None), dashboard=True) as cluster:
            url = cluster.dashboard_url
            raise error
    with pytest.raises(ConnectionRefusedError):
        get(url)


def test_the_page_ends_with_a_start_that_fails():
    backend = ScriptedBackend(lambda node: None)
    backend.slots = 0

    def no_slots(*_):
        raise tfos.SlotsError(1, 0, "none")

    backend.find_slots = no_slots
    cluster = cluster_on(backend, dashboard=True)
    with pytest.raises(tfos.SlotsError):
        cluster.start()
    with pytest.raises(ConnectionRefusedError):
        get(cluster.dashboard_url)


def test_the_page_stays_while_a_start_that_failed_is_repeated():
    attempts = []

    def script(node):
        attempts.append(node)
        if len(attempts) == 1:
            node.disconnect()
        returns(len(attempts))(node)

    backend = ScriptedBackend(script)
    find = Placement._is_up

    def up_once_it_has_failed(placement):
        """See to it that the first start sees the failure of its node."""
        return (len(attempts) > 1 or placement._monitor.config.attempt > 0) and find(placement)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Placement, "_is_up", up_once_it_has_failed)
        with cluster_on(backend, dashboard=True, restarts=tfos.RestartPolicy(1, backoff=0)) as cluster:
            assert get(cluster.dashboard_url)[0] == 200
            assert cluster.join() == {"worker:0": 2}
    kinds = [each.kind for each in cluster.metrics().events]
    assert kinds == ["started", "failure", "restart", "started", "ended"]


def test_the_page_ends_with_an_interrupt_between_two_attempts(monkeypatch):
    def interrupt(seconds):
        raise KeyboardInterrupt

    backend = ScriptedBackend(lambda node: node.disconnect())
    cluster = cluster_on(backend, dashboard=True, restarts=tfos.RestartPolicy(1, backoff=9))
    monkeypatch.setattr(cluster._run._cancelled, "wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        cluster.start()
        cluster.join()
    with pytest.raises(ConnectionRefusedError):
        get(cluster.dashboard_url)


_DRIVER = """
import os, sys, time
sys.path.insert(0, {root!r})
from tests.support.played_training import PlayedTraining
dashboard = PlayedTraining(2).serve()
print(dashboard.url, flush=True)
child = os.fork()
if not child:
    sys.stdin.readline()  # it outlives its parent's dashboard
    os._exit(0)
sys.stdin.readline()
dashboard.close()
print("closed", flush=True)
os.waitpid(child, 0)
"""


@pytest.mark.deep
def test_a_forked_child_of_the_driver_does_not_serve():
    driver = subprocess.Popen(
        [sys.executable, "-c", _DRIVER.format(root=str(ROOT))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    )
    try:
        url = driver.stdout.readline().strip()
        assert get(url)[0] == 200
        children = subprocess.run(
            ["pgrep", "-P", str(driver.pid)], capture_output=True, text=True, check=True
        ).stdout.split()
        sockets = [os.readlink(f"/proc/{children[0]}/fd/{fd}") for fd in os.listdir(f"/proc/{children[0]}/fd")]
        assert not [each for each in sockets if each.startswith("socket:")]
    finally:
        driver.communicate("\n\n", timeout=20)
    assert driver.returncode == 0


def test_all_pages_have_the_end_which_they_do_not_delay(training):
    dashboard = training.serve()
    seen = [states(dashboard.url) for _ in range(20)]
    for each in seen:
        next(each)
    ended = []
    threads = [Thread(target=lambda each=each: ended.extend(list(each)[-1:])) for each in seen]
    for thread in threads:
        thread.start()
    training.store.end(failed=False, text="the cluster has ended")
    begin = time.monotonic()
    dashboard.close()
    assert time.monotonic() - begin < server_module._FLUSH_SECONDS
    for thread in threads:
        thread.join(5)
    assert [each["summary"]["state"] for each in ended] == ["ended"] * 20


def test_a_page_that_is_about_to_ask_when_the_cluster_ends_has_its_end(training):
    dashboard = training.serve()
    etag = state(dashboard.url)[0]["ETag"]
    ending = Thread(target=dashboard.close)
    ending.start()
    wait_for(dashboard._snapshots._closed.is_set, 5)
    assert state(dashboard.url, etag)[0]["Ended"]
    ending.join()


def test_tls_has_a_certificate_of_its_own():
    import ssl

    pytest.importorskip("cryptography")
    training = PlayedTraining(1)
    config = ClusterConfig(ClusterSpec(num_workers=1), b"", tls=True, page_port=0)
    from tests.support.backend import LoopbackBackend

    with closing(
        service.DashboardService(LoopbackBackend(None), config, training.store, lambda: None, str)
    ) as dashboard:
        parts = urlsplit(dashboard.url)
        assert parts.scheme == "https"
        context = ssl._create_unverified_context()
        with closing(http.client.HTTPSConnection(parts.hostname, parts.port, context=context, timeout=10)) as made:
            made.request("GET", f"/?{parts.query}")
            assert made.getresponse().status == 200
        with pytest.raises((http.client.BadStatusLine, ConnectionError)):
            get(dashboard.url)  # without TLS
        with socket.create_connection((parts.hostname, parts.port)):  # a stranger that sends nothing
            with closing(http.client.HTTPSConnection(parts.hostname, parts.port, context=context, timeout=5)) as made:
                made.request("GET", f"/?{parts.query}")
                assert made.getresponse().status == 200
