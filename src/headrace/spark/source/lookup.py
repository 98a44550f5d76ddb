"""What the driver asks brokers about: which partitions a query reads, and where they begin and end."""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import Any, Self, TypeVar

from headrace.client.admin.admin import EARLIEST, LATEST, Admin
from headrace.client.admin.groups import Groups
from headrace.client.errors import BrokerUnreachable, ClientError, RequestFailed, RequestTimedOut
from headrace.client.net.background import LoopThread
from headrace.errors import Err
from headrace.spark.options import OptionError
from headrace.spark.source import offsets as o
from headrace.spark.source.offsets import Offsets, Position, TopicPartition, listed
from headrace.spark.source.options import SourceOptions

T = TypeVar("T")

AT_ONCE = 256


class Lookup:
    """Questions to one cluster, asked from Spark's threads; `with Lookup(options) as lookup`."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._thread = LoopThread("headrace-driver")
        self._admin = Admin(options.bootstrap, **options.client)
        self._connected = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        async def end() -> None:
            self._admin.cluster.close()

        self._thread.run(end())
        self._thread.close()

    # -- partitions

    def partitions(self, *, missing_ok: Iterable[str] | None = ()) -> list[TopicPartition]:
        """What the query reads, as of now. A topic that is not there is an error unless it is in `missing_ok`; with
        None any may be missing."""
        return self._retried(lambda: self._partitions(None if missing_ok is None else frozenset(missing_ok)))

    async def _partitions(self, missing_ok: frozenset[str] | None) -> list[TopicPartition]:
        options = self._options
        if options.pattern is not None:
            pattern = re.compile(options.pattern)
            topics = [topic for topic in await self._admin.list_topics() if pattern.fullmatch(topic.name)]
            return [(topic.name, index) for topic in topics for index in topic.partitions]
        wanted = (
            options.topics
            if options.topics is not None
            else tuple(dict.fromkeys(topic for topic, _ in options.assigned))
        )
        found: list[TopicPartition] = []
        for name in wanted:
            try:
                topic = await self._admin.describe_topic(name)
            except RequestFailed as error:
                if error.error is not Err.UNKNOWN_TOPIC_OR_PARTITION:
                    raise
                if missing_ok is not None and name not in missing_ok:
                    raise OptionError(
                        f"there is no topic {name!r}",
                        f"create it first, or mend the option {options.strategy!r}",
                        option=options.strategy,
                    ) from None
                continue
            found += [(name, index) for index in topic.partitions]
        if options.assigned:
            gone = [one for one in options.assigned if one not in found]
            if missing_ok is not None and any(topic not in missing_ok for topic, _ in gone):
                raise OptionError(
                    "option 'assign' names partitions that do not exist", f"{listed(gone)}", option="assign"
                )
            return [one for one in options.assigned if one in found]
        return found

    # -- offsets

    def earliest(self, partitions: Iterable[TopicPartition]) -> Offsets:
        return self._at(dict.fromkeys(partitions, EARLIEST))

    def latest(self, partitions: Iterable[TopicPartition], known: Offsets | None = None) -> Offsets:
        """Where partitions end. Asked again when one seems to end before an offset already read: a broker just elected
        may not know its high watermark yet."""
        wanted = dict.fromkeys(partitions, LATEST)
        found = self._at(wanted)
        for _ in range(self._options.offset_retries):
            if not known or all(offset >= known.get(one, 0) for one, offset in found.items()):
                break
            time.sleep(self._options.offset_pause_s)
            found = self._at(wanted)
        return found

    def first_at(self, timestamp_ms: int, partitions: Iterable[TopicPartition]) -> Offsets:
        """The first offset whose record is no older, -1 where there is none."""
        return self._at(dict.fromkeys(partitions, timestamp_ms))

    def resolve(self, position: Position, partitions: list[TopicPartition], *, starting: bool) -> Offsets:
        """A position in every partition, as offsets."""
        kind = position.kind
        if kind == "earliest":
            return self.earliest(partitions)
        if kind == "latest":
            return self.latest(partitions)
        if kind == "group":
            return self._of_group(position.group, partitions)
        if kind in ("offsets", "timestamps"):
            self._check_named(position, partitions, starting)
        if kind == "offsets":
            return self._marked(dict(position.by_partition))
        times = dict(position.by_partition) if kind == "timestamps" else dict.fromkeys(partitions, position.timestamp)
        found = self._at(times)
        for one, offset in found.items():
            if offset >= 0:
                continue
            if starting and self._options.no_match == "error":
                raise OptionError(
                    f"{one[0]}-{one[1]} has no record at or after {times[one]}",
                    "start earlier, or set startingOffsetsByTimestampStrategy to latest",
                )
            found[one] = o.LATEST
        return self._marked(found)

    def _check_named(self, position: Position, partitions: list[TopicPartition], starting: bool) -> None:
        odd = sorted(position.by_partition.keys() ^ set(partitions))
        if odd:
            what = ("starting" if starting else "ending") + (
                "Offsets" if position.kind == "offsets" else "OffsetsByTimestamp"
            )
            raise OptionError(
                f"option {what!r} must name exactly the partitions that are read; {listed(odd)} is in only one of both."
                " -1 stands for latest, -2 for earliest",
                option=what,
            )

    def _marked(self, offsets: Offsets) -> Offsets:
        """-1 and -2 replaced by what they stand for."""
        open_ends = {one: offset for one, offset in offsets.items() if offset < 0}
        return {**offsets, **self._at(open_ends)} if open_ends else offsets

    def _of_group(self, group: str, partitions: list[TopicPartition]) -> Offsets:
        committed = self._retried(lambda: self._groups().committed(group))
        found = {one: committed[one].offset for one in partitions if one in committed and committed[one].offset >= 0}
        if not found:
            raise OptionError(
                f"group {group!r} has committed nothing in what is read",
                "check its name in startingOffsets, or start at earliest or latest",
            )
        # What the group has never seen is new to it.
        return {**self.earliest([one for one in partitions if one not in found]), **found}

    def _at(self, wanted: dict[TopicPartition, int]) -> Offsets:
        return self._retried(lambda: self._list(wanted))

    async def _list(self, wanted: dict[TopicPartition, int]) -> Offsets:
        gate = asyncio.Semaphore(AT_ONCE)

        async def one(topic: str, partition: int, timestamp: int) -> int:
            async with gate:
                got = await self._admin.list_offsets(
                    topic, {partition: timestamp}, read_committed=self._options.read_committed
                )
                return got[partition].offset

        found = await asyncio.gather(*(one(*where, timestamp) for where, timestamp in wanted.items()))
        return dict(zip(wanted, found))

    # -- groups

    def _groups(self) -> Groups:
        return Groups(self._admin)

    def committed(self, group: str) -> dict[TopicPartition, Any]:
        return self._retried(lambda: self._groups().committed(group))

    def commit(self, group: str, offsets: Offsets, metadata: str = "") -> None:
        if offsets:
            self._retried(lambda: self._groups().commit(group, offsets, metadata=metadata))

    def delete_group(self, group: str) -> None:
        self._retried(lambda: self._groups().delete(group))

    # -- inside

    def _retried(self, work: Callable[[], Awaitable[T]]) -> T:
        """fetchOffset.numRetries times, fetchOffset.retryIntervalMs apart."""
        attempt = 0
        while True:
            try:
                return self._thread.run(self._connected_first(work))
            except ClientError as error:
                attempt += 1
                passing = isinstance(error, BrokerUnreachable | RequestTimedOut) or (
                    isinstance(error, RequestFailed) and error.error.retriable
                )
                if attempt > self._options.offset_retries or not passing:
                    raise
            time.sleep(self._options.offset_pause_s)

    async def _connected_first(self, work: Callable[[], Awaitable[T]]) -> T:
        if not self._connected:
            await self._admin.cluster.refresh(())
            self._connected = True
        return await work()
