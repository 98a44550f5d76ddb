"""What SASL mechanisms say to each other, without a connection: generators that yield messages and are sent challenges.

A generator that returns is satisfied with the broker; one that raises SaslError is not. SCRAM is RFC 5802 as Kafka has
it: no channel binding, and names and passwords as they are, without SASLprep.
"""

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from collections.abc import Generator
from dataclasses import dataclass, field

Exchange = Generator[bytes, bytes, None]

PLAIN = "PLAIN"
SCRAM_HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
MECHANISMS = (PLAIN, *SCRAM_HASHES)

ITERATIONS_MIN = 4096
"""As Kafka's clients: fewer would let whoever plays the broker guess the password from one login."""
ITERATIONS_MAX = 1_000_000
"""Kafka's brokers keep 16,384 at most. Each one costs this side a hash, and the broker chooses how many."""
CHALLENGE_BYTES_MAX = 16 << 10
SALT_BYTES_MAX = 1024

_NO_BINDING = "n,,"
_SERVER_FIRST = re.compile(r"r=([!-+\--~]+),s=([A-Za-z0-9+/=]+),i=([1-9][0-9]{0,9})(?:,.*)?", re.DOTALL)
_SERVER_FINAL = re.compile(r"(?:v=([A-Za-z0-9+/=]+)|e=([^,]*))(?:,.*)?", re.DOTALL)


class SaslError(Exception):
    """The broker has said something that ends the login."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """Who logs in, and how. Only the name and the mechanism may be shown."""

    mechanism: str
    username: str
    password: str = field(repr=False)
    is_token: bool = False
    """A delegation token: its id and its HMAC in place of a user's name and password."""

    def exchange(self) -> Exchange:
        """A new login."""
        if self.mechanism == PLAIN:
            return plain(self.username, self.password)
        hash_name = SCRAM_HASHES[self.mechanism]
        return scram(hash_name, self.username, self.password, secrets.token_urlsafe(24), is_token=self.is_token)


def plain(username: str, password: str) -> Exchange:
    """RFC 4616: everything at once, so it belongs inside TLS. Whatever answers has accepted."""
    yield f"\0{username}\0{password}".encode()


def scram(hash_name: str, username: str, password: str, nonce: str, *, is_token: bool = False) -> Exchange:
    """RFC 5802: the password is never sent, and the broker proves that it knows it too."""
    name = username.replace("=", "=3D").replace(",", "=2C")
    first_bare = f"n={name},r={nonce}" + (",tokenauth=true" if is_token else "")
    server_first = _text((yield (_NO_BINDING + first_bare).encode()))
    server_nonce, salt, iterations = _read_server_first(server_first, nonce)

    salted = hashlib.pbkdf2_hmac(hash_name, password.encode(), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", hash_name)
    stored_key = hashlib.new(hash_name, client_key).digest()
    binding = base64.b64encode(_NO_BINDING.encode()).decode()
    final_bare = f"c={binding},r={server_nonce}"
    spoken = f"{first_bare},{server_first},{final_bare}".encode()
    signature = hmac.digest(stored_key, spoken, hash_name)
    proof = bytes(a ^ b for a, b in zip(client_key, signature))

    server_final = _text((yield f"{final_bare},p={base64.b64encode(proof).decode()}".encode()))
    server_key = hmac.digest(salted, b"Server Key", hash_name)
    _check_server_final(server_final, hmac.digest(server_key, spoken, hash_name))


def _read_server_first(text: str, nonce: str) -> tuple[str, bytes, int]:
    """The whole nonce, the salt and the number of iterations."""
    found = _SERVER_FIRST.fullmatch(text)
    if found is None:
        error = re.match(r"e=([^,]*)", text)
        raise SaslError(f"it says {shown(error[1])!r}" if error else "its first SCRAM message cannot be read")
    # One that does not go on from ours may have been recorded in another login.
    if not found[1].startswith(nonce) or len(found[1]) == len(nonce):
        raise SaslError("its nonce does not extend this client's: the answer belongs to another login")
    salt, iterations = _decoded(found[2]), int(found[3])
    if not 0 < len(salt) <= SALT_BYTES_MAX:
        raise SaslError(f"its salt has {len(salt)} bytes")
    if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        raise SaslError(f"it asks for {iterations} iterations; {ITERATIONS_MIN} to {ITERATIONS_MAX} are accepted")
    return found[1], salt, iterations


def _check_server_final(text: str, expected: bytes) -> None:
    found = _SERVER_FINAL.fullmatch(text)
    if found is None:
        raise SaslError("its last SCRAM message cannot be read")
    if found[2] is not None:
        raise SaslError(f"it says {shown(found[2])!r}")
    if not hmac.compare_digest(_decoded(found[1]), expected):
        raise SaslError("it has not proved that it knows the password: it may not be the broker that it seems to be")


def _text(challenge: bytes) -> str:
    if len(challenge) > CHALLENGE_BYTES_MAX:
        raise SaslError(f"it sent a message of {len(challenge)} bytes")
    try:
        return challenge.decode()
    except UnicodeDecodeError:
        raise SaslError("its message is not text") from None


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise SaslError("its message holds base64 that cannot be read") from None


def shown(text: str) -> str:
    """A broker's own words, fit for one line of a log."""
    return "".join(char if char.isprintable() else "?" for char in text[:300])
