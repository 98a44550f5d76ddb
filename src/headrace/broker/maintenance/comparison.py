"""Compares replicas: a segment may be whole by its checksums and yet not be what the others have.

Another's file under its name, or one from an older copy of the disk, passes every check of its own. After a pass each
broker asks the others for the digests of the ranges of offsets that both have checked (`storage/scrub.py`), in a tagged
field that Apache Kafka passes over. Most replicas are right; where there is no majority, the leader is. Logs that are
or were compacted are left out: their replicas may differ.
"""

import logging
from array import array
from collections import Counter
from struct import pack, unpack
from typing import NamedTuple

from headrace.broker.cluster.peers import Peers
from headrace.broker.metadata_cache import MetadataCache
from headrace.broker.replicas.cleaner_manager import CleanerManager
from headrace.broker.replicas.hosted import Replicas
from headrace.broker.replicas.partition import Partition
from headrace.client.errors import ClientError
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey
from headrace.protocol.private_fields.scrub import CellDigests, ScrubQuestion, ask, status_in
from headrace.storage.scrub import CELL_OFFSETS, Checked
from headrace.storage.segment import Segment

logger = logging.getLogger("headrace.comparison")

LANE = "comparison"
TIMEOUT_S = 10.0
CELLS_MAX = 10_000
"""In one question."""
UNKNOWN = 0
"""In place of a digest. One that is really 0 is not compared."""


class Sums(NamedTuple):
    """Digests of the whole cells of a replica, as its last check found them."""

    first_cell: int
    digests: "array[int]"
    segments: tuple[tuple[Segment, int], ...]
    """With their sizes: the log must still have them as they were."""

    def is_of(self, partition: Partition) -> bool:
        there = set(partition.log.segments)
        return all(segment in there and segment.size == size for segment, size in self.segments)


class Comparison:
    """What this broker knows of its own replicas, and how it finds out who else is right."""

    def __init__(
        self, node_id: int, metadata: MetadataCache, peers: Peers, replicas: Replicas, cleaner: CleanerManager
    ) -> None:
        self._node_id = node_id
        self._metadata = metadata
        self._peers = peers
        self._replicas = replicas
        self._cleaner = cleaner
        self._sums: dict[Partition, Sums] = {}
        self.pending: dict[Partition, None] = {}
        """Not yet compared with every replica in sync: others may have to end their own pass first."""

    def note(self, partition: Partition, found: list[tuple[Segment, Checked]]) -> None:
        """All closed segments of a replica were checked, and nothing was wrong with any of them."""
        self._sums.pop(partition, None)
        log = partition.log
        was_compacted = self._cleaner.has_cleaned(partition)
        if log.config.compact or was_compacted or log.holes or not found:
            return
        first_read, last_read = found[0][0].base_offset, found[-1][1].target
        between = [one for one in log.segments if one.size and first_read <= one.base_offset <= last_read.base_offset]
        if between != [segment for segment, _ in found]:
            return  # something was put back or taken out meanwhile: the next pass reads all of it
        start = max(log.log_start_offset, first_read)
        # Not up to where the log is closed by now: what was closed since the pass began was not read.
        end = min(partition.high_watermark, last_read.end_offset)
        first, last = -(-start // CELL_OFFSETS), end // CELL_OFFSETS
        if first >= last:
            return
        digests = array("Q", bytes(8 * (last - first)))
        for _, checked in found:
            for cell, digest in checked.cells:
                if first <= cell < last:
                    digests[cell - first] = (digests[cell - first] + digest) % (1 << 64)
        segments = tuple((segment, checked.target.size) for segment, checked in found)
        self._sums[partition] = Sums(first, digests, segments)
        self.pending[partition] = None

    def answer(self, asked: CellDigests) -> bytes:
        """This broker's digests of the cells asked for, in the same order; UNKNOWN where it has none."""
        partition = self._replicas.known(asked.topic, asked.partition)
        own = self._own(partition) if partition is not None else None
        count = min(asked.count, CELLS_MAX)
        found = array("Q", bytes(8 * count))
        if own is not None:
            for at in range(count):
                cell = asked.first_cell + at - own.first_cell
                if 0 <= cell < len(own.digests):
                    found[at] = own.digests[cell]
        return pack(f">{count}Q", *found)

    def _own(self, partition: Partition) -> Sums | None:
        sums = self._sums.get(partition)
        return sums if sums is not None and sums.is_of(partition) else None

    async def different(self, partition: Partition) -> list[Segment]:
        """The segments of a replica that are not what the others have."""
        own = self._own(partition)
        known = self._metadata.image.partition(partition.topic_id, partition.index)
        self.pending.pop(partition, None)
        if own is None or known is None:
            return []
        others = [node for node in known.isr if node != self._node_id]
        answers = {node: await self._ask(node, partition, own) for node in others}
        if any(UNKNOWN in digests for digests in answers.values()):
            self.pending[partition] = None
        if self._own(partition) is not own:
            return []  # changed meanwhile
        found: list[Segment] = []
        for at, digest in enumerate(own.digests[:CELLS_MAX]):
            votes = {
                node: digests[at] for node, digests in answers.items() if len(digests) > at and digests[at] != UNKNOWN
            }
            if digest == UNKNOWN or all(vote == digest for vote in votes.values()):
                continue
            right = verdict({self._node_id: digest, **votes}, len(known.replicas), known.leader)
            start = (own.first_cell + at) * CELL_OFFSETS
            logger.critical(
                "%s: offsets %d to %d differ between replicas: this one %016x, others %s; %s",
                partition, start, start + CELL_OFFSETS - 1, digest,
                ", ".join(f"{node} {vote:016x}" for node, vote in sorted(votes.items())),
                "nobody knows who is right until all replicas are checked" if right is None
                else "this one is copied anew" if right != digest else "another one has to be copied anew",
            )  # fmt: skip
            if right is not None and right != digest:
                found += [one for one in _within(partition, own, start) if one not in found]
        return found

    async def _ask(self, node: int, partition: Partition, own: Sums) -> "array[int]":
        address = self._metadata.address(node)
        empty: array[int] = array("Q")
        if address is None:
            return empty
        count = min(len(own.digests), CELLS_MAX)
        request = m.DescribeLogDirsRequest(topics=[])
        request.unknown_tags = ask(
            ScrubQuestion(compare=CellDigests(partition.topic, partition.index, own.first_cell, count))
        )
        try:
            answer = await self._peers.request(
                address, ApiKey.DESCRIBE_LOG_DIRS, request, timeout_s=TIMEOUT_S, lane=LANE
            )
        except ClientError as error:
            logger.info("%s: broker %d does not say what it has: %s", partition, node, error)
            return empty
        status = status_in(answer.unknown_tags)
        if status is None or status.digests is None or len(status.digests) % 8:
            return empty
        return array("Q", unpack(f">{len(status.digests) // 8}Q", status.digests))


def verdict(digests: dict[int, int], replicas: int, leader: int) -> int | None:
    """Whose digest is right: that of most replicas; without such a one the leader's, once all have been asked."""
    digest, count = Counter(digests.values()).most_common(1)[0]
    if 2 * count > replicas:
        return digest
    return digests.get(leader) if len(digests) == replicas else None


def _within(partition: Partition, own: Sums, start: int) -> list[Segment]:
    """The closed segments with batches of a cell."""
    bases = [segment.base_offset for segment in partition.log.segments]
    found = []
    for segment, _ in own.segments:
        following = min((base for base in bases if base > segment.base_offset), default=segment.base_offset)
        if segment.base_offset < start + CELL_OFFSETS and following > start:
            found.append(segment)
    return found
