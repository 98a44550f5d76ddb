"""What of `headrace.quorum.Quorum` has no meaning where brokers are known by registration and heartbeats alone."""

from collections.abc import Sequence

from headrace.metadata.image import Endpoint
from headrace.quorum import DepartureListener, RequestListener


class KnownByHeartbeats:
    """A quorum that keeps no track of who is there, and that nobody but clients asks for anything."""

    async def announce(self, endpoints: Sequence[Endpoint], rack: str | None) -> None:
        """Nobody looks for it here."""

    def is_present(self, broker_id: int) -> bool:
        return True

    def give_way(self) -> bool:
        """A leader that most voters do not fetch from resigns in any case."""
        return False

    def on_request(self, listener: RequestListener) -> None:
        """None is ever made but by clients."""

    def on_departure(self, listener: DepartureListener) -> None:
        """None is ever told: heartbeats and sessions are the controller's own."""
