"""Hosts on this machine, from Linux namespaces: each has its own network, processes and mounts, as containers have.

The processes of two hosts have equal pids, and no pid of one leads to a process of the other. They are on a bridge of
this machine, from which nothing outside of it is reached. Only root can make them.
"""

import os
import random
import secrets
import shutil
import subprocess
import time
from contextlib import suppress
from itertools import count
from pathlib import Path

_START_SECONDS = 20.0
_NAMESPACES = ["unshare", "--net", "--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child", "--mount-proc"]
# Process 1 of a host: waits for its network, mounts, starts the command, and passes SIGTERM on to it, as it does when
# its standard input ends. It takes in orphans; all others are killed with it.
_INIT = r"""
read -r name address && hostname "$name" && exec 3<&0 < /dev/null || exit 1
mount -t tmpfs tmpfs /run && : > /run/dns && mount --bind /run/dns /etc/resolv.conf || exit 1  # there is none to ask
printf '127.0.0.1 localhost\n%%s %%s\n' "$address" "$name" > /run/hosts && mount --bind /run/hosts /etc/hosts || exit 1
%s
"$@" 3<&- &
child=$!
trap 'kill -TERM $child' TERM
{ read -r _ <&3; kill -TERM $child; } 3<&3 2> /dev/null &
exec 3<&-
while wait $child; code=$?; [ $code -gt 128 ] && kill -0 $child 2> /dev/null; do :; done
exit $code
"""


def what_is_missing():
    """Return why this process can make no hosts, or ""."""
    absent = [each for each in ("unshare", "nsenter", "ip") if shutil.which(each) is None]
    if absent:
        return f"hosts are made with {absent[0]}: install util-linux and iproute2"
    command = [*_NAMESPACES, "sh", "-c", "ip link add name a type veth peer name b && mount -t tmpfs tmpfs /dev/shm"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    return f"hosts are made by root, with namespaces of Linux: {done.stderr.strip()}" if done.returncode else ""


class Network:
    """A bridge of this machine, with hosts on it.

    Attributes
    ----------
    address : str
        This machine's, for the hosts.
    """

    def __init__(self):
        self._name = f"tf{secrets.token_hex(3)}"
        self._numbers = count(2)
        self._links = []
        self._hosts = []
        used = _run("ip", "-o", "-4", "addr")
        while (net := f"10.{random.randrange(64, 256)}.{random.randrange(256)}") in used:
            pass
        self._net, self.address = net, f"{net}.1"
        _run("ip", "link", "add", self._name, "type", "bridge")
        try:
            _run("ip", "addr", "add", f"{self.address}/24", "dev", self._name)
            _run("ip", "link", "set", self._name, "up")
        except BaseException:
            self.close()
            raise

    def next_address(self):
        """Return the address of the next host."""
        return f"{self._net}.{next(self._numbers)}"

    def start(self, command, address, mounts=(), name="host", **options):
        """Run a command on a new host; return the process that ends with it.

        Parameters
        ----------
        command : list of str
            What it runs. It gets SIGTERM when the standard input of the process is closed.
        address : str
            Of the host, from `next_address`.
        mounts : sequence of str
            Commands that mount what only this host sees.
        name : str
            Of the host.
        options
            As for ``subprocess.Popen``.
        """
        number = address.rpartition(".")[2]
        link, inside = f"{self._name}-{number}", f"{self._name}+{number}"
        script = _INIT % "\n".join(f"{each} || exit 1" for each in mounts)
        process = subprocess.Popen(
            [*_NAMESPACES, "sh", "-c", script, "init", *map(str, command)], stdin=subprocess.PIPE, **options
        )
        self._hosts.append(process)
        _run("ip", "link", "add", link, "type", "veth", "peer", "name", inside)
        self._links.append(link)
        _run("ip", "link", "set", link, "master", self._name, "up")
        end = time.monotonic() + _START_SECONDS
        while os.readlink(f"/proc/{process.pid}/ns/net") == os.readlink("/proc/self/ns/net"):
            assert process.poll() is None, "the host has ended"
            assert time.monotonic() < end, "the host does not start"
            time.sleep(0.005)
        _run("ip", "link", "set", inside, "netns", str(process.pid))
        settings = [
            "ip link set lo up",
            f"ip link set {inside} name eth0",
            f"ip addr add {address}/24 dev eth0",
            "ip link set eth0 up",
            f"ip route add default via {self.address}",
        ]
        _run("nsenter", "-t", str(process.pid), "-n", "sh", "-ec", "\n".join(settings))
        process.stdin.write(f"{name} {address}\n".encode())
        process.stdin.flush()
        return process

    def close(self):
        """Kill the hosts, and remove the network."""
        for process in self._hosts:
            process.kill()  # and the kernel its process 1, which takes all others with it
            process.wait()
            with suppress(BrokenPipeError):
                process.stdin.close()
        for link in (*self._links, self._name):
            if Path("/sys/class/net", link).exists():
                subprocess.run(["ip", "link", "del", link], check=False, capture_output=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def _run(*command):
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert not done.returncode, f"{command}: {done.stderr}"
    return done.stdout
