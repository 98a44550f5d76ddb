"""What a broker holds, seen from outside: topics with ids and configs, and every batch byte for byte. Filled and read
with the raw client, so that two brokers on the same files can be compared exactly."""

from dataclasses import dataclass
from typing import Any

from headrace.protocol.api import API
from tests.compat.cases.produce import GZIP, LZ4, SNAPPY, ZSTD, packed
from tests.compat.normalise import split_batches
from tests.compat.raw import Connection, Rec, batch, encode_records

DYNAMIC_TOPIC_CONFIG = 1
FETCH_BYTES = 8 << 20


@dataclass(frozen=True)
class TopicContents:
    topic_id: bytes
    configs: dict[str, str]
    partitions: list[list[bytes]]  # batches as they lie in the log

    @property
    def record_counts(self) -> list[int]:
        return [sum(int.from_bytes(b[57:61], "big") for b in batches) for batches in self.partitions]


class Filler:
    """Writes to and reads from one broker."""

    def __init__(self, port: int) -> None:
        self.connection = Connection(port)
        self.versions = {api.name: api.latest_stable for api in API.values()}

    def close(self) -> None:
        self.connection.__exit__(None, None, None)

    def call(self, api: str, version: int | None = None, **fields: Any) -> Any:
        return self.connection.ask(api, self.versions[api] if version is None else version, fields)

    # Writing

    def create(self, name: str, partitions: int, **configs: str) -> None:
        settings = [{"name": k.replace("_", "."), "value": v} for k, v in configs.items()]
        new = {"name": name, "num_partitions": partitions, "replication_factor": 1, "configs": settings}
        (result,) = self.call("CreateTopics", topics=[new], timeout_ms=30_000).topics
        assert result.error_code == 0, result
        for partition in range(partitions):
            self.append(name, partition, batch(Rec(b"first", b"k")))

    def append(self, topic: str, partition: int, data: bytes) -> None:
        asked = [{"name": topic, "partition_data": [{"index": partition, "records": data}]}]
        for _ in range(2000):
            answer = self.call("Produce", 12, acks=-1, timeout_ms=10_000, topic_data=asked)
            (result,) = answer.responses[0].partition_responses
            if result.error_code not in (3, 6):  # not there yet: Apache Kafka's broker follows its controller
                break
        assert result.error_code == 0, (topic, partition, result)

    def append_many(self, topic: str, partition: int, count: int) -> None:
        """`count` records in batches of 100."""
        for start in range(0, count, 100):
            self.append(
                topic, partition, batch(*(Rec(b"more %d" % i, b"k%d" % i, i) for i in range(start, start + 100)))
            )

    def producer_id(self) -> int:
        for _ in range(2000):
            answer = self.call("InitProducerId", transactional_id=None, transaction_timeout_ms=60_000)
            if answer.error_code == 0:
                return int(answer.producer_id)
        raise AssertionError(answer)

    def fill(self) -> None:
        """Some of everything that leaves a trace in files."""
        self.create("plain", 3, retention_ms="-1")
        self.create("compacted", 1, cleanup_policy="compact", min_cleanable_dirty_ratio="0.9")
        self.create("rolled", 1, retention_ms="-1", segment_bytes="1048576", index_interval_bytes="1000")
        self.append_many("plain", 0, 300)
        records = [Rec(b"value %d" % i, b"key %d" % i, i, ((b"h", b"v"), (b"n", None))) for i in range(50)]
        for codec in (GZIP, SNAPPY, LZ4, ZSTD):
            self.append("plain", 1, batch(*records, attributes=codec, payload=packed(codec, encode_records(records))))
        me = self.producer_id()
        for sequence in range(8):
            self.append("plain", 2, batch(b"once", producer=(me, 0, sequence)))
        for number in range(20):
            self.append("compacted", 0, batch(Rec(b"%d" % number, b"k%d" % (number % 3))))
        for number in range(30):
            self.append(
                "rolled", 0, batch(Rec(bytes([number]) * 100_000, b"big"), base_timestamp=1_600_000_000_000 + number)
            )

    def add_more(self) -> None:
        """What the second broker leaves behind for the first."""
        self.append_many("plain", 0, 1000)
        self.append_many("compacted", 0, 1000)
        self.append_many("rolled", 0, 1000)
        self.create("later", 2, max_message_bytes="123456", retention_ms="-1")
        self.append_many("later", 1, 100)
        change = {"name": "flush.messages", "config_operation": 0, "value": "7"}
        resource = {"resource_type": 2, "resource_name": "plain", "configs": [change]}
        (result,) = self.call("IncrementalAlterConfigs", resources=[resource], validate_only=False).responses
        assert result.error_code == 0, result

    # Reading

    def contents(self) -> dict[str, TopicContents]:
        topics = [t for t in self.call("Metadata", topics=None).topics if not t.is_internal]
        return {
            t.name: TopicContents(
                t.topic_id, self.configs(t.name), [self.batches(t, p) for p in range(len(t.partitions))]
            )
            for t in topics
        }

    def configs(self, topic: str) -> dict[str, str]:
        asked = {"resource_type": 2, "resource_name": topic, "configuration_keys": None}
        (result,) = self.call("DescribeConfigs", resources=[asked]).results
        assert result.error_code == 0, result
        return {c.name: c.value for c in result.configs if c.config_source == DYNAMIC_TOPIC_CONFIG}

    def batches(self, topic: Any, partition: int, offset: int = 0) -> list[bytes]:
        found: list[bytes] = []
        while True:
            part = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": FETCH_BYTES}
            asked = [{"topic_id": topic.topic_id, "partitions": [part]}]
            answer = self.call("Fetch", 13, max_wait_ms=0, min_bytes=1, max_bytes=FETCH_BYTES, topics=asked)
            (result,) = answer.responses[0].partitions
            assert result.error_code == 0, (topic.name, partition, offset, result.error_code)
            whole = [
                b for b in split_batches(bytes(result.records or b"")) if len(b) == 12 + int.from_bytes(b[8:12], "big")
            ]
            if not whole:
                assert offset == result.high_watermark, f"{topic.name}-{partition} ends at {offset}"
                return found
            found += whole
            last = whole[-1]
            offset = int.from_bytes(last[:8], "big") + int.from_bytes(last[23:27], "big") + 1
