"""The index files of active segments, brought up to date now and then, so that a partition's folder shows what Kafka's
shows.

Nothing waits for them and nothing reads them. So they are written in short turns, and in a busy minute some wait for
the next look.
"""

import asyncio
from collections.abc import Iterable
from itertools import islice

from headrace.broker.replicas.partition import Partition

LOOK_MS = 5_000
TURN_PARTITIONS = 8
"""Two small writes each: a turn of the loop takes about a millisecond."""
LOOK_PARTITIONS_MAX = 400
"""One look's writes are one per cent of the time between two looks, whatever the broker holds."""


class ActiveIndexes:
    def __init__(self, partitions: Iterable[Partition]) -> None:
        self._partitions = partitions

    async def run(self) -> None:
        """One look, at those first that are furthest behind."""
        behind = [partition for partition in self._partitions if partition.log.active.unshown_entries > 0]
        behind.sort(key=lambda partition: -partition.log.active.unshown_entries)
        chosen = iter(behind[:LOOK_PARTITIONS_MAX])
        while turn := list(islice(chosen, TURN_PARTITIONS)):
            for partition in turn:
                log = partition.log
                # Since the list was made it may have been deleted, or its disk have failed.
                if not log.abandoned and log.failed is None:
                    log.active.show_indexes()
            await asyncio.sleep(0)
