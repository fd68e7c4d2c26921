"""Credentials of a cluster's own processes: a token, and with TLS a certificate."""

import json
import secrets
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from tensorflowonspark.errors import EnvironmentNotReady

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["CERTIFIED_NAME", "Credentials", "new_credentials", "spark_wants_tls"]

_TOKEN_BYTES = 32
# The addresses of the nodes aren't known when the certificate is made; clients expect this name in place of them.
CERTIFIED_NAME = "tensorflowonspark"
_CLOCKS_DIFFER = timedelta(days=1)
_LIFETIME = timedelta(days=3650)  # longer than any cluster: the key is gone with it
# Settings with which a user of Spark asks that what its processes say to each other is encrypted.
_SPARK_SETTINGS = (
    "spark.ssl.enabled",
    "spark.ssl.rpc.enabled",
    "spark.network.crypto.enabled",
    "spark.authenticate.enableSaslEncryption",
)


@dataclass(frozen=True)
class Credentials:
    """The secrets of one cluster, made in its driver; whoever has them belongs to it.

    They go to Spark's tasks with their orders, and from there through pipes: never by a command line, an environment
    or a log, and so no ``repr`` shows them.
    """

    token: str = field(repr=False)
    certificate: str = field(default="", repr=False)  # PEM; empty: connections over TCP are not encrypted
    key: str = field(default="", repr=False)  # PEM, the certificate's

    def to_text(self) -> str:
        """Return them as text, for a file that nobody else can read."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> "Credentials":
        """Return what `to_text` made a text of.

        Examples
        --------
        >>> made = new_credentials()
        >>> Credentials.from_text(made.to_text()) == made
        True
        """
        return cls(**json.loads(text))


def new_credentials(*, tls: bool = False) -> Credentials:
    """Return fresh credentials for one cluster.

    Raises
    ------
    EnvironmentNotReady
        If TLS is wanted, and what makes certificates is not installed.

    Examples
    --------
    >>> new_credentials()
    Credentials()
    """
    token = secrets.token_urlsafe(_TOKEN_BYTES)
    return Credentials(token, *_self_signed()) if tls else Credentials(token)


def spark_wants_tls(spark: "SparkSession") -> bool:
    """Whether a session's settings ask for encrypted connections.

    ``spark.authenticate`` alone does not, and ``spark.io.encryption.enabled`` is about Spark's disks.
    """
    return any((spark.conf.get(name, "false") or "").strip().lower() == "true" for name in _SPARK_SETTINGS)


def _self_signed() -> tuple[str, str]:
    """Return a certificate that is its own authority, and its key: servers and clients show the same."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as error:
        raise EnvironmentNotReady(
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
        .not_valid_before(now - _CLOCKS_DIFFER)
        .not_valid_after(now + _LIFETIME)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(CERTIFIED_NAME)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return certificate.public_bytes(pem).decode(), private.decode()
