"""Finding the broker that coordinates a group or a transactional id, and asking it, wherever it is now."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from headrace.client.errors import ClientError, NotKafka, check
from headrace.client.net.cluster import Cluster, is_retriable
from headrace.client.net.connection import Connection
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey

T = TypeVar("T")

GROUP, TRANSACTION = 0, 1
"""Types of keys in FindCoordinator."""
SEVERAL_KEYS_VERSION = 4


class Coordinators:
    """The coordinators of one kind of thing, by its name."""

    def __init__(self, cluster: Cluster, key_type: int, what: str) -> None:
        self._cluster = cluster
        self._key_type = key_type
        self._what = what
        """For people: "group", "transactional id"."""
        self.known: dict[str, int] = {}

    @property
    def request_timeout_s(self) -> float:
        return self._cluster.request_timeout_s

    async def find(self, key: str) -> int:
        """The broker that coordinates it."""
        kind = m.FindCoordinatorRequest

        async def attempt() -> int:
            connection = await self._cluster.any_connection()
            several = connection.version_of(ApiKey.FIND_COORDINATOR) >= SEVERAL_KEYS_VERSION
            request = kind(key_type=self._key_type)
            if several:
                request.coordinator_keys = [key]
            else:
                request.key = key
            answer: m.FindCoordinatorResponse = await connection.request(
                ApiKey.FIND_COORDINATOR, request, timeout_s=self._cluster.request_timeout_s
            )
            if several and len(answer.coordinators) != 1:
                raise NotKafka(f"{connection.peer} answered FindCoordinator of one key with another number of them")
            found = answer.coordinators[0] if several else answer
            check(found.error_code, f"coordinator of {self._what} {key!r}", found.error_message or None)
            return found.node_id

        return await self._cluster.retrying(attempt)

    async def ask(
        self,
        key: str,
        ask: Callable[[Connection], Awaitable[T]],
        *,
        can_retry: Callable[[ClientError], bool] = is_retriable,
    ) -> T:
        """Ask the coordinator; another one is looked for when it has moved."""

        async def attempt() -> T:
            node_id = self.known.get(key)
            if node_id is None:
                node_id = self.known[key] = await self.find(key)
            return await ask(await self._cluster.broker_connection(node_id))

        def judge(error: ClientError) -> bool:
            if can_retry(error):
                self.known.pop(key, None)
                return True
            return False

        return await self._cluster.retrying(attempt, can_retry=judge)
