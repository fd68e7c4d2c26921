"""Hosts on this machine, from Linux namespaces: each has its own network, processes and mounts, as containers have.

The processes of two hosts have equal pids, and no pid of one leads to a process of the other. They are on a bridge of
this machine, from which nothing outside of it is reached, and on which packets can be dropped and slowed down. Only
root can make them.
"""

import json
import os
import random
import secrets
import shutil
import subprocess
import time
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

import psutil

_START_SECONDS = 20.0
_NAMESPACES = ["unshare", "--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child", "--mount-proc"]
# Process 1 of a host: mounts, starts the command, and passes SIGTERM on to it, as it does when its standard input ends.
# It takes in orphans; all others are killed with it.
_INIT = r"""
exec 3<&0 < /dev/null && hostname "$1" || exit 1
mount -t tmpfs tmpfs /run && : > /run/dns && mount --bind /run/dns /etc/resolv.conf || exit 1  # there is none to ask
printf %%s "$2" > /run/hosts && mount --bind /run/hosts /etc/hosts || exit 1
shift 2
%s
: > /run/up
"$@" 3<&- &
child=$!
trap 'kill -TERM $child' TERM
{ read -r _ <&3; kill -TERM $child; } 3<&3 2> /dev/null &
exec 3<&-
while wait $child; code=$?; [ $code -gt 128 ] && kill -0 $child 2> /dev/null; do :; done
exit $code
"""


def what_is_missing(*tools):
    """Return why this process can make no hosts, or that one of these tools is not installed, or ""."""
    absent = [each for each in ("unshare", "nsenter", "ip", *tools) if shutil.which(each) is None]
    if absent:
        return f"hosts are made with {absent[0]}: install util-linux, iproute2 and nftables"
    command = [
        *_NAMESPACES,
        "--net",
        "sh",
        "-c",
        "ip link add name a type veth peer name b && mount -t tmpfs x /dev/shm",
    ]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    return f"hosts are made by root, with namespaces of Linux: {done.stderr.strip()}" if done.returncode else ""


def own_folders(*shared):
    """Return the commands that give a host a /tmp and a /dev/shm of its own, but for these paths."""
    commands = [f"mount --bind {path} /run/shared-{number}" for number, path in enumerate(shared)]
    commands = [f"mkdir /run/shared-{number} && {each}" for number, each in enumerate(commands)]
    commands += [f"mount -t tmpfs -o mode=1777 tmpfs {path}" for path in ("/dev/shm", "/tmp")]
    return commands + [
        f"mkdir -p {path} && mount --bind /run/shared-{number} {path}" for number, path in enumerate(shared)
    ]


class Host:
    """A host of a network.

    Attributes
    ----------
    name, address, names : str
        As `Network.host` was given them.
    process : subprocess.Popen
        It ends with the host's command, with its exit code.
    """

    def __init__(self, name, address, names, link):
        self.name, self.address, self.names, self.process = name, address, names, None
        self.namespace = self.link = link

    @property
    def pid(self):
        """The pid of the host's process 1, as this machine has it."""
        (init,) = psutil.Process(self.process.pid).children()
        return init.pid

    def path(self, path):
        """Return where this machine finds a path of the host."""
        return Path(f"/proc/{self.pid}/root{path}")

    def entering(self, command):
        """Return a command that runs another one on this host."""
        spaces = ["--mount", "--uts", "--ipc", "--net", "--pid"]
        return ["nsenter", "--target", str(self.pid), *spaces, "env", f"--chdir={Path.cwd()}", *map(str, command)]

    def popen(self, command, **options):
        """Start a command on this host, with options of ``subprocess.Popen``."""
        return subprocess.Popen(self.entering(command), **options)

    def run(self, *command, seconds=60):
        """Run a command on this host; return its standard output."""
        return _run(*self.entering(command), timeout=seconds)

    def processes(self):
        """Return the processes of this host, as this machine has them."""
        space, found = os.readlink(f"/proc/{self.pid}/ns/pid"), []
        for process in psutil.process_iter():
            with suppress(OSError, psutil.Error):
                if os.readlink(f"/proc/{process.pid}/ns/pid") == space and process.pid != self.pid:
                    found.append(process)
        return found


