"""Apache Kafka's own tools and files on our groups, and ours on its."""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compat.process import HeadraceProcess
from tests.compat.raw import Connection
from tests.groups.harness import QUICK, RECORDS, committed, consume, create_topic, describe, lag, quiet_producer
from tests.reference.apache import ApacheKafka, Unavailable, dump_log, run_tool

pytestmark = pytest.mark.reference

TOOL = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"


def fill(bootstrap: str, topic: str) -> None:
    create_topic(bootstrap, topic, 2)
    with quiet_producer(bootstrap) as producer:
        for number in range(RECORDS):
            producer.produce(topic, b"%d" % number, partition=number % 2)


@pytest.fixture(scope="module", autouse=True)
def jars() -> None:
    from tests.reference import apache

    try:
        apache.java()
        apache.libs()
    except Unavailable as missing:
        pytest.skip(str(missing))


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_kafkas_group_tool_describes_resets_and_deletes(broker: HeadraceProcess, protocol: str) -> None:
    topic, group = f"tool-{protocol}", f"tools-{protocol}"
    fill(broker.bootstrap, topic)
    consumer = consume(broker.bootstrap, topic, group, protocol)
    ask = ("--bootstrap-server", broker.bootstrap, "--group", group)
    try:
        described = run_tool(TOOL, *ask, "--describe")
        rows = re.findall(rf"^{group}\s+{topic}\s+(\d)\s+(\d+)\s+(\d+)\s+(\d+)\s+\S+\s+/127.0.0.1", described, re.M)
        assert sorted(rows) == [("0", "30", "30", "0"), ("1", "30", "30", "0")], described
    finally:
        consumer.close()
    run_tool(TOOL, *ask, "--reset-offsets", "--topic", topic, "--shift-by", "-10", "--execute")
    assert {key: found.offset for key, found in asyncio.run(committed(broker.bootstrap, group)).items()} == {
        (topic, 0): 20, (topic, 1): 20,
    }  # fmt: skip
    run_tool(TOOL, *ask, "--delete")
    assert group not in run_tool(TOOL, "--bootstrap-server", broker.bootstrap, "--list").split()


def test_kafkas_config_tool_gives_a_group_intervals_of_its_own(broker: HeadraceProcess) -> None:
    create_topic(broker.bootstrap, "paced", 1)
    joining = {
        "member_id": "m",
        "rebalance_timeout_ms": 60_000,
        "subscribed_topic_names": ["paced"],
        "topic_partitions": [],
    }

    def interval_ms(connection: Connection, group: str) -> int:
        answer = connection.ask("ConsumerGroupHeartbeat", 1, {"group_id": group, "member_epoch": 0, **joining})
        assert answer.error_code == 0, answer
        return int(answer.heartbeat_interval_ms)

    with Connection(broker.port) as connection:
        assert connection.ask("FindCoordinator", 3, {"key": "paced"}).error_code == 0
        before = interval_ms(connection, "paced")
        change = ("--alter", "--add-config", f"consumer.heartbeat.interval.ms={before + 111}")
        run_tool(
            "kafka.admin.ConfigCommand",
            "--bootstrap-server",
            broker.bootstrap,
            "--entity-type",
            "groups",
            "--entity-name",
            "paced",
            *change,
        )
        assert (interval_ms(connection, "paced"), interval_ms(connection, "other")) == (before + 111, before)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a broker of ours that has served groups of both protocols, and was stopped."""
    data = tmp_path_factory.mktemp("ours") / "data"
    with HeadraceProcess(data, config=QUICK | {"offsets.topic.num.partitions": 1}) as running:
        fill(running.bootstrap, "t")
        consume(running.bootstrap, "t", "classic-group").close()
        consume(running.bootstrap, "t", "consumer-group", "consumer").close()
    yield data


def test_kafkas_dump_tool_decodes_our_records(ours: Path) -> None:
    dumped = dump_log(ours / "__consumer_offsets-0" / "00000000000000000000.log", "--offsets-decoder")
    assert "Could not" not in dumped and "rror" not in dumped, dumped
    commits = re.findall(r'"type":"1","data":\{"group":"([^"]+)","topic":"t","partition":(\d)\}', dumped)
    assert set(commits) == {(g, p) for g in ("classic-group", "consumer-group") for p in "01"}
    assert '"type":"2","data":{"group":"classic-group"}' in dumped
    for kind in (3, 5, 6, 7, 8):  # 4 is no longer written
        assert f'"type":"{kind}","data":{{"groupId":"consumer-group"' in dumped, kind


def test_apache_kafka_goes_on_with_our_groups_and_we_with_its(ours: Path, tmp_path: Path) -> None:
    with ApacheKafka(tmp_path / "apache", data=ours, properties={"offsets.topic.num.partitions": 1}) as apache:
        for group in ("classic-group", "consumer-group"):
            found = asyncio.run(committed(apache.bootstrap, group))
            assert {key: row.offset for key, row in found.items()} == {("t", 0): 30, ("t", 1): 30}
            assert asyncio.run(describe(apache.bootstrap, group)).type == group.split("-")[0]
        with quiet_producer(apache.bootstrap) as producer:
            for number in range(RECORDS):
                producer.produce("t", b"%d" % number, partition=number % 2)
        for row in asyncio.run(lag(apache.bootstrap, "classic-group")):
            # It passes over the question for the age, so the first record is read for it.
            assert row.records == 30 and row.seconds is not None and row.seconds < 600, row
        for protocol in ("classic", "consumer"):
            # Left without a word, so that members are in the log that we load.
            consume(apache.bootstrap, "t", f"{protocol}-group", protocol)
            consume(apache.bootstrap, "t", f"kafkas-{protocol}", protocol, 2 * RECORDS).close()
        apache.kill9()
    with HeadraceProcess(ours, config=QUICK | {"offsets.topic.num.partitions": 1}) as running:
        for group in ("classic-group", "consumer-group", "kafkas-classic", "kafkas-consumer"):
            found = asyncio.run(committed(running.bootstrap, group))
            assert {key: row.offset for key, row in found.items()} == {("t", 0): 60, ("t", 1): 60}, group
        # A Kafka that was killed vouches for no replica: the only ones there are lead again, and that is said aloud.
        said = [line for line in running.output().splitlines() if "unclean election" not in line]
        assert not [line for line in said if "left alone" in line or "ERROR" in line]
