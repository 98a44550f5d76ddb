"""A certificate authority for tests: certificates, keys and stores in a folder, as operators make them."""

import datetime
import ipaddress
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)
from cryptography.x509.oid import NameOID

DAY = datetime.timedelta(days=1)
PASSWORD = "store-secret"


class Identity:
    """A key and its certificate, by default signed with its own key; `issuer` is whose key signs."""

    def __init__(
        self, name: str, issuer: "Identity | None" = None, hosts: tuple[str, ...] = (), *, expired: bool = False
    ) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.issuer = issuer
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        begin = datetime.datetime.now(datetime.UTC) - 10 * DAY
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer.certificate.subject if issuer else subject)
            .public_key(self.key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(begin)
            .not_valid_after(begin + (DAY if expired else 365 * DAY))
            .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        )
        if hosts:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_general(host) for host in hosts]), critical=False
            )
        self.certificate: x509.Certificate = builder.sign(issuer.key if issuer else self.key, hashes.SHA256())

    @property
    def pem(self) -> str:
        return self.certificate.public_bytes(Encoding.PEM).decode()

    def key_pem(self, password: str | None = None) -> str:
        """PKCS#8, as Kafka wants it."""
        secret: Any = BestAvailableEncryption(password.encode()) if password else NoEncryption()
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, secret).decode()

    def key_store(self, path: Path, password: str = PASSWORD) -> Path:
        chain = [self.issuer.certificate] if self.issuer else None
        secret = BestAvailableEncryption(password.encode())
        path.write_bytes(pkcs12.serialize_key_and_certificates(b"me", self.key, self.certificate, chain, secret))
        return path

    def trust_store(self, path: Path, password: str = PASSWORD) -> Path:
        """As `keytool -importcert` makes them, which marks what is trusted."""
        secret = BestAvailableEncryption(password.encode())
        path.write_bytes(pkcs12.serialize_java_truststore([pkcs12.PKCS12Certificate(self.certificate, b"ca")], secret))
        return path


def _general(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
