"""The quorum's requests from other nodes, and what DescribeQuorum tells: bytes and records are added here to what the
node decides."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, NamedTuple

from headrace.clock import Clock
from headrace.errors import Err, KafkaError
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey
from headrace.quorum.downloading import read_chunk
from headrace.quorum.driver import Driver
from headrace.quorum.metadata_log import MetadataLog
from headrace.quorum.snapshots import SnapshotId
from headrace.raft.leader import Progress
from headrace.raft.messages import Event, FetchReply, Received, Reply, SnapshotReply
from headrace.raft.node import RaftNode
from headrace.raft.wire import FETCH_BYTES_MAX, TOPIC, Refused, decode_request, encode_reply, refusal
from headrace.storage.files import Disk


class VoterFacts(NamedTuple):
    id: int
    directory_id: bytes
    log_end_offset: int
    endpoints: tuple[tuple[str, str, int], ...] = ()
    last_fetch_ms: int = -1
    """Wall clock; the leader's own is always now."""
    last_caught_up_ms: int = -1


class QuorumFacts(NamedTuple):
    """What DescribeQuorum tells. Only the leader knows how far the others are."""

    leader_id: int
    leader_epoch: int
    high_watermark: int
    voters: tuple[VoterFacts, ...]
    observers: tuple[VoterFacts, ...]


def facts_of(node: RaftNode, clock: Clock) -> QuorumFacts:
    leader = node.leader
    now_ms = clock.monotonic_ms()
    to_wall_ms = clock.wall_ms() - now_ms

    def facts(progress: Progress | None, node_id: int, directory_id: bytes) -> VoterFacts:
        endpoints = node.endpoints_of(node_id) if node.voters.get(node_id) else ()
        if node_id == node.key.id:
            now = now_ms + to_wall_ms
            return VoterFacts(node_id, directory_id, node.log.end_offset, endpoints, now, now)
        if progress is None:
            return VoterFacts(node_id, directory_id, -1, endpoints)
        seen = [at + to_wall_ms if at >= 0 else -1 for at in (progress.fetched_ms, progress.caught_up_ms)]
        return VoterFacts(node_id, directory_id, progress.end_offset, endpoints, *seen)

    voters = tuple(
        facts(leader.voters.get(voter.id) if leader else None, voter.id, voter.directory_id) for voter in node.voters
    )
    observers = tuple(facts(progress, *progress.key) for progress in (leader.live_observers(now_ms) if leader else ()))
    # A leader's own epoch has to commit something first: before, it does not know what is committed.
    high_watermark = leader.high_watermark if leader is not None else node.high_watermark
    return QuorumFacts(node.leader_id, node.epoch, high_watermark, voters, observers)


