"""How many bytes partitions have, as their brokers say: for moves that leave brokers even in bytes, too.

Asked for only when something is to be planned, and then not again for a while: sizes decide between moves, and no move
depends on them. A broker that does not answer is done without.
"""

import asyncio
from collections.abc import Callable, Iterable

from headrace.client.errors import ClientError
from headrace.client.net.connection import Connection
from headrace.metadata.balance.plans import TopicPartition
from headrace.metadata.image import Broker, Endpoint, Image
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey

KEEP_MS = 60_000
TIMEOUT_S = 5.0
AT_A_TIME = 16


class PartitionSizes:
    def __init__(self, client_id: str, endpoint_of: Callable[[Broker], Endpoint | None]) -> None:
        self._client_id = client_id
        self._endpoint_of = endpoint_of
        self._found: dict[TopicPartition, int] = {}
        self._good_until_ms = 0

    async def get(self, image: Image, now_ms: int) -> dict[TopicPartition, int]:
        """The largest replica of each partition that a broker has told of."""
        if now_ms >= self._good_until_ms:
            self._good_until_ms = now_ms + KEEP_MS
            self._found = await self._ask([broker for broker in image.brokers.values() if broker.active])
        return self._found

    async def _ask(self, brokers: Iterable[Broker]) -> dict[TopicPartition, int]:
        slots = asyncio.Semaphore(AT_A_TIME)
        sizes: dict[TopicPartition, int] = {}

        async def one(broker: Broker) -> None:
            endpoint = self._endpoint_of(broker)
            if endpoint is None:
                return
            async with slots:
                answer = await self._describe(endpoint)
            for log_dir in answer.results if answer is not None else ():
                for topic in log_dir.topics:
                    for part in topic.partitions:
                        at = topic.name, part.partition_index
                        sizes[at] = max(sizes.get(at, 0), part.partition_size)
            await asyncio.sleep(0)  # a broker's answer may have thousands of rows: others have their turn in between

        await asyncio.gather(*map(one, brokers))
        return sizes

    async def _describe(self, endpoint: Endpoint) -> m.DescribeLogDirsResponse | None:
        try:
            connection = await Connection.open(
                endpoint.host, endpoint.port, client_id=self._client_id, timeout_s=TIMEOUT_S
            )
        except (ClientError, OSError):
            return None
        try:
            request = m.DescribeLogDirsRequest(topics=None)
            found: m.DescribeLogDirsResponse = await connection.request(
                ApiKey.DESCRIBE_LOG_DIRS, request, timeout_s=TIMEOUT_S
            )
            return found
        except ClientError:
            return None
        finally:
            connection.close()
