"""A broker of a few lines that answers what a test tells it to, so that every misbehaviour can be played."""

import asyncio
import ssl
from collections.abc import Callable
from typing import Any, Self

from headrace.errors import Err
from headrace.protocol import messages as m
from headrace.protocol.api import API, ApiKey
from headrace.protocol.frames import decode_request, encode_response

SILENT = object()
"""An answer that never comes."""
HANG_UP = object()
"""The connection is closed instead of an answer."""

TOPIC_ID = b"0123456789abcdef"

Handler = Callable[[Any, int], Any]


class FakeBroker:
    """Handlers by API key take (request, version) and return an answer, SILENT, HANG_UP, or raw bytes to be sent."""

    def __init__(self, *, node_id: int = 1, versions: dict[int, tuple[int, int]] | None = None) -> None:
        self.node_id = node_id
        self.host, self.port = "127.0.0.1", 0
        self.advertised: tuple[str, int] | None = None
        self.versions = versions or {key: (api.min_version, api.latest_stable) for key, api in API.items()}
        self.handlers: dict[int, Handler] = {ApiKey.API_VERSIONS: self._versions, ApiKey.METADATA: self._metadata}
        self.seen: list[tuple[ApiKey, int, Any]] = []
        self.topics: dict[str, m.MetadataResponse.MetadataResponseTopic] = {}
        self.greeting = b""
        self.tls: ssl.SSLContext | None = None
        self.connections = 0
        self._received = asyncio.Condition()
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, self.host, self.port, ssl=self.tls)
        if not self.port:
            self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.drop_all()
        assert self._server is not None
        self._server.close()

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def open_connections(self) -> int:
        return len(self._writers)

    def drop_all(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    def count(self, key: ApiKey) -> int:
        return sum(seen == key for seen, _, _ in self.seen)

    async def received(self, key: ApiKey, count: int = 1) -> None:
        """Wait until so many requests of one kind have come."""
        async with self._received:
            await self._received.wait_for(lambda: self.count(key) >= count)

    def add_topic(self, name: str, partitions: int = 1, leader: int | None = None) -> None:
        kind = m.MetadataResponse
        leader = self.node_id if leader is None else leader
        rows = [
            kind.MetadataResponsePartition(
                partition_index=index, leader_id=leader, leader_epoch=5, replica_nodes=[1], isr_nodes=[1]
            )
            for index in range(partitions)
        ]
        self.topics[name] = kind.MetadataResponseTopic(name=name, topic_id=TOPIC_ID, partitions=rows)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        if self.greeting:
            writer.write(self.greeting)
        try:
            while True:
                length = int.from_bytes(await reader.readexactly(4), "big")
                await self._answer(await reader.readexactly(length), writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _answer(self, frame: bytes, writer: asyncio.StreamWriter) -> None:
        api, version, correlation_id, _, request = decode_request(frame)
        self.seen.append((api.key, version, request))
        async with self._received:
            self._received.notify_all()
        answer = self.handlers[api.key](request, version)
        if asyncio.iscoroutine(answer):
            answer = await answer
        if answer is SILENT or writer.transport.is_closing():
            return  # what came behind a HANG_UP; `writelines` of Python 3.12 must not be called then
        if answer is HANG_UP:
            writer.transport.abort()
            return
        if isinstance(answer, bytes):
            writer.write(answer)
            return
        if isinstance(answer, tuple):
            # An answer in another version than asked.
            answer, version = answer
        writer.writelines(encode_response(api, version, correlation_id, answer))

    def _versions(self, request: Any, version: int) -> Any:
        kind = m.ApiVersionsResponse
        rows = [
            kind.ApiVersion(api_key=key, min_version=low, max_version=high)
            for key, (low, high) in self.versions.items()
        ]
        if version > self.versions[ApiKey.API_VERSIONS][1]:
            return kind(error_code=Err.UNSUPPORTED_VERSION, api_keys=rows), 0
        return kind(api_keys=rows)

    def _metadata(self, request: m.MetadataRequest, version: int) -> m.MetadataResponse:
        kind = m.MetadataResponse
        host, port = self.advertised or (self.host, self.port)
        names = list(self.topics) if request.topics is None else [row.name or "" for row in request.topics]
        unknown = Err.UNKNOWN_TOPIC_OR_PARTITION
        return kind(
            brokers=[kind.MetadataResponseBroker(node_id=self.node_id, host=host, port=port)],
            cluster_id="fake",
            controller_id=self.node_id,
            topics=[
                self.topics.get(name) or kind.MetadataResponseTopic(name=name, error_code=unknown) for name in names
            ],
        )
