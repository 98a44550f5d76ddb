"""What this room asks of the active controller, wherever that is."""

from typing import Any, Protocol

from headrace.protocol.api import ApiKey


class ControllerClient(Protocol):
    """A way to the active controller. Implemented by `cluster/controller_channel.py`."""

    async def request(self, key: ApiKey, body: Any) -> Any:
        """Its answer. Raises KafkaError when there is none in time."""
        ...
