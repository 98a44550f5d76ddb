"""TLS by Python's `ssl`, from the stores that Kafka's clients are configured with: PEM text, and files of PEM, PKCS#12
or Java's JKS. Files are read where a connection is made.
"""

import os
import re
import shlex
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from headrace.client.errors import SettingRefused
from headrace.client.security import jks
from headrace.platform import file_in_memory

STORE_BYTES_MAX = 16 << 20
VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
TYPES = ("JKS", "PKCS12", "PEM")

_JCEKS_MAGIC = b"\xce\xce\xce\xce"
_PEM = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----", re.DOTALL)
_SUITE = re.compile(r"TLS_(\w+)_WITH_(\w+)_(SHA\d*)")
_SUITES_OF_13 = re.compile(r"TLS_(AES|CHACHA20)_\w+")


@dataclass(frozen=True, slots=True)
class Store:
    """Certificates, and in a key store the key to the first of them: in a file, or as PEM text."""

    setting: str
    """What its settings begin with: `ssl.truststore` or `ssl.keystore`, with the prefix that they were given with."""
    location: str | None = None
    password: str | None = field(default=None, repr=False)
    type: str | None = None
    certificates: str | None = field(default=None, repr=False)
    key: str | None = field(default=None, repr=False)
    key_password: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Tls:
    """How to speak TLS. Small, checked and picklable; `context` makes of it what `ssl` needs."""

    trusted: Store | None = None
    """None: what this machine trusts."""
    own: Store | None = None
    """Who this client is, for brokers that ask."""
    check_host: bool = True
    versions: tuple[str, ...] = tuple(VERSIONS)
    ciphers: str = ""
    """In OpenSSL's words; TLS 1.2 only."""

    def context(self) -> ssl.SSLContext:
        """The context, made anew when a file has changed: certificates are renewed under running clients."""
        files = [
            store.location for store in (self.trusted, self.own) if store is not None and store.location is not None
        ]
        return _context(self, tuple(map(_stamp, files)))


def _stamp(location: str) -> tuple[int, int] | None:
    try:
        found = os.stat(location)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


@lru_cache(maxsize=16)
def _context(tls: Tls, stamps: object) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = tls.check_host
    chosen = [VERSIONS[name] for name in tls.versions]
    context.minimum_version, context.maximum_version = min(chosen), max(chosen)
    # As in Java: what is in a trust store is trusted, be it a root or not.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if tls.ciphers:
        context.set_ciphers(tls.ciphers)
    if tls.trusted is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    else:
        _trust(context, tls.trusted)
    if tls.own is not None:
        _identify(context, tls.own)
    return context


def _trust(context: ssl.SSLContext, store: Store) -> None:
    source = _source(store, "certificates")
    if store.certificates is not None:
        found = _certificates(store.certificates)
    else:
        data, kind = _read(store)
        match kind:
            case "PEM":
                found = _certificates(data.decode("latin-1"))
            case "JKS":
                found = "".join(_jks(store, data)[0])
            case _:
                found = _pkcs12_certificates(store, data)
    if not found:
        raise SettingRefused(source, "holds no certificate", "put those in that the brokers' are signed with")
    try:
        context.load_verify_locations(cadata=found)
    except (ssl.SSLError, ValueError):
        raise SettingRefused(source, "cannot be used", "its certificates are damaged") from None


def _identify(context: ssl.SSLContext, store: Store) -> None:
    source = _source(store, "key")
    password = store.key_password
    if store.key is not None:
        chain, key = _certificates(store.certificates or ""), _keys(store.key)
    else:
        data, kind = _read(store)
        if kind == "PEM":
            text = data.decode("latin-1")
            chain, key = _certificates(text), _keys(text)
        elif kind == "JKS":
            held, key = _jks(store, data, with_key=True)
            chain, password = "".join(held), None
        else:
            chain, key, password = *_pkcs12_key(store, data), None
    if not chain or not key:
        missing = "certificate" if not chain else "private key"
        raise SettingRefused(source, f"comes without a {missing}", "a client needs its certificate and the key to it")
    key_password = source.rpartition("ssl.")[0] + "ssl.key.password"

    def ask() -> str:
        # Without this OpenSSL would ask whoever sits at the terminal.
        if password is None:
            raise SettingRefused(key_password, "is missing", f"the key of {source} is encrypted; set its password")
        return password

    # OpenSSL takes keys from files alone. This one never touches a disk where the system has files in memory.
    with file_in_memory((chain + key).encode("latin-1")) as path:
        try:
            context.load_cert_chain(path, password=ask)
        except ssl.SSLError as error:
            if "MISMATCH" in (error.reason or ""):
                raise SettingRefused(
                    source, "cannot be used", "its key does not belong to its first certificate"
                ) from None
            if password is not None:
                fix = f"check {key_password}, and that the key is PKCS#8"
            else:
                fix = "write the key as PKCS#8 (openssl pkcs8 -topk8)"
            raise SettingRefused(source, f"cannot be used ({_why(error)})", fix) from None


def _source(store: Store, inline: str) -> str:
    """The setting that a store comes from."""
    if store.location is not None:
        return f"{store.setting}.location"
    return f"{store.setting}.{inline}"


# -- files