class Server:
    """`serve` may be called any number of times at once."""

    def __init__(
        self,
        driver: Driver,
        log: MetadataLog,
        cluster_id: str,
        disk: Disk,
        clock: Clock,
        run_in_thread: Callable[[Callable[[], Any]], Awaitable[Any]],
    ) -> None:
        self._driver = driver
        self._log = log
        self._cluster_id = cluster_id
        self._disk = disk
        self._clock = clock
        self._run_in_thread = run_in_thread
        self._waiting: set[asyncio.Future[Reply]] = set()

    def drop(self) -> None:
        """Tell peers that still wait that this node no longer takes part."""
        for token in list(self._waiting):
            token.cancel()

    async def serve(self, key: ApiKey, message: Any, version: int) -> Any:
        if key is ApiKey.DESCRIBE_QUORUM:
            return self._describe(message, version)
        try:
            request = decode_request(key, message, version, self._cluster_id)
        except Refused as refused:
            return refused.response
        reply = await self.decide(lambda token: Received(token, request))
        if reply is None:
            return refusal(key, Err.BROKER_NOT_AVAILABLE)
        if isinstance(reply, FetchReply) and reply.read_from is not None:
            asked_bytes = min(message.max_bytes, message.topics[0].partitions[0].partition_max_bytes)
            reply = reply._replace(records=self._read(reply.read_from, asked_bytes))
        elif isinstance(reply, SnapshotReply) and reply.snapshot is not None:
            reply = await self._with_chunk(reply, message.max_bytes)
        return encode_reply(key, reply, version, self._driver.node.listener)

    async def decide(self, event: Callable[["asyncio.Future[Reply]"], Event]) -> Reply | None:
        """What the node says to an event that wants an answer.

        None while it takes no part: it has not begun, is about to end, or has no room to write down what it would say.
        """
        if not self._driver.running:
            return None
        token: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting.add(token)
        token.add_done_callback(self._waiting.discard)
        self._driver.step(event(token))
        if not self._driver.running:
            token.cancel()
        await asyncio.wait([token])
        return None if token.cancelled() else token.result()

    def _read(self, offset: int, bytes_max: int) -> bytes:
        """Whole batches and perhaps a piece of one, as in any Fetch. Also what is not committed: that is how it gets
        there."""
        with suppress(KafkaError):
            piece = self._log.log.read(offset, max(0, min(bytes_max, FETCH_BYTES_MAX)), self._log.end_offset)
            if piece is not None:
                try:
                    return piece.read()
                finally:
                    piece.release()
        return b""

    async def _with_chunk(self, reply: SnapshotReply, bytes_max: int) -> SnapshotReply:
        assert reply.snapshot is not None
        snapshot, folder, position = SnapshotId(*reply.snapshot), self._log.log.path, reply.position
        size = max(1, min(bytes_max, FETCH_BYTES_MAX))
        try:
            chunk = await self._run_in_thread(lambda: read_chunk(self._disk, folder, snapshot, position, size))
        except FileNotFoundError:
            return SnapshotReply(Err.SNAPSHOT_NOT_FOUND, reply.leadership)
        return reply._replace(chunk=chunk)

    # --- DescribeQuorum -----------------------------------------------------------------------------------------------

    def _describe(self, message: m.DescribeQuorumRequest, version: int) -> m.DescribeQuorumResponse:
        kind = m.DescribeQuorumResponse
        named = [(topic.topic_name, asked.partition_index) for topic in message.topics for asked in topic.partitions]
        if len(message.topics) != 1 or named != [(TOPIC, 0)]:
            # One strange partition spoils the whole request: that is how Kafka takes it.
            return kind(topics=[_not_the_quorum(topic) for topic in message.topics])
        facts = facts_of(self._driver.node, self._clock)
        if self._driver.node.leader is None:
            error = Err.NOT_LEADER_OR_FOLLOWER
            partition = kind.PartitionData(error_code=error, error_message=error.text)
            return kind(topics=[kind.TopicData(topic_name=TOPIC, partitions=[partition])])
        return describe(facts, version)


def describe(facts: QuorumFacts, version: int) -> m.DescribeQuorumResponse:
    kind = m.DescribeQuorumResponse
    partition = kind.PartitionData(
        leader_id=facts.leader_id,
        leader_epoch=facts.leader_epoch,
        high_watermark=facts.high_watermark,
        current_voters=[_replica(voter, version) for voter in facts.voters],
        observers=[_replica(observer, version) for observer in facts.observers],
    )
    response = kind(topics=[kind.TopicData(topic_name=TOPIC, partitions=[partition])])
    if version >= 2:
        response.nodes = [
            kind.Node(
                node_id=voter.id,
                listeners=[kind.Listener(name=name, host=host, port=port) for name, host, port in voter.endpoints],
            )
            for voter in facts.voters
        ]
    return response


def _replica(one: VoterFacts, version: int) -> Any:
    state = m.DescribeQuorumResponse.ReplicaState(replica_id=one.id, log_end_offset=one.log_end_offset)
    if version >= 1:
        state.last_fetch_timestamp, state.last_caught_up_timestamp = one.last_fetch_ms, one.last_caught_up_ms
    if version >= 2:
        state.replica_directory_id = one.directory_id
    return state


def _not_the_quorum(topic: Any) -> Any:
    kind = m.DescribeQuorumResponse
    return kind.TopicData(
        topic_name=topic.topic_name,
        partitions=[
            kind.PartitionData(
                partition_index=asked.partition_index,
                error_code=Err.UNKNOWN_TOPIC_OR_PARTITION,
                error_message="only the quorum of the metadata log can be described",
            )
            for asked in topic.partitions
        ],
    )
