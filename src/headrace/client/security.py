"""How a client connects: in the clear, by TLS, with a login, or both. Small, picklable, and shows no secret.

Brokers and most clients never come further than PLAINTEXT, so what reads settings, stores and logins is loaded when needed.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from headrace.client.sasl import Credentials
    from headrace.client.tls import Tls

PREFIXES = ("security.", "ssl.", "sasl.")


class Security(msgspec.Struct, frozen=True):
    """Made by `read_security`."""

    tls: "Tls | None" = None
    credentials: "Credentials | None" = None
    prefix: str = ""
    """What the settings' names began with, for messages: `kafka.` in Spark's options."""

    @property
    def protocol(self) -> str:
        transport = "SSL" if self.tls is not None else "PLAINTEXT"
        return f"SASL_{transport}" if self.credentials is not None else transport


PLAINTEXT = Security()


def is_security(name: str) -> bool:
    return name.startswith(PREFIXES)


def read_security(given: Mapping[str, str], *, prefix: str = "") -> Security:
    """Check all settings of security in `given`, files included; others are passed over. Raises SettingRefused.

    Names are those of Kafka's Java clients. In `given` they have no prefix; in messages they do.
    """
    settings = {name: value for name, value in given.items() if is_security(name)}
    if not settings:
        return Security(prefix=prefix)
    from headrace.client.security_settings import read_settings

    return read_settings(settings, prefix)
