"""Brokers that have just gone, between the moment this node notices and the moment clients have found the next leader.

Whoever loses its leader asks for metadata within a millisecond, before the controller can have decided anything. Told
of the dead leader once more, clients come back only after a second or so. So an answer about a leader whose connection
here has just closed waits for the controller, for a moment. And a broker that was just fenced stays on the list of
brokers for a few seconds: librdkafka takes one that vanishes from it to pieces before it moves its partitions
elsewhere, and that costs another second.
"""

import asyncio
from collections.abc import Iterable

from headrace.broker.metadata_cache import MetadataCache
from headrace.clock import Clock
from headrace.metadata.delta import Delta
from headrace.metadata.image import Broker, Image

NOTICE_S = 0.003
"""A client may hear of a death a little sooner than this node, whose loop reads one socket after the other."""
DOUBT_MS = 1_000
LOOK_MS = 20
LINGER_MS = 5_000


class LostBrokers:
    """All on the loop."""

    def __init__(self, metadata: MetadataCache, clock: Clock) -> None:
        self._metadata = metadata
        self._clock = clock
        self._lost_ms: dict[int, int] = {}
        self._fenced_ms: dict[int, int] = {}

    # ---- what is heard

    def lost(self, broker_id: int) -> None:
        """A connection to a broker has closed, and not by us."""
        self._lost_ms[broker_id] = self._clock.monotonic_ms()

    def found(self, broker_id: int) -> None:
        """It can be reached again."""
        self._lost_ms.pop(broker_id, None)

    def metadata_changed(self, delta: Delta, before: Image) -> None:
        for broker_id, broker in delta.brokers.items():
            self._lost_ms.pop(broker_id, None)
            known: Broker | None = before.brokers.get(broker_id)
            if broker is not None and broker.fenced and known is not None and not known.fenced:
                self._fenced_ms[broker_id] = self._clock.monotonic_ms()
            else:
                self._fenced_ms.pop(broker_id, None)

    # ---- what clients are told

    def in_doubt(self, broker_id: int) -> bool:
        lost_ms = self._lost_ms.get(broker_id)
        if lost_ms is None:
            return False
        if self._clock.monotonic_ms() - lost_ms < DOUBT_MS:
            return True
        del self._lost_ms[broker_id]
        return False

    async def settled(self, topics: Iterable[str]) -> None:
        """Wait until none of these topics has a leader in doubt, or doubt has lasted long enough."""
        await asyncio.sleep(NOTICE_S)
        if not self._lost_ms:
            return
        names = list(topics)
        while any(map(self.in_doubt, self._leaders(names))):
            await self._metadata.until(lambda image: not self._lost_ms, timeout_ms=LOOK_MS)

    def _leaders(self, names: list[str]) -> set[int]:
        image = self._metadata.image
        found = (image.topic_named(name) for name in names)
        return {p.leader for topic in found if topic is not None for p in topic.partitions.values()}

    def lingering(self) -> list[Broker]:
        """Brokers that were fenced a moment ago."""
        now_ms = self._clock.monotonic_ms()
        brokers = self._metadata.image.brokers
        self._fenced_ms = {b: ms for b, ms in self._fenced_ms.items() if now_ms - ms < LINGER_MS and b in brokers}
        return [brokers[broker_id] for broker_id in self._fenced_ms]
