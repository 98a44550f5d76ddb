"""`headrace.Producer`: records to topics, from asyncio."""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, Self, Unpack

from headrace.client.api.arguments import check_loop
from headrace.client.api.options import (
    COMPRESSIONS,
    PARTITIONERS,
    PRODUCER_NAMES,
    PRODUCER_UNUSED,
    OptionRefused,
    ProducerOptions,
    ProducerSettings,
)
from headrace.client.api.serializers import Encode, SerializationFailed, encoder_of, plain_bytes
from headrace.client.api.transaction import Transaction
from headrace.client.errors import ClientError, NotReady, RequestFailed, RequestTimedOut
from headrace.client.net.cluster import Cluster, no_partition
from headrace.client.options import choose, read_settings
from headrace.client.produce.deliveries import Delivery, OpenBatch, RecordMetadata, WrittenBatch
from headrace.client.produce.limits import IN_FLIGHT_MAX
from headrace.client.produce.partitioner import KeyPartitioner, RoundRobin, Sticky
from headrace.client.produce.producer import ProducerCore
from headrace.client.produce.transactions import ProducerTransactions
from headrace.errors import Err
from headrace.records.compression import Codec
from headrace.records.reader import Headers

STICKY_BYTES = 16 << 10
"""Records without a key stay with one partition for so many bytes, as with Kafka's clients."""
YIELD_BYTES = 128 << 10
"""After so many bytes `send_soon` lets the event loop turn, so that a sender that never waits sends, too."""

HeadersLike = Mapping[str, bytes | str | None] | Iterable[tuple[str, bytes | str | None]]