class Network:
    """A bridge of this machine, with hosts on it.

    Parameters
    ----------
    ipv6 : bool
        Whether the addresses are of IPv6, in place of IPv4.

    Attributes
    ----------
    address : str
        This machine's, for the hosts.
    """

    def __init__(self, ipv6=False):
        self._name = f"tf{secrets.token_hex(3)}"
        self._numbers = count(2)
        self._hosts = []
        self._dropped = {}  # the rules of nftables that drop packets, by what asked for them
        used = _run("ip", "-o", "addr")
        draw = (lambda: f"fd77:{random.randrange(1, 1 << 16):x}::") if ipv6 else _draw_ipv4
        while (net := draw()) in used:
            pass
        self._net, self._length, self.address = net, "64" if ipv6 else "24", f"{net}1"
        _remove_leftovers()
        _run("ip", "link", "add", self._name, "type", "bridge")
        try:
            _run("ip", "link", "set", self._name, "alias", str(os.getpid()))
            _run("ip", "addr", "add", f"{self.address}/{self._length}", "dev", self._name, *self._options)
            _run("ip", "link", "set", self._name, "up")
        except BaseException:
            self.close()
            raise

    @property
    def _options(self):
        return ["nodad"] if ":" in self._net else []

    def next_address(self):
        """Return the address of the next host."""
        return f"{self._net}{next(self._numbers)}"

    def host(self, name="host", command=("sleep", "infinity"), address=None, mounts=(), names=None, **options):
        """Start a host.

        Parameters
        ----------
        name : str
            Its name.
        command : sequence of str
            What it runs until it ends. It gets SIGTERM when the standard input of the host's process is closed.
        address : str, optional
            Of the host, from `next_address`, or of one that was killed; by default the next one.
        mounts : sequence of str
            Commands that mount what only this host sees.
        names : str, optional
            Lines of its /etc/hosts after the first; by default its own name at its own address.
        options
            As for ``subprocess.Popen``.
        """
        address = address or self.next_address()
        for gone in [each for each in self._hosts if each.address == address]:
            self._remove(gone)
        number = address.rpartition(":" if ":" in address else ".")[2]
        namespace = link = f"{self._name}-{number}"
        host = Host(name, address, names or f"{address} {name}", link)
        _run("ip", "netns", "add", namespace)
        self._hosts.append(host)
        inside = ["address", f"02:00:00:00:00:{int(number):02x}", "netns", namespace]  # the same one after a revival
        _run("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", *inside)
        _run("ip", "link", "set", link, "master", self._name, "up")
        for line in (
            ["link", "set", "lo", "up"],
            ["addr", "add", f"{address}/{self._length}", "dev", "eth0", *self._options],
            ["link", "set", "eth0", "up"],
            ["route", "add", "default", "via", self.address],
        ):
            _run("ip", "-n", namespace, *line)
        known = f"127.0.0.1 localhost\n::1 localhost\n{host.names}\n"
        script = _INIT % "\n".join(f"{{ {each}; }} || exit 1" for each in mounts)
        words = ["ip", "netns", "exec", namespace, *_NAMESPACES, "sh", "-c", script, "init", name, known]
        host.process = subprocess.Popen([*words, *map(str, command)], stdin=subprocess.PIPE, **options)
        end = time.monotonic() + _START_SECONDS
        while not (psutil.Process(host.process.pid).children() and host.path("/run/up").exists()):
            assert host.process.poll() is None, "the host has ended"
            assert time.monotonic() < end, "the host does not start"
            time.sleep(0.005)
        return host

    def cut(self, host, other=None):
        """Drop all packets between a host and another one, by default all others; neither side gets an error."""
        one, two = host.address, other.address if other else None
        rules = [f"{self._ip} saddr {one}", f"{self._ip} daddr {one}"]
        if other:
            rules = [f"{rules[0]} {self._ip} daddr {two}", f"{rules[1]} {self._ip} saddr {two}"]
        self._drop(("cut", one, two), rules)

    def heal(self, host, other=None):
        """Let packets pass again that `cut` drops."""
        self._drop(("cut", host.address, other.address if other else None), [])

    def filter_ports(self, host, ports):
        """Let others connect to a host at these ports only, such as ``"7077, 4000-4010"``; at all again, if None."""
        new = f"{self._ip} daddr {host.address} tcp flags & (syn | ack) == syn"
        rules = [] if ports is None else [f"{new} tcp dport != {{ {ports} }}" if ports else new]
        self._drop(("filter", host.address), rules)

    def drop_large(self, host, other, bytes_=None):
        """Drop packets between two hosts that are larger than so many bytes, without an error; none at all, if None."""
        pairs = [(host.address, other.address), (other.address, host.address)]
        rules = [f"{self._ip} saddr {one} {self._ip} daddr {two} meta length > {bytes_}" for one, two in pairs]
        self._drop(("large", host.address, other.address), [] if bytes_ is None else rules)

    def shape(self, host, delay=0.0, loss=0.0, megabits=None):
        """Slow down a host's link in both directions.

        Parameters
        ----------
        host : Host
            The host.
        delay : float
            Seconds of each direction. The kernel needs netem for it.
        loss : float
            The share of packets that are lost.
        megabits : float, optional
            How many pass in a second.
        """
        lost = f"numgen random mod 10000 < {round(loss * 9999)}"
        packets = [f"{self._ip} {way} {host.address} {lost}" for way in ("saddr", "daddr")]
        self._drop(("loss", host.address), packets if loss else [])
        for place in (["tc"], ["tc", "-n", host.namespace]):
            device = "eth0" if "-n" in place else host.link
            subprocess.run([*place, "qdisc", "del", "dev", device, "root"], check=False, capture_output=True)
            segments = "1" if loss else "65535"  # those of a packet are lost together
            _run("ip", *place[1:], "link", "set", device, "gso_max_segs", segments)
            if delay:
                rate = ["rate", f"{megabits}mbit"] if megabits else []
                slow = ["netem", "delay", f"{delay * 1000:g}ms", *rate, "limit", "100000"]
                _run(*place, "qdisc", "add", "dev", device, "root", *slow)
            elif megabits:
                slow = ["tbf", "rate", f"{megabits}mbit", "burst", "64kb", "latency", "400ms"]
                _run(*place, "qdisc", "add", "dev", device, "root", *slow)

    @contextmanager
    def connections(self):
        """Note the connections between hosts that are begun meanwhile.

        Yields a function that returns those so far: the addresses of both sides, and the port at the second.
        """
        table = f"bridge {self._name}-seen"
        kind, ip = ("ipv6_addr", "ip6") if ":" in self._net else ("ipv4_addr", "ip")
        own = f"{ip} saddr {self._net}{'' if ':' in self._net else '0'}/{self._length}"  # a table is for all bridges
        new = f"{own} tcp flags & (syn | ack) == syn add @seen {{ {ip} saddr . {ip} daddr . tcp dport }}"
        lines = [
            f"add table {table}",
            f"add set {table} seen {{ type {kind} . {kind} . inet_service; flags dynamic; size 65535; }}",
            f"add chain {table} forward {{ type filter hook forward priority -10; policy accept; }}",
            f"add rule {table} forward {new}",
        ]
        _run("nft", "-f", "-", input="\n".join(lines) + "\n")

        def seen():
            listed = json.loads(_run("nft", "-j", "list", "set", *table.split(), "seen"))["nftables"]
            (found,) = [each["set"] for each in listed if "set" in each]
            return {tuple(each["concat"]) for each in found.get("elem", ())}

        try:
            yield seen
        finally:
            _run("nft", "delete", "table", *table.split())

    def kill(self, host):
        """Have a host vanish with all that runs on it, without a packet to any other."""
        self._drop(("killed", host.address), [f"{self._ip} {way} {host.address}" for way in ("saddr", "daddr")])
        _end(host.process)

    def received(self, host):
        """Return how many bytes a host has got from the network."""
        return int(Path("/sys/class/net", host.link, "statistics/tx_bytes").read_text())

    @property
    def _ip(self):
        return "ip6" if ":" in self._net else "ip"

    def _drop(self, reason, rules):
        """Write all rules anew, with these for a reason."""
        self._dropped[reason] = rules
        lines = [
            f"add table bridge {self._name}",
            f"delete table bridge {self._name}",
            f"add table bridge {self._name}",
        ]
        for hook in ("forward", "input", "output"):
            of = f"bridge {self._name} {hook}"
            lines.append(f"add chain {of} {{ type filter hook {hook} priority 0; policy accept; }}")
            lines += [f"add rule {of} {rule} drop" for rules in self._dropped.values() for rule in rules]
        _run("nft", "-f", "-", input="\n".join(lines) + "\n")

    def close(self):
        """Kill the hosts, and remove the network."""
        for host in list(self._hosts):
            self._remove(host)
        if self._dropped:
            _run("nft", "delete", "table", "bridge", self._name)
        _remove_link(self._name)

    def _remove(self, host):
        _end(host.process)
        self._hosts.remove(host)
        _remove_link(host.link)
        subprocess.run(["ip", "netns", "del", host.namespace], check=False, capture_output=True)
        for reason in [each for each in self._dropped if host.address in each]:
            self._drop(reason, [])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def _draw_ipv4():
    return f"10.{random.randrange(64, 256)}.{random.randrange(256)}."


def _end(process):
    """Kill a host: the kernel kills its process 1 with `unshare`, and all others with that."""
    if process is not None:
        process.kill()
        process.wait()
        with suppress(BrokenPipeError):
            process.stdin.close()


def _remove_link(name):
    if Path("/sys/class/net", name).exists():
        subprocess.run(["ip", "link", "del", name], check=False, capture_output=True)


def _remove_leftovers():
    """Remove the networks of processes that were killed; their hosts have ended with them."""
    for folder in Path("/sys/class/net").glob("tf??????"):
        owner = (folder / "ifalias").read_text().strip()
        if owner and not psutil.pid_exists(int(owner)):
            _remove_link(folder.name)
            for space in Path("/run/netns").glob(f"{folder.name}-*"):
                subprocess.run(["ip", "netns", "del", space.name], check=False, capture_output=True)


def _run(*command, **options):
    done = subprocess.run(command, check=False, capture_output=True, text=True, **options)
    assert not done.returncode, f"{command}: {done.stderr}"
    return done.stdout
