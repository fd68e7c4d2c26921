"""Credentials of a cluster's processes: a token, with TLS a certificate, and how long a silent host is waited for."""

import json
import secrets
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from tensorflowonspark.errors import RequirementError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TOKEN_BYTES = 32
# The nodes' addresses are unknown when the certificate is made, so clients expect this name instead.
CERTIFIED_NAME = "tensorflowonspark"
_CLOCK_SKEW = timedelta(days=1)
_LIFETIME = timedelta(days=3650)  # longer than any cluster, with which the key is lost
# Settings of Spark that encrypt the connections between its processes.
_SPARK_SETTINGS = (
    "spark.ssl.enabled",
    "spark.ssl.rpc.enabled",
    "spark.network.crypto.enabled",
    "spark.authenticate.enableSaslEncryption",
)


@dataclass(frozen=True)
class Credentials:
    """The secrets of one cluster, made in its driver: a process that has them is a member, and connects to others.

    They travel to Spark's tasks with the launch plan, and from there through pipes: never in a command line, an
    environment or a log, so no ``repr`` shows them.
    """

    token: str = field(repr=False)
    certificate: str = field(default="", repr=False)  # PEM; empty if TCP connections are not encrypted
    key: str = field(default="", repr=False)  # PEM, the certificate's
    patience: float = 20.0  # seconds without an answer of the other host after which a connection over TCP is given up

    def to_text(self) -> str:
        """Return the credentials as text, for a file that only this user can read."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> "Credentials":
        """Return the credentials in a text of `to_text`.

        Examples
        --------
        >>> made = new_credentials()
        >>> Credentials.from_text(made.to_text()) == made
        True
        """
        return cls(**json.loads(text))


def new_credentials(*, tls: bool = False, patience: float = Credentials.patience) -> Credentials:
    """Return new credentials for one cluster.

    TLS needs the package cryptography; without it, that is a `RequirementError`.

    Examples
    --------
    >>> new_credentials()
    Credentials(patience=20.0)
    """
    token = secrets.token_urlsafe(_TOKEN_BYTES)
    return Credentials(token, *(_self_signed() if tls else ("", "")), patience)


def spark_wants_tls(spark: "SparkSession") -> bool:
    """Return whether a session's settings request encrypted connections.

    ``spark.authenticate`` alone does not, and ``spark.io.encryption.enabled`` concerns Spark's disks.
    """
    return any((spark.conf.get(name, "false") or "").strip().lower() == "true" for name in _SPARK_SETTINGS)


def _self_signed() -> tuple[str, str]:
    """Return a self-signed certificate, which servers and clients both present, and its key."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as error:
        raise RequirementError(
            'TLS needs the cryptography package where the driver runs: pip install "tensorflowonspark[tls]", or set '
            "tls=False"
        ) from error
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, CERTIFIED_NAME)])
    now = datetime.now(timezone.utc)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + _LIFETIME)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(CERTIFIED_NAME)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return certificate.public_bytes(pem).decode(), private.decode()