def _read(store: Store) -> tuple[bytes, str]:
    """A file's bytes, and whether they are PEM, PKCS#12 or JKS: they say so themselves, and Java goes by that too."""
    location, name = store.location, _source(store, "")
    assert location is not None
    try:
        with Path(location).open("rb") as file:
            data = file.read(STORE_BYTES_MAX)
    except OSError as error:
        raise SettingRefused(
            name,
            f"is {location!r}, which cannot be read on {socket.gethostname()} ({error.strerror})",
            "the file must be there on every machine that connects, with Spark on each executor too: copy it there "
            "(spark-submit --files does), or give PEM text in place of a file",
        ) from None
    if data.startswith(_JCEKS_MAGIC):
        raise SettingRefused(
            name,
            f"is {location!r}, a JCEKS store, which only Java reads",
            f"convert it: keytool -importkeystore -srckeystore {shlex.quote(location)} "
            f"-destkeystore {shlex.quote(str(Path(location).with_suffix('.p12')))} -deststoretype PKCS12",
        )
    if data.startswith(jks.MAGIC):
        kind = "JKS"
    else:
        kind = "PEM" if b"-----BEGIN " in data else "PKCS12"
    if store.type is not None and (store.type == "PEM") != (kind == "PEM"):
        raise SettingRefused(
            f"{store.setting}.type", f"is {store.type!r}", f"{location} does not look so; it may be {kind}"
        )
    if kind == "PEM" and store.password is not None:
        raise SettingRefused(
            f"{store.setting}.password",
            "cannot be used with a PEM file",
            "leave it out; ssl.key.password opens an encrypted key",
        )
    return data, kind


def _jks(store: Store, data: bytes, *, with_key: bool = False) -> tuple[list[str], str]:
    """Whom it trusts; or, `with_key`, its key and the certificates to that."""
    if with_key and store.password is None:
        raise SettingRefused(
            f"{store.setting}.password", "is missing", f"{store.location} needs the password that opens it"
        )
    try:
        found = jks.read_jks(data, store.password)
        if not with_key or not found.closed_key:
            return found.trusted, ""
        return found.chain, jks.open_key(found.closed_key, store.key_password or store.password or "")
    except jks.JksError as error:
        raise SettingRefused(
            _source(store, ""),
            f"is {store.location!r}, which cannot be opened: {error}",
            f"check {store.setting}.password" + " and the key's" * with_key,
        ) from None


def _pkcs12_certificates(store: Store, data: bytes) -> str:
    return "".join(_pkcs12(store, data)[1])


def _pkcs12_key(store: Store, data: bytes) -> tuple[str, str]:
    if store.password is None:
        raise SettingRefused(
            f"{store.setting}.password", "is missing", f"{store.location} needs the password that opens it"
        )
    if store.key_password not in (None, store.password):
        name = store.setting.removesuffix("keystore") + "key.password"
        raise SettingRefused(name, "differs from the store's", "a PKCS#12 file has one password: leave this one out")
    key, certificates = _pkcs12(store, data)
    return "".join(certificates), key


def _pkcs12(store: Store, data: bytes) -> tuple[str, list[str]]:
    """The key, and all certificates with its own first, as PEM."""
    name = _source(store, "")
    try:
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, pkcs12
    except ImportError:
        raise SettingRefused(
            name,
            "is a PKCS#12 file, and the package that reads it is not installed",
            "pip install 'headrace[tls]', or convert it to PEM: openssl pkcs12 -in FILE -out FILE.pem",
        ) from None
    try:
        found = pkcs12.load_pkcs12(data, None if store.password is None else store.password.encode())
    except ValueError:
        raise SettingRefused(
            name,
            f"is {store.location!r}, which cannot be opened",
            f"check {store.setting}.password, and that the file is PKCS#12 or PEM",
        ) from None
    key = ""
    if found.key is not None:
        key = found.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    held = [*([found.cert] if found.cert is not None else []), *found.additional_certs]
    return key, [one.certificate.public_bytes(Encoding.PEM).decode() for one in held]


# -- PEM


def _certificates(text: str) -> str:
    return _blocks(text, lambda label: label == "CERTIFICATE")


def _keys(text: str) -> str:
    return _blocks(text, lambda label: label.endswith("PRIVATE KEY"))


def _blocks(text: str, wanted: Callable[[str], bool]) -> str:
    """Blocks of one kind, with lines as OpenSSL wants them: options often hold everything on one line."""
    found = []
    for label, body in _PEM.findall(text):
        if not wanted(label):
            continue
        # Old kinds of keys have headers before the base64, in lines of their own.
        if ":" not in body:
            packed = "".join(body.replace("\\n", "\n").split())
            body = "\n" + "\n".join(packed[at : at + 64] for at in range(0, len(packed), 64)) + "\n"
        found.append(f"-----BEGIN {label}-----{body}-----END {label}-----\n")
    return "".join(found)


def _why(error: ssl.SSLError) -> str:
    return (error.reason or "unreadable").replace("_", " ").lower()


# -- cipher suites


def openssl_ciphers(suites: list[str]) -> str:
    """Java's names of TLS 1.2 suites in OpenSSL's words. Raises ValueError with what is wrong."""
    found = []
    for suite in suites:
        if _SUITES_OF_13.fullmatch(suite) and "_WITH_" not in suite:
            raise ValueError(
                f"{suite} belongs to TLS 1.3, whose suites Python does not let choose; leave the option out, "
                "or name suites of TLS 1.2, which turns TLS 1.3 off"
            )
        parts = _SUITE.fullmatch(suite)
        if parts is None:
            raise ValueError(f"{suite} is not the name of a suite, such as TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384")
        exchange, cipher, digest = parts.groups()
        words = [] if exchange == "RSA" else exchange.split("_")
        words.append(re.sub(r"^AES_(\d+)", r"AES\1", cipher).removesuffix("_CBC").replace("_", "-"))
        if "CHACHA20" not in cipher:
            words.append(digest)
        found.append("-".join(words))
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).set_ciphers(found[-1])
        except ssl.SSLError:
            raise ValueError(f"{suite} is not known to this machine's {ssl.OPENSSL_VERSION}") from None
    return ":".join(found)
