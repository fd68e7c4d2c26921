"""The network interface of a node: found on its host, or refused with those that exist."""

import re
import socket
from types import SimpleNamespace

import psutil
import pytest

from tensorflowonspark.supervisor.host import Interface, find_interface
from tensorflowonspark.supervisor.node_process import node_environment

ADDRESSES = {
    "lo": ["127.0.0.1"],
    "eth0": ["192.168.7.5"],
    "ib0": ["fd77::5", "10.1.4.5", "10.2.4.5"],
    "ib6": ["fd66::5"],
    "ib1": ["10.1.9.5"],
    "eth0:1": ["192.168.9.5"],
    "docker0": [],
}


def family(address):
    return socket.AF_INET6 if ":" in address else socket.AF_INET


@pytest.fixture(autouse=True)
def interfaces(monkeypatch):
    """A host with InfiniBand, one of whose interfaces is down."""
    found = {
        name: [
            SimpleNamespace(family=socket.AF_INET6, address="fe80::1%eth0"),
            *(SimpleNamespace(family=family(address), address=address) for address in addresses),
        ]
        for name, addresses in ADDRESSES.items()
    }
    states = {name: SimpleNamespace(isup=name != "ib1") for name in ADDRESSES if ":" not in name}
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: found)
    monkeypatch.setattr(psutil, "net_if_stats", lambda: states)


@pytest.mark.parametrize(
    ("wanted", "name", "address"),
    [
        ("ib0", "ib0", "10.1.4.5"),
        ("ib*", "ib0", "10.1.4.5"),
        ("e*", "eth0", "192.168.7.5"),
        ("10.2.0.0/16", "ib0", "10.2.4.5"),
        ("10.1.4.77/16", "ib0", "10.1.4.5"),
        ("192.168.7.5", "eth0", "192.168.7.5"),
        ("192.168.9.0/24", "eth0:1", "192.168.9.5"),
        ("fd77::/64", "ib0", "fd77::5"),
        ("ib6", "ib6", "fd66::5"),
    ],
)
def test_a_name_a_pattern_or_a_network_names_an_interface(wanted, name, address):
    assert find_interface(wanted) == Interface(name, address)


@pytest.mark.parametrize("wanted", ["ib1", "ib", "docker0", "172.16.0.0/12", "10.1.9.0/24"])
def test_an_interface_that_the_host_lacks_is_refused_with_those_that_it_has(wanted):
    words = (
        f"network_interface={wanted!r}: no interface of this host matches that is up and has an address; it has "
        "lo (127.0.0.1), eth0 (192.168.7.5), ib0 (10.1.4.5), ib0 (10.2.4.5), ib1 (10.1.9.5, down), eth0:1 "
        "(192.168.9.5), ib0 (fd77::5), ib6 (fd66::5), docker0 (no address). A pattern ('ib*')"
    )
    with pytest.raises(LookupError, match=re.escape(words)):
        find_interface(wanted)


def test_the_libraries_of_a_node_use_its_interface_unless_the_user_asks_otherwise():
    inherited = {"NCCL_SOCKET_IFNAME": "eth0", "HOME": "/root"}
    environment = node_environment(inherited, {}, "ib0")
    assert (environment["NCCL_SOCKET_IFNAME"], environment["GLOO_SOCKET_IFNAME"]) == ("=ib0", "ib0")
    assert node_environment(inherited, {"NCCL_SOCKET_IFNAME": "^lo"}, "ib0")["NCCL_SOCKET_IFNAME"] == "^lo"
    assert node_environment(inherited, {})["NCCL_SOCKET_IFNAME"] == "eth0"
