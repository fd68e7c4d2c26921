"""A name server on the node: the services of the cluster, and the pods behind those without an address."""

import json
import subprocess
import sys
import threading
import time

from dnslib import QTYPE, RCODE, RR, A
from dnslib.server import BaseResolver, DNSServer

_SECONDS = 1.0  # between two looks at the cluster


class _Services(BaseResolver):
    def __init__(self):
        self.addresses = {}

    def resolve(self, request, handler):
        reply = request.reply()
        found = self.addresses.get(str(request.q.qname).rstrip(".").lower())
        if found is None:
            reply.header.rcode = RCODE.NXDOMAIN
        elif request.q.qtype == QTYPE.A:
            for address in found:
                reply.add_answer(RR(request.q.qname, rdata=A(address), ttl=1))
        return reply


def _listed(kind):
    listed = subprocess.run(["kubectl", "get", kind, "-A", "-o", "json"], capture_output=True, check=True)
    return {
        "{name}.{namespace}.svc.cluster.local".format(**each["metadata"]): each
        for each in json.loads(listed.stdout)["items"]
    }


def _addresses():
    found = {}
    pods = _listed("endpoints")
    for name, service in _listed("services").items():
        own = service["spec"].get("clusterIP", "None")
        parts = pods.get(name, {}).get("subsets") or []
        behind = [address["ip"] for part in parts for address in part.get("addresses") or []]
        found[name] = behind if own == "None" else [own]
    return found


if __name__ == "__main__":
    services = _Services()
    threading.Thread(target=DNSServer(services, address=sys.argv[1]).start, daemon=True).start()
    while True:
        try:
            services.addresses = _addresses()
        except subprocess.CalledProcessError as error:
            sys.stderr.write(f"{error.stderr.decode()}\n")
        time.sleep(_SECONDS)
