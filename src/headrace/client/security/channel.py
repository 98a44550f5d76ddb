"""How a client's channel to a broker is secured: in the clear, by TLS, with a login, or both.

Small, picklable, and shows no secret. Brokers and most clients never come further than PLAINTEXT, so stores and logins
are loaded when needed; `settings` reads a `Security` from Kafka's settings.
"""

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from headrace.client.security.sasl import Credentials
    from headrace.client.security.tls import Tls


class Security(msgspec.Struct, frozen=True):
    """Made by `read_security`."""

    tls: "Tls | None" = None
    credentials: "Credentials | None" = None
    prefix: str = ""
    """What the settings' names began with, for messages: `kafka.` in Spark's options."""

    @property
    def protocol(self) -> str:
        """The value of `security.protocol`."""
        transport = "SSL" if self.tls is not None else "PLAINTEXT"
        return f"SASL_{transport}" if self.credentials is not None else transport


PLAINTEXT = Security()
