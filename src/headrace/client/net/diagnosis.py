"""Why a connection did not come about, in words: what the other side most likely is, and which setting to look at."""

import socket
import ssl

from headrace.client.errors import (
    BrokerUnreachable,
    ClientError,
    ConnectionLost,
    ConnectionRefused,
    HostUnknown,
    NotKafka,
    SecurityFailed,
)
from headrace.client.security.channel import Security

_HOST_MISMATCH = (62, 64)
_EXPIRED = 10
_NOT_YET_VALID = 9
_TLS_HEAD = (0x15, 0x16)
_NO_CERTIFICATE = ("CERTIFICATE_REQUIRED", "BAD_CERTIFICATE")
_NOT_TLS = (
    "WRONG_VERSION_NUMBER",
    "HTTP_REQUEST",
    "UNEXPECTED_MESSAGE",
    "RECORD_LAYER_FAILURE",
    "PACKET_LENGTH_TOO_LONG",
)


def wrong_length(peer: str, head: bytes, length: int, security: Security) -> ClientError:
    """A first word that is no frame length usually belongs to another protocol; name it if it is a common one."""
    if head == b"HTTP":
        return NotKafka(f"{peer} is an HTTP server, not a Kafka broker")
    if head[0] in _TLS_HEAD and head[1] == 3 and security.tls is None:
        return SecurityFailed(f"{peer} speaks TLS: set {security.prefix}security.protocol to {with_tls(security)}")
    return NotKafka(f"{peer} announced an answer of {length} bytes: it is no Kafka broker, or the stream is damaged")


def unreachable(peer: str, host: str, error: OSError) -> BrokerUnreachable:
    """No connection came about."""
    if isinstance(error, socket.gaierror):
        return HostUnknown(
            f"cannot connect to {peer}: this machine cannot resolve the name {host!r} ({reason_of(error)}). Check its"
            " spelling, or make it known in DNS or in /etc/hosts"
        )
    kind = ConnectionRefused if isinstance(error, ConnectionRefusedError) else BrokerUnreachable
    return kind(f"cannot connect to {peer}: {reason_of(error)}")


def tls_failed(peer: str, host: str, error: OSError, security: Security) -> ClientError:
    """A TLS handshake that did not end well."""
    prefix = security.prefix
    if isinstance(error, ssl.SSLCertVerificationError):
        return SecurityFailed(f"{peer} is not trusted: {_distrust(host, error, prefix)}")
    if not isinstance(error, ssl.SSLError) or isinstance(error, ssl.SSLEOFError):
        # A broker that stops looks like this as well, so it is worth another try.
        return BrokerUnreachable(
            f"{peer} closed the connection during the TLS handshake: it may speak no TLS (set {prefix}security.protocol"
            f" to {without_tls(security)}), or be about to stop"
        )
    reason = error.reason or ""
    words = reason.replace("_", " ").lower() or "no reason given"
    if "ALERT" not in reason and any(mark in reason for mark in _NOT_TLS):
        return SecurityFailed(f"{peer} speaks no TLS: set {prefix}security.protocol to {without_tls(security)}")
    if "UNKNOWN_CA" in reason or "CERTIFICATE_UNKNOWN" in reason:
        return SecurityFailed(
            f"{peer} does not trust this client's certificate ({words}): have it signed by a CA that the brokers trust"
        )
    has_certificate = security.tls is not None and security.tls.own is not None
    if any(mark in reason for mark in _NO_CERTIFICATE) and not has_certificate:
        return SecurityFailed(
            f"{peer} refused TLS ({words}): it may want a certificate of this client; set {prefix}ssl.keystore.location"
        )
    return SecurityFailed(
        f"{peer} and this client do not agree on TLS ({words}): compare {prefix}ssl.enabled.protocols and "
        f"{prefix}ssl.cipher.suites with the broker's"
        + (
            ""
            if has_certificate
            else f", which may also want a certificate of this client ({prefix}ssl.keystore.location)"
        )
    )


def _distrust(host: str, error: ssl.SSLCertVerificationError, prefix: str) -> str:
    if error.verify_code in _HOST_MISMATCH:
        return (
            f"its certificate is not for {host!r}. Connect by a name that is in the certificate; an empty "
            f"{prefix}ssl.endpoint.identification.algorithm does without this check"
        )
    if error.verify_code in (_EXPIRED, _NOT_YET_VALID):
        return f"its {error.verify_message}. Renew it, or set this machine's clock"
    return (
        f"nobody that this client trusts has signed its certificate ({error.verify_message}). Put the certificate of"
        f" the CA into {prefix}ssl.truststore.location or {prefix}ssl.truststore.certificates"
    )


def lost(peer: str, error: Exception | None, security: Security) -> ClientError:
    """A connection that ended while answers were awaited."""
    if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError):
        # With TLS 1.3 a broker looks at a client's certificate after the handshake is done for the client.
        return tls_failed(peer, "", error, security)
    return ConnectionLost(
        f"{peer} closed the connection before it answered" + (f" ({reason_of(error)})" if error else "")
    )


def silent(security: Security) -> str:
    """Why the first request of all may not have been answered."""
    if security.tls is None:
        return (
            f"it may speak TLS (set {security.prefix}security.protocol to {with_tls(security)}) or be no Kafka broker"
        )
    if security.tls.own is None:
        return (
            f"it may want a certificate of this client ({security.prefix}ssl.keystore.location) or be no Kafka broker"
        )
    return "it may not take this client's certificate, or be no Kafka broker"


def login_wanted(security: Security) -> str:
    """Why a broker may have named its versions and hung up at the next request."""
    wanted = "SASL_PLAINTEXT" if security.tls is None else "SASL_SSL"
    return f"it may want a login: set {security.prefix}security.protocol to {wanted}"


def with_tls(security: Security) -> str:
    return "SSL or SASL_SSL" if security.credentials is None else "SASL_SSL"


def without_tls(security: Security) -> str:
    return "PLAINTEXT or SASL_PLAINTEXT" if security.credentials is None else "SASL_PLAINTEXT"


def reason_of(error: BaseException) -> str:
    """An OSError's own words without its number, for a sentence."""
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"  # event loops have texts of their own for this
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