class Producer:
    """Sends records to topics of Headrace or any other Kafka.

        async with headrace.Producer("127.0.0.1:9092") as producer:
            where = await producer.send("orders", b"a coffee", key=b"table 7")

    A record that was acknowledged is on the disks of all in-sync replicas, exactly once, behind those sent to its
    partition before: `acks="all"` and idempotence are the defaults. Options are keywords (`ProducerSettings` has all of
    them) or, in `config`, the names of Kafka's own clients. Nothing connects before `start` or `async with`.
    """

    def __init__(
        self,
        bootstrap: str | Iterable[str] | None = None,
        *,
        config: Mapping[str, Any] | None = None,
        **options: Unpack[ProducerOptions],
    ) -> None:
        given = {**options, "bootstrap": bootstrap}
        self.settings = read_settings(ProducerSettings, PRODUCER_NAMES, PRODUCER_UNUSED, config, given)
        if self.settings.transactional_id == "":
            raise OptionRefused(
                "option transactional_id is empty: name it, or leave it out to write without transactions"
            )
        self._acks = _acks_of(self.settings.acks)
        self._idempotent = _idempotence_of(self.settings, self._acks)
        self._codec = Codec[choose("compression", self.settings.compression, COMPRESSIONS).upper()]
        self._encode_key: Encode | None = encoder_of(self.settings.key_serializer, "key_serializer")
        self._encode_value: Encode | None = encoder_of(self.settings.value_serializer, "value_serializer")
        if not callable(self.settings.partitioner):
            choose("partitioner", self.settings.partitioner, PARTITIONERS)
        self._custom: Callable[[str, bytes | None, int], int] | None = (
            self.settings.partitioner if callable(self.settings.partitioner) else None
        )
        self._keys = KeyPartitioner()
        self._keyless: dict[str, Sticky | RoundRobin] = {}
        self._cluster: Cluster | None = None
        self._core: ProducerCore | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_closed = False
        self._since_yield = 0
        if self.settings.telemetry is not None:
            self.send_soon = self._traced  # type: ignore[method-assign]

    # -- life

    async def start(self) -> None:
        """Connect. `async with` does it. Raises ClientError when no broker answers."""
        self._check_not_closed()
        if self._core is not None:
            return
        settings = self.settings
        cluster = settings.new_cluster()
        transactions = None
        if settings.transactional_id is not None:
            transactions = ProducerTransactions(
                cluster, settings.transactional_id, timeout_ms=settings.transaction_timeout_ms
            )
        core = ProducerCore(
            cluster,
            transactions=transactions,
            acks=self._acks,
            idempotent=self._idempotent,
            retries=settings.retries,
            in_flight_max=settings.max_in_flight,
            request_bytes_max=settings.request_bytes,
            buffer_bytes_max=settings.buffer_bytes,
            batch_bytes=settings.batch_bytes,
            linger_s=settings.linger_ms / 1000,
            codec=self._codec,
            level=settings.compression_level,
            delivery_timeout_s=settings.delivery_timeout_ms / 1000,
            produce_timeout_ms=settings.request_timeout_ms,
            metadata_max_age_s=settings.metadata_max_age_ms / 1000,
        )
        try:
            await cluster.refresh(())
            await core.__aenter__()
        except BaseException:
            cluster.close()
            raise
        self._cluster, self._core, self._loop = cluster, core, asyncio.get_running_loop()

    async def close(self, *, flush: bool = True) -> None:
        """Send what is waiting (unless told not to), and disconnect.

        Raises the error of a record that failed and whose delivery nobody has looked at.
        """
        core, cluster = self._core, self._cluster
        self._is_closed = True
        if core is None or cluster is None:
            return
        check_loop(self._loop, "producer")
        self._core = self._cluster = None
        try:
            if flush:
                await core.settled()
        finally:
            await core.close()
            cluster.close()
        if flush:
            _raise_unseen(core)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self.close()
            return
        try:
            # What was sent before an error in the caller's code still goes out, but may not hide that error.
            await self.close(flush=kind is not asyncio.CancelledError)
        except ClientError:
            return

    # -- sending

    async def send(
        self,
        topic: str,
        value: Any,
        *,
        key: Any = None,
        headers: HeadersLike | None = None,
        timestamp: int | datetime | None = None,
        partition: int | None = None,
    ) -> RecordMetadata:
        """Send a record, wait until it is acknowledged, and return where it is. Raises ClientError when it is not.

        Without a partition, the key decides, as with Kafka's clients; without a key, the partitioner. `timestamp` is in
        milliseconds; the default is now. A value of None is a tombstone.
        """
        check_loop(self._loop, "producer")
        delivery = await self.send_soon(
            topic, value, key=key, headers=headers, timestamp=timestamp, partition=partition
        )
        if self._core is not None:
            self._core.hurry(topic, delivery.partition)
        return await delivery

    async def send_soon(
        self,
        topic: str,
        value: Any,
        *,
        key: Any = None,
        headers: HeadersLike | None = None,
        timestamp: int | datetime | None = None,
        partition: int | None = None,
    ) -> Delivery:
        """Put a record into its batch and return at once; await the `Delivery` that comes back, or look at it later.

        Waits only while `buffer_bytes` are on their way. Records of one partition are written in the order of calls.
        """
        core = self._core
        if core is None:
            raise self._not_started()
        if core.is_full or topic not in core.cluster.topics or self._since_yield > YIELD_BYTES:
            await self._wait(core, topic)
        try:
            return self._put(core, topic, value, key, headers, timestamp, partition)
        except NotReady as first:
            wait = first
        while True:  # once for the key, once for the value
            await asyncio.to_thread(wait.learn)
            try:
                return self._put(self._running(), topic, value, key, headers, timestamp, partition)
            except NotReady as again:
                wait = again

    async def _traced(self, topic: str, value: Any, *, key: Any = None, headers: Any = None, **more: Any) -> Delivery:
        """`send_soon` within a span, whose context goes along in the headers."""
        telemetry = self.settings.telemetry
        span, headers = telemetry.begin_send(topic, key, headers, self.settings.client_id)
        try:
            delivery = await Producer.send_soon(self, topic, value, key=key, headers=headers, **more)
        except BaseException as error:
            telemetry.fail(span, error)
            raise
        delivery.notify(partial(telemetry.sent, span))
        return delivery

    async def send_batch(
        self,
        topic: str,
        values: Iterable[Any],
        *,
        keys: Iterable[Any] | None = None,
        headers: HeadersLike | None = None,
        timestamp: int | datetime | None = None,
        partition: int | None = None,
    ) -> list[RecordMetadata]:
        """Send many records, wait for all, and return where each is. `headers` and `timestamp` are those of all.

        Raises the first error; the others may be written.
        """
        whole = _pairs(values, keys)
        deliveries = [
            await self.send_soon(topic, value, key=key, headers=headers, timestamp=timestamp, partition=partition)
            for value, key in whole
        ]
        self._running().send_open()
        return [await delivery for delivery in deliveries]

    async def send_table(
        self,
        topic: str,
        table: Any,
        *,
        partition: int | None = None,
        on_written: Callable[[WrittenBatch], object] | None = None,
    ) -> int:
        """Send every row of a `pyarrow.Table` or RecordBatch as a record, wait for all, and return how many there are.

        Of its columns, value is needed; key, headers and timestamp (of Arrow's type) are used if they are there.
        Serializers are not. `on_written` is told where each batch of rows went, in the order of its partition's
        rows. Raises the first error; other rows may be written. Needs the extra `columnar`.
        """
        from headrace.client.api.tables import encode_table

        core = self._running()
        await self._wait(core, topic)
        if core.transactions is not None:
            core.transactions.steps.check_open()
        count = len(core.cluster.topics[topic].partitions)
        if partition is not None and (type(partition) is not int or not 0 <= partition < count):
            raise _no_partition(topic, partition, count)
        pieces = encode_table(
            topic,
            table,
            count,
            partition=partition,
            sticky=Sticky(self.settings.batch_bytes),
            codec=core.codec,
            level=core.level,
            batch_bytes=core.batch_bytes,
            transactional=core.transactions is not None,
        )
        # Of a batch that was sent only this is kept: its bytes are given back when they are acknowledged.
        sent: list[OpenBatch] = []
        for batches in pieces:
            for batch in batches:
                batch.source = OpenBatch.whole(topic, batch.partition, batch.count, 0.0)
                sent.append(batch.source)
            await core.send(batches)
            await asyncio.sleep(0)  # they leave while the next piece is encoded
        rows = 0
        for source in sent:
            # More than one where the broker found the batch too large: of those some may have failed.
            async for run in source.written():
                rows += run.count
                if on_written is not None:
                    on_written(run)
        return rows

    async def flush(self) -> None:
        """Wait until every record sent so far is acknowledged, or failed for good.

        Raises the error of one whose delivery nobody has looked at.
        """
        core = self._running()
        await core.settled()
        _raise_unseen(core)

    async def partitions(self, topic: str) -> int:
        """How many partitions a topic has. Raises RequestFailed if there is no such topic."""
        return await self._running().partition_count(topic)

    def transaction(self) -> Transaction:
        """`async with producer.transaction() as transaction`: what is sent within is seen by readers with
        read_committed all at once, or never. Needs the option transactional_id."""
        core = self._running()
        if core.transactions is None:
            raise ClientError("transactions need a name that outlives this process: give the producer transactional_id")
        return Transaction(core, core.transactions)

    # -- inside

    def _put(
        self,
        core: ProducerCore,
        topic: str,
        value: Any,
        key: Any,
        headers: HeadersLike | None,
        timestamp: int | datetime | None,
        partition: int | None,
    ) -> Delivery:
        if core.transactions is not None:
            core.transactions.steps.check_open()
        # Mostly there is no serializer and nothing to convert: two calls less for each record.
        plain = type(value) is bytes and self._encode_value is None
        value_bytes = value if plain else _encode(self._encode_value, topic, value, "value")
        plain = key is None and self._encode_key is None
        key_bytes = None if plain else _encode(self._encode_key, topic, key, "key")
        size = (len(key_bytes) if key_bytes is not None else 0) + (len(value_bytes) if value_bytes is not None else 0)
        if partition is None:
            partition = self._choose(core, topic, key_bytes, size)
        elif type(partition) is not int or not 0 <= partition < len(core.cluster.topics[topic].partitions):
            raise _no_partition(topic, partition, len(core.cluster.topics[topic].partitions))
        if size > core.request_bytes_max:
            raise _too_large(topic, size, core.request_bytes_max)
        if timestamp is None:
            time_ms = time.time_ns() // 1_000_000
        else:
            time_ms = _milliseconds(timestamp)
        fields: Headers = () if headers is None else _headers(headers)
        batch: OpenBatch = core.append(topic, partition, time_ms, key_bytes, value_bytes, fields)
        self._since_yield += size
        return Delivery(batch, batch.count - 1, time_ms)

    def _choose(self, core: ProducerCore, topic: str, key: bytes | None, size: int) -> int:
        count = len(core.cluster.topics[topic].partitions)
        if self._custom is not None:
            found = self._custom(topic, key, count)
            if type(found) is not int or not 0 <= found < count:
                raise _no_partition(topic, found, count)
            return found
        if key is not None:
            return self._keys.partition(key, count)
        keyless = self._keyless.get(topic)
        if keyless is None:
            sticky = self.settings.partitioner == "sticky"
            keyless = self._keyless[topic] = (
                Sticky(min(STICKY_BYTES, self.settings.batch_bytes)) if sticky else RoundRobin()
            )
        return keyless.next(size, count)

    async def _wait(self, core: ProducerCore, topic: str) -> None:
        """For room, for a topic's partitions to be known, for the event loop to turn."""
        check_loop(self._loop, "producer")
        self._since_yield = 0
        if not isinstance(topic, str) or not topic:
            raise ClientError(f"the topic is {topic!r}: give its name as text")
        core.check()
        limit_s = self.settings.max_block_ms / 1000
        try:
            async with asyncio.timeout(limit_s):
                if topic not in core.cluster.topics:
                    await core.partition_count(topic)
                if core.is_full:
                    await core.room()
                else:
                    await asyncio.sleep(0)
        except TimeoutError:
            why = (
                f"the buffer of {core.buffer_bytes_max} bytes (buffer_bytes) is full of records that no broker has "
                "taken" if core.is_full else f"nothing is known of topic {topic!r}"
            )  # fmt: skip
            raise RequestTimedOut(f"{why}, for {limit_s:g} s (max_block_ms)") from None

    def _running(self) -> ProducerCore:
        if self._core is None:
            raise self._not_started()
        check_loop(self._loop, "producer")
        return self._core

    def _not_started(self) -> ClientError:
        self._check_not_closed()
        return ClientError("the producer is not started: use `async with Producer(...) as producer`, or await start()")

    def _check_not_closed(self) -> None:
        if self._is_closed:
            raise ClientError("the producer is closed: make a new one")


