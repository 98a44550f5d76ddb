"""Transactions that are open in a partition and unknown to every coordinator, as brokers leave them behind that append
without a question: found and ended by Headrace's command and by Kafka's."""

import asyncio
import json
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace.cli.app import app
from headrace.client.net.connection import Connection
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey
from headrace.testing.broker import TestBroker
from headrace.testing.simulator.transactions import CLASSIC
from tests.compat.process import HeadraceProcess
from tests.compat.raw import batch
from tests.reference.apache import ApacheKafka, Unavailable, run_tool
from tests.waiting import eventually

TOPIC = "accounts"
TRANSACTIONAL = 0x10
SETTINGS = {"transaction.state.log.num.partitions": "1", "num.partitions": "2"}
HOUR_MS = 3_600_000


def values(broker: TestBroker) -> list[bytes | None]:
    return [record.value for record in broker.consume(TOPIC, read_committed=True)]


def leave_behind(data: Path, partition: int, offset: int, producer: tuple[int, int, int]) -> None:
    """At the end of a log whose broker is down: the first batch of a transaction, an hour old."""
    (log,) = data.glob(f"**/{TOPIC}-{partition}/*.log")
    old_ms = int(time.time() * 1000) - HOUR_MS
    with log.open("ab") as file:
        file.write(
            batch(
                b"nobody ends it", base_offset=offset, leader_epoch=0, producer=producer, attributes=TRANSACTIONAL,
                base_timestamp=old_ms,
            )
        )  # fmt: skip


def headrace(broker: TestBroker, *words: str) -> list[dict[str, object]]:
    command = ["transaction", "find-hanging", "--topic", TOPIC, "--bootstrap", broker.bootstrap, "--json", *words]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    found: list[dict[str, object]] = json.loads(done.stdout)
    return found


def test_one_in_the_files_of_a_partition_is_found_and_ended() -> None:
    with TestBroker(settings=SETTINGS) as broker:
        for partition in (0, 1):
            broker.produce(TOPIC, "before", partition=partition)
        broker.kill()
        leave_behind(broker.data, 0, 1, (4_711, 3, 0))
        broker.start()
        broker.produce(TOPIC, "after", partition=0)
        assert values(broker) == [b"before", b"before"], "readers wait at it"

        assert headrace(broker, "--older-than", "2h") == [], "its coordinator may yet end it"
        (found,) = headrace(broker)
        assert {name: found[name] for name in ("partition", "producer_id", "producer_epoch", "start_offset")} == {
            "partition": 0, "producer_id": 4_711, "producer_epoch": 3, "start_offset": 1,
        }  # fmt: skip
        assert values(broker) == [b"before", b"before"], "to look ends nothing"
        assert headrace(broker, "--abort", "--yes")[0]["aborted"]
        eventually(lambda: values(broker) == [b"before", b"after", b"before"], "readers get past it")
        assert headrace(broker) == []
        broker.restart()
        assert values(broker) == [b"before", b"after", b"before"]


def left_by_apache(folder: Path) -> Path:
    """Kafka with verification switched off, as before 3.6, takes a batch of a transaction that is over."""
    apache = ApacheKafka(
        folder / "apache", data=folder / "data", properties={"transaction.partition.verification.enable": "false"}
    )
    apache.format()
    apache.start()
    try:
        asyncio.run(_write_late(apache.port))
    finally:
        apache.stop()
    return apache.data


async def _write_late(port: int) -> None:
    connection = await Connection.open("127.0.0.1", port, client_id="test", timeout_s=30)

    async def ask(key: ApiKey, request: object, ok: object) -> object:
        while True:
            answer = await connection.request(key, request, version_max=CLASSIC.get(key))
            if not ok(answer):  # type: ignore[operator]
                return answer
            await asyncio.sleep(0.2)

    C = m.CreateTopicsRequest
    await ask(
        ApiKey.CREATE_TOPICS,
        C(topics=[C.CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=1)], timeout_ms=30_000),
        lambda answer: answer.topics[0].error_code not in (0, 36),
    )
    await ask(
        ApiKey.FIND_COORDINATOR,
        m.FindCoordinatorRequest(key_type=1, coordinator_keys=["late"]),
        lambda answer: answer.coordinators[0].error_code,
    )
    init = m.InitProducerIdRequest(transactional_id="late", transaction_timeout_ms=60_000)
    began = await ask(ApiKey.INIT_PRODUCER_ID, init, lambda answer: answer.error_code)
    assert isinstance(began, m.InitProducerIdResponse)
    kind = m.ProduceRequest
    data = batch(
        b"late", producer=(began.producer_id, began.producer_epoch, 0), attributes=TRANSACTIONAL,
        base_timestamp=int(time.time() * 1000) - HOUR_MS,
    )  # fmt: skip
    row = kind.PartitionProduceData(index=0, records=data)
    produce = kind(
        transactional_id="late", acks=-1, timeout_ms=5_000,
        topic_data=[kind.TopicProduceData(name=TOPIC, partition_data=[row])],
    )  # fmt: skip
    await ask(ApiKey.PRODUCE, produce, lambda answer: answer.responses[0].partition_responses[0].error_code)
    connection.close()


def kafka(broker: HeadraceProcess, *words: str) -> list[dict[str, str]]:
    text = run_tool("org.apache.kafka.tools.TransactionsCommand", "--bootstrap-server", broker.bootstrap, *words)
    lines = [line.split("\t") for line in text.splitlines() if line.strip()]
    names = [name.strip() for name in lines[0]] if lines else []
    return [dict(zip(names, map(str.strip, line))) for line in lines[1:]]


@pytest.mark.reference
@pytest.mark.soak
@pytest.mark.timeout(400)
def test_one_that_kafka_left_is_found_and_ended_by_its_own_tool(tmp_path: Path) -> None:
    try:
        data = left_by_apache(tmp_path)
    except Unavailable as missing:
        pytest.skip(str(missing))
    broker = HeadraceProcess(data, config={"node.id": 1}).start()
    try:
        (found,) = kafka(broker, "find-hanging", "--broker-id", "1")
        assert (found["Topic"], found["Partition"], found["StartOffset"]) == (TOPIC, "0", "0")
        kafka(
            broker, "abort", "--topic", TOPIC, "--partition", "0", "--producer-id", found["ProducerId"],
            "--producer-epoch", found["ProducerEpoch"], "--coordinator-epoch", found["CoordinatorEpoch"],
        )  # fmt: skip
        assert kafka(broker, "find-hanging", "--broker-id", "1") == []
        (known,) = kafka(broker, "describe-producers", "--topic", TOPIC, "--partition", "0")
        assert known["CurrentTransactionStartOffset"] == "None"
    finally:
        broker.stop()
