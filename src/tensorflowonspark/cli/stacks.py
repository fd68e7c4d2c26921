"""``tfos stacks``: the Python stacks of a running cluster's nodes, from the page that its driver serves."""

import argparse
import os
import ssl
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from tensorflowonspark.errors import ClusterError, SpecError
from tensorflowonspark.terminal import printable

_SECONDS = 30.0  # for the driver to answer; it waits 5 s for the nodes
_TOKEN = "TFOS_DASHBOARD_TOKEN"  # noqa: S105 - the name of a variable


def add_to(commands: Any) -> None:
    """Add the subcommand to those of a parser."""
    parser = commands.add_parser(
        "stacks",
        help="show what each thread of each node of a running cluster does",
        description="Print the Python stacks of all threads of a running cluster's nodes, also while they hang. The "
        "cluster needs a page: tfos run --dashboard, or Cluster(..., dashboard=True).",
        allow_abbrev=False,
    )
    text = (
        "the page's, as the driver's line \"dashboard: ...\" has it; without ?token=... the token is that of " + _TOKEN
    )
    parser.add_argument("url", metavar="URL", help=text)
    parser.add_argument("node", metavar="NODE", nargs="?", default="", help="only this node, as worker:0")
    parser.add_argument(
        "--insecure",
        action="store_true",
        help="with https, take a certificate that no authority has signed, as the driver's own is",
    )
    parser.set_defaults(run=_stacks, parser=parser)


def _stacks(options: argparse.Namespace) -> int:
    print(printable(_fetched(options.url, options.node, insecure=options.insecure)), end="")
    return 0


def _fetched(url: str, node: str, *, insecure: bool) -> str:
    """Return the driver's answer; the token goes to that host alone: neither proxies nor redirects are followed."""
    parts = urlsplit(url)
    place = f"{parts.scheme}://{parts.netloc}"  # without the token
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise SpecError(f"{place}: expected the URL of a cluster's page, as http://driver:38195/?token=...")
    token = parse_qs(parts.query).get("token", [os.environ.get(_TOKEN, "")])[0]
    try:
        made: HTTPConnection
        if parts.scheme == "http":
            made = HTTPConnection(parts.hostname, parts.port, timeout=_SECONDS)
        else:
            context = ssl.create_default_context()
            if insecure:
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            made = HTTPSConnection(parts.hostname, parts.port, timeout=_SECONDS, context=context)
        path = f"/stacks?{urlencode({'node': node})}" if node else "/stacks"
        made.request("GET", path, headers={"Authorization": f"Bearer {token}"})
        answer = made.getresponse()
        status, text = answer.status, answer.read().decode(errors="replace")
        made.close()
    except ssl.SSLCertVerificationError as error:
        raise ClusterError(
            f"{place} has a certificate that no authority has signed ({error.verify_message}), as a driver's own is: "
            "--insecure takes it, in a network where nobody else can answer at that address"
        ) from error
    except (OSError, HTTPException, ValueError) as error:
        raise ClusterError(
            f"{place} does not answer ({error or type(error).__name__}): the page ends with its cluster, and is at the "
            'address in the driver\'s line "dashboard: ..."'
        ) from error
    if status == HTTPStatus.NOT_FOUND:
        raise SpecError(f"{place}: {printable(text).strip()}")
    if status != HTTPStatus.OK:
        raise ClusterError(f"{place} refuses the request ({status}): {printable(text).strip()}")
    return text