def _raise_unseen(core: ProducerCore) -> None:
    failed, core.failed = core.failed, []
    for batch in failed:
        if (error := batch.unseen_failure) is not None:
            raise error


def _encode(encode: Encode | None, topic: str, value: Any, what: str) -> bytes | None:
    if encode is None:
        return plain_bytes(value, what)
    try:
        found = encode(topic, value)
    except (ClientError, NotReady):
        raise
    except Exception as error:
        raise SerializationFailed(
            f"the {what} of a record for topic {topic!r} cannot be serialized: {error}"
        ) from error
    if found is not None and type(found) is not bytes:
        return plain_bytes(found, what)
    return found


def _headers(given: HeadersLike) -> Headers:
    rows = given.items() if isinstance(given, Mapping) else given
    if not isinstance(rows, Iterable):
        raise ClientError(f"the headers are {given!r}: give a dict, or pairs of a name and bytes")
    found: list[tuple[str, bytes | None]] = []
    for row in rows:
        if isinstance(row, str | bytes) or not isinstance(row, Iterable) or len(pair := tuple(row)) != 2:
            raise ClientError(f"a header is {row!r}: give a dict, or pairs of a name and bytes")
        name, content = pair
        if not isinstance(name, str):
            raise ClientError(f"the name of a header is {name!r}: give text")
        found.append((name, plain_bytes(content, f"content of header {name!r}")))
    return tuple(found)


