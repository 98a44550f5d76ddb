"""How a client proves who it is and whom it talks to: TLS, SASL, and Kafka's settings for both."""

from typing import TYPE_CHECKING

from headrace.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from headrace.client.security.channel import PLAINTEXT as PLAINTEXT, Security as Security
    from headrace.client.security.settings import is_security as is_security, read_security as read_security
else:
    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        {
            "channel": ["PLAINTEXT", "Security"],
            "settings": ["is_security", "read_security"],
        },
    )
