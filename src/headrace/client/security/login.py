"""A login on a connection: SaslHandshake v1 names the mechanism, SaslAuthenticate v0-2 carries what it says (KIP-152).

v1 tells how long a login holds (KIP-368); `connection` logs in again before that.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from headrace.client.errors import BrokerUnreachable, ConnectionLost, SecurityFailed
from headrace.client.security.channel import Security
from headrace.client.security.sasl import Credentials, SaslError, shown
from headrace.errors import Err
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey

ROUNDS_MAX = 8
"""SCRAM, the longest that is spoken, has two."""

Ask = Callable[[ApiKey, Any], Awaitable[Any]]
"""Sends a request on the connection that logs in."""


async def log_in(ask: Ask, peer: str, security: Security, served: Callable[[ApiKey], bool]) -> int:
    """Log in and return how many ms that holds, 0 for as long as the connection. Raises SecurityFailed, or
    BrokerUnreachable when the broker hangs up."""
    credentials = security.credentials
    assert credentials is not None
    if not served(ApiKey.SASL_HANDSHAKE) or not served(ApiKey.SASL_AUTHENTICATE):
        raise _no_logins(peer, security)
    try:
        answer: m.SaslHandshakeResponse = await ask(
            ApiKey.SASL_HANDSHAKE, m.SaslHandshakeRequest(mechanism=credentials.mechanism)
        )
        _check_handshake(answer, peer, security, credentials)
        return await _exchange(ask, peer, security, credentials)
    except ConnectionLost as error:
        raise BrokerUnreachable(f"{peer} closed the connection during the login ({error})") from None


def _check_handshake(answer: m.SaslHandshakeResponse, peer: str, security: Security, credentials: Credentials) -> None:
    if answer.error_code == Err.UNSUPPORTED_SASL_MECHANISM:
        offered = ", ".join(map(shown, answer.mechanisms)) or "no other either"
        raise SecurityFailed(
            f"{peer} does not take logins by {credentials.mechanism}, but {offered}: set"
            f" {security.prefix}sasl.mechanism and {security.prefix}sasl.jaas.config accordingly"
        )
    if answer.error_code == Err.ILLEGAL_SASL_STATE:
        raise _no_logins(peer, security)
    if answer.error_code:
        raise SecurityFailed(f"{peer} refused to begin a login (error {answer.error_code})")


async def _exchange(ask: Ask, peer: str, security: Security, credentials: Credentials) -> int:
    exchange = credentials.exchange()
    message = next(exchange)
    for _ in range(ROUNDS_MAX):
        answer: m.SaslAuthenticateResponse = await ask(
            ApiKey.SASL_AUTHENTICATE, m.SaslAuthenticateRequest(auth_bytes=message)
        )
        if answer.error_code:
            words = shown(answer.error_message or "") or f"error {answer.error_code}"
            raise SecurityFailed(
                f"{peer} refused the login of {credentials.username!r} by {credentials.mechanism} ({words}): check"
                f" username and password in {security.prefix}sasl.jaas.config"
            )
        try:
            message = exchange.send(answer.auth_bytes)
        except StopIteration:
            return int(answer.session_lifetime_ms)
        except SaslError as error:
            raise SecurityFailed(f"the login at {peer} by {credentials.mechanism} was broken off: {error}") from None
    raise SecurityFailed(f"{peer} does not come to an end with the login")


def _no_logins(peer: str, security: Security) -> SecurityFailed:
    wanted = "PLAINTEXT" if security.tls is None else "SSL"
    return SecurityFailed(f"{peer} takes no logins: set {security.prefix}security.protocol to {wanted}")