def _pairs(values: Iterable[Any], keys: Iterable[Any] | None) -> list[tuple[Any, Any]]:
    """Values with their keys. Raises ClientError before anything is sent of what is no list of values."""
    for what, given in (("values", values), ("keys", () if keys is None else keys)):
        if isinstance(given, str | bytes | bytearray | memoryview) or not isinstance(given, Iterable):
            raise ClientError(f"the {what} are {type(given).__name__}: give a list, with one for each record")
    if keys is None:
        return [(value, None) for value in values]
    values, keys = [*values], [*keys]
    if len(values) != len(keys):
        raise ClientError(f"there are {len(values)} values and {len(keys)} keys: give a key for each, None for no key")
    return [*zip(values, keys, strict=True)]


def _milliseconds(given: int | datetime) -> int:
    if isinstance(given, datetime):
        return round(given.timestamp() * 1000)
    if isinstance(given, bool) or not isinstance(given, int) or not 0 <= given < 1 << 62:
        raise ClientError(f"the timestamp is {given!r}: give milliseconds since 1970, or a datetime")
    return given


def _no_partition(topic: str, partition: Any, count: int) -> ClientError:
    if type(partition) is not int:
        return ClientError(f"the partition is {partition!r}: give its number")
    return no_partition(topic, partition, count)


def _too_large(topic: str, size: int, limit: int) -> RequestFailed:
    return RequestFailed(
        f"a record for topic {topic!r}",
        Err.MESSAGE_TOO_LARGE,
        f"it has {size} bytes, and a request may have {limit}: raise request_bytes, and the topic's max.message.bytes",
    )


def _acks_of(given: int | str) -> int:
    found = {"all": -1, "-1": -1, "0": 0, "1": 1}.get(str(given).lower())
    if found is None:
        raise OptionRefused(f"option acks is {given!r}: write 'all', 1 or 0")
    return found


def _idempotence_of(settings: ProducerSettings, acks: int) -> bool:
    """As with Kafka's clients: on by default, off where other options rule it out, refused if both are said."""
    against = [
        words
        for rules_out, words in (
            (acks != -1, "acks='all'"),
            (settings.retries == 0, "retries above 0"),
            (settings.max_in_flight > IN_FLIGHT_MAX, f"max_in_flight of at most {IN_FLIGHT_MAX}"),
        )
        if rules_out
    ]
    if against and (settings.idempotence or settings.transactional_id is not None):
        raise OptionRefused(f"idempotence needs {' and '.join(against)}: change that, or set idempotence=False")
    return not against if settings.idempotence is None else settings.idempotence
