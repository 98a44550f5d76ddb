"""What users run: confluent-kafka, aiokafka and kafka-python against a broker of ours, and the same tests against
Apache Kafka, so that a test which asks too much of a client is seen as such."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.compat.clients import CLIENTS, Client, Sent
from tests.compat.process import HeadraceProcess
from tests.compat.proxy import Proxy, every
from tests.reference.apache import ApacheKafka, Unavailable

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
BROKERS = ["headrace", pytest.param("apache", marks=pytest.mark.reference)]
BASE_MS = int(time.time()) * 1000 - 3_600_000
"""Old records would be deleted by the first look of retention, 30 s after a broker's start."""


@pytest.fixture(params=BROKERS)
def bootstrap(request: pytest.FixtureRequest) -> str:
    broker = request.getfixturevalue(request.param)
    assert isinstance(broker, HeadraceProcess | ApacheKafka)
    return broker.bootstrap


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest) -> Client:
    return CLIENTS[request.param]


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name of this test's own."""
    return "".join(c if c.isalnum() else "-" for c in request.node.name)[:200]


def wait_until(ready: Callable[[], bool]) -> None:
    """Apache Kafka answers admin calls when its controller has agreed; the broker follows within moments."""
    deadline = time.monotonic() + 60
    while not ready():
        assert time.monotonic() < deadline, "not within a minute"
        time.sleep(0.02)


@pytest.fixture
def new_topic(client: Client, bootstrap: str, topic: str) -> Callable[..., str]:
    def create(partitions: int = 1, **configs: str) -> str:
        client.create(bootstrap, topic, partitions, **configs)
        wait_until(lambda: client.partitions(bootstrap, topic) == partitions)
        return topic

    return create


RECORDS = [
    Sent(b"plain"),
    Sent(b"keyed", b"key"),
    Sent(None, b"tombstone"),
    Sent(b"", b""),
    Sent(b"x", b"headers", (("one", b"1"), ("one", b"again"), ("empty", b""), ("bin", bytes(range(256))))),
    Sent(b"later", None, (), BASE_MS + 5),
    Sent("grüße".encode(), "ключ".encode(), (("名", "値".encode()),)),
    Sent(bytes(range(256)) * 400),
    *(Sent(b"%d" % i, b"%d" % (i % 7), (), BASE_MS + i) for i in range(500)),
]


@pytest.mark.parametrize("codec", CODECS)
def test_records_come_back_as_sent(client: Client, bootstrap: str, new_topic: Callable[..., str], codec: str) -> None:
    if codec not in client.codecs():
        pytest.skip(f"this client has no {codec} here")
    topic = new_topic(retention_ms="-1")
    offsets = client.produce(bootstrap, topic, RECORDS, codec)
    assert sorted(offsets) == list(range(len(RECORDS)))
    assert client.consume(bootstrap, topic, len(RECORDS)) == RECORDS


def test_each_client_reads_what_the_others_wrote(bootstrap: str, topic: str) -> None:
    CLIENTS["confluent"].create(bootstrap, topic, 1, retention_ms="-1")
    wait_until(lambda: topic in CLIENTS["confluent"].topics(bootstrap))
    # kafka-python reads a null header but refuses to write one.
    expected = [Sent(b"null header", None, (("null", None), ("empty", b"")))]
    CLIENTS["confluent"].produce(bootstrap, topic, expected)
    for name, client in CLIENTS.items():
        for codec in client.codecs():
            batch = [Sent(f"{name} {codec} {i}".encode(), b"k", (("h", b"v"),)) for i in range(20)]
            client.produce(bootstrap, topic, batch, codec)
            expected += batch
    for client in CLIENTS.values():
        assert client.consume(bootstrap, topic, len(expected)) == expected


def test_from_one_byte_to_ten_megabytes(client: Client, bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic(retention_ms="-1", max_message_bytes=str(12 << 20))
    sizes = [1, 1 << 10, 1 << 16, 1 << 20, 10 << 20, 7, 3 << 20]
    records = [Sent(bytes([65 + i]) * size) for i, size in enumerate(sizes)]
    client.produce(bootstrap, topic, records)
    got = client.consume(bootstrap, topic, len(records))
    assert [len(r.value or b"") for r in got] == sizes
    assert got == records


def test_time_look_ups(client: Client, bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic(retention_ms="-1")
    client.produce(bootstrap, topic, [Sent(b"%d" % i, None, (), BASE_MS + 100 * i) for i in range(50)])
    assert client.offset_at(bootstrap, topic, BASE_MS) == 0
    assert client.offset_at(bootstrap, topic, BASE_MS + 1) == 1
    assert client.offset_at(bootstrap, topic, BASE_MS + 3000) == 30
    assert client.offset_at(bootstrap, topic, BASE_MS + 1_000_000) is None
    assert client.bounds(bootstrap, topic) == (0, 50)


def test_admin_calls(client: Client, bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic(2, retention_ms="-1", cleanup_policy="delete")
    assert topic in client.topics(bootstrap)
    assert client.config(bootstrap, topic, "retention.ms") == "-1"

    client.set_config(bootstrap, topic, "max.message.bytes", "123456")
    wait_until(lambda: client.config(bootstrap, topic, "max.message.bytes") == "123456")

    client.grow(bootstrap, topic, 5)
    wait_until(lambda: client.partitions(bootstrap, topic) == 5)

    client.produce(bootstrap, topic, [Sent(b"%d" % i) for i in range(10)])
    client.delete_records(bootstrap, topic, 4)
    assert client.bounds(bootstrap, topic) == (4, 10)
    assert [r.value for r in client.consume(bootstrap, topic, 6)] == [b"%d" % i for i in range(4, 10)]

    client.delete(bootstrap, topic)
    wait_until(lambda: topic not in client.topics(bootstrap))


@pytest.fixture(params=BROKERS)
def behind_proxy(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Proxy]:
    """A broker that clients can reach only through a proxy which loses every fourth answer to Produce."""
    with Proxy(every(4)) as proxy:
        advertised = {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{proxy.port}"}
        try:
            broker = (
                HeadraceProcess(tmp_path / "data", config=advertised)
                if request.param == "headrace"
                else ApacheKafka(tmp_path, properties=advertised)
            )
            with broker:
                proxy.target_port = broker.port
                yield proxy
        except Unavailable as missing:
            pytest.skip(str(missing))


def test_a_lost_answer_never_doubles_a_record(behind_proxy: Proxy) -> None:
    bootstrap = f"127.0.0.1:{behind_proxy.port}"

    def has_topic(client: Client, topic: str) -> bool:
        return topic in client.topics(bootstrap)

    for name, client in CLIENTS.items():
        topic = f"once-{name}"
        client.create(bootstrap, topic)
        wait_until(partial(has_topic, client, topic))
        lost_before = behind_proxy.lost
        # Large enough to fill many batches, so that several are in flight when an answer is lost.
        records = [Sent(b"%06d" % i + bytes(1000)) for i in range(400)]
        client.produce(bootstrap, topic, records)
        assert behind_proxy.lost > lost_before, "the proxy lost nothing, so nothing was tested"
        assert client.bounds(bootstrap, topic) == (0, len(records))
        assert [r.value for r in client.consume(bootstrap, topic, len(records))] == [r.value for r in records]
