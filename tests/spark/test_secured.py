"""The client and Spark's side against a secured Apache Kafka. One file, since both need the same dear broker."""

import asyncio
import json
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import copy_context
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from headrace.cli.app import run as command
from headrace.client import (
    Admin,
    BrokerUnreachable,
    ConnectionLost,
    SecurityFailed,
    SettingRefused,
    read_security,
)
from headrace.client.api.consumer import Consumer
from headrace.client.net.cluster import Cluster
from headrace.client.produce.producer import OutgoingBatch, ProducerCore
from headrace.client.raw import fetch
from headrace.records.batch import Record, build_batch, iter_records
from headrace.spark.pipelines.checks.topics import prepare_topics, topic_ends
from headrace.spark.pipelines.spec.load import load_pipeline
from headrace.spark.source.schema import source_schema
from headrace.spark.source.stream import HeadraceStreamReader
from tests.reference import spark_kafka
from tests.reference.apache import Unavailable
from tests.reference.certificates import PASSWORD, Identity
from tests.reference.secured import SECRET, SecuredKafka, secured_kafka
from tests.spark.source_data import committed, make, put_numbers
from tests.spark.topics import records_of
from tests.waiting import run

pytestmark = pytest.mark.reference


@pytest.fixture(scope="module")
def kafka() -> Iterator[SecuredKafka]:
    try:
        with secured_kafka() as broker:
            yield broker
    except Unavailable as missing:
        pytest.skip(str(missing))


def now_ms() -> int:
    """Old records are deleted half a minute after the broker's start."""
    return time.time_ns() // 1_000_000


QUEUED_BYTES_MAX = 16 << 10


async def connect(address: str, settings: Mapping[str, str]) -> int:
    """How many brokers there are."""
    async with Admin(address, security=read_security(settings)) as admin:
        await admin.cluster.metadata(None)
        return len(admin.cluster.brokers)


def mutual(kafka: SecuredKafka, identity: Identity) -> dict[str, str]:
    text = {
        "ssl.keystore.certificate.chain": identity.pem,
        "ssl.keystore.key": identity.key_pem("pw"),
        "ssl.key.password": "pw",
    }
    return kafka.settings("MUTUAL") | {"ssl.keystore.type": "PEM"} | text


# -- the client


@pytest.mark.parametrize(
    ("listener", "mechanism"),
    [("TLS", "PLAIN"), ("LOGIN", "PLAIN"), ("BOTH", "PLAIN"), ("BOTH", "SCRAM-SHA-256"), ("BOTH", "SCRAM-SHA-512")],
)
def test_every_way_to_connect(kafka: SecuredKafka, listener: str, mechanism: str) -> None:
    assert run(connect(kafka.at(listener), kafka.settings(listener, mechanism))) == 1


def test_a_client_shows_its_certificate(kafka: SecuredKafka, tmp_path: Path) -> None:
    assert run(connect(kafka.at("MUTUAL"), mutual(kafka, kafka.client))) == 1
    stores = {
        "ssl.truststore.location": str(kafka.ca.trust_store(tmp_path / "trust.p12")),
        "ssl.truststore.password": PASSWORD,
        "ssl.truststore.type": "PKCS12",
        "ssl.keystore.location": str(kafka.client.key_store(tmp_path / "key.p12")),
        "ssl.keystore.password": PASSWORD,
        "ssl.enabled.protocols": "TLSv1.2",
    }
    assert run(connect(kafka.at("MUTUAL"), kafka.settings("MUTUAL") | stores)) == 1


def test_produce_fetch_and_a_group(kafka: SecuredKafka) -> None:
    security = read_security(kafka.settings("BOTH", "SCRAM-SHA-512"))
    bootstrap = kafka.at("BOTH")
    # Larger than any buffer on the way.
    values = [bytes([65 + i]) * 300_000 for i in range(10)]

    async def play() -> None:
        async with Admin(bootstrap, security=security) as admin:
            await admin.create_topic("secured", 1)
        async with Cluster(bootstrap, security=security) as cluster:
            async with ProducerCore(cluster) as producer:
                batches = [build_batch([Record(0, now_ms(), None, value)]) for value in values]
                await producer.send([OutgoingBatch("secured", 0, memoryview(bytearray(batch)), 1) for batch in batches])
                await producer.flush()
            got, offset = [], 0
            while offset < len(values):
                answer = await fetch(cluster, "secured", 0, offset, max_bytes=8 << 20)
                got += [record.value for record in iter_records(answer.records)]
                offset = len(got)
            assert got == values
        consumer = Consumer(
            "secured", bootstrap=bootstrap, group="secured", security=security, auto_offset_reset="earliest"
        )
        async with consumer:
            seen: list[bytes | None] = []
            while len(seen) < len(values):
                seen += [one.value for one in await consumer.poll(timeout_s=5)]
            assert seen == values

    run(play())


def test_logins_that_run_out_are_renewed_on_the_same_connection(kafka: SecuredKafka) -> None:
    async def play() -> None:
        # A machine that was busy for long enough may miss the moment; the broker then hangs up, and another one is
        # opened.
        for _ in range(3):
            async with Cluster(kafka.at("SHORT"), security=read_security(kafka.settings("SHORT"))) as cluster:
                connection = await cluster.any_connection()
                while connection.is_open and connection.logins < 2:
                    await cluster.metadata(None)
                    await asyncio.sleep(0.05)
                if connection.is_open:
                    await cluster.metadata(None)
                    assert await cluster.any_connection() is connection
                    return
        raise AssertionError("no login was renewed")

    run(play())


@pytest.mark.soak
def test_records_keep_their_order_while_logins_are_renewed(kafka: SecuredKafka) -> None:
    security = read_security(kafka.settings("SHORT"))

    async def play() -> None:
        async with Admin(kafka.bootstrap) as admin:
            await admin.create_topic("renewed", 1)
        sent = 0
        # No more is queued than a busy machine sends in a moment: at the end all of it has to get there.
        cluster = Cluster(kafka.at("SHORT"), security=security)
        async with cluster, ProducerCore(cluster, buffer_bytes_max=QUEUED_BYTES_MAX) as producer:
            while max(connection.logins for connection in cluster._connections.values()) < 5:
                batches = [build_batch([Record(0, now_ms(), None, b"%d" % (sent + i))]) for i in range(200)]
                await producer.send([OutgoingBatch("renewed", 0, memoryview(bytearray(batch)), 1) for batch in batches])
                # Several requests are in flight all the time, and none of them for long.
                await asyncio.sleep(0.05)
                sent += len(batches)
            await producer.flush()
        got: list[int] = []
        async with Cluster(kafka.bootstrap) as cluster:
            while len(got) < sent:
                answer = await fetch(cluster, "renewed", 0, len(got), max_bytes=4 << 20)
                got += [int(record.value or b"") for record in iter_records(answer.records)]
        assert got == list(range(sent))

    run(play())


def test_what_goes_wrong_is_told_in_one_sentence(kafka: SecuredKafka, tmp_path: Path) -> None:
    tls, both, login = kafka.settings("TLS"), kafka.settings("BOTH", "SCRAM-SHA-512"), kafka.settings("LOGIN")
    stranger = Identity("stranger")
    other_ca = {"security.protocol": "SSL", "ssl.truststore.certificates": stranger.pem}
    cases = [
        (
            "BOTH",
            kafka.settings("BOTH", "SCRAM-SHA-512", "wr0ng"),
            SecurityFailed,
            r"refused the login of 'alice' by SCRAM-SHA-512",
        ),
        (
            "BOTH",
            kafka.settings("BOTH", "PLAIN", "wr0ng"),
            SecurityFailed,
            r"refused the login.*check username and password",
        ),
        ("LOGIN", kafka.settings("LOGIN", "SCRAM-SHA-256"), SecurityFailed, r"by SCRAM-SHA-256, but PLAIN"),
        ("TLS", other_ca, SecurityFailed, r"nobody that this client trusts.*ssl\.truststore\.location"),
        ("TLS", {"security.protocol": "SSL"}, SecurityFailed, r"nobody that this client trusts"),
        ("ELSEWHERE", kafka.settings("ELSEWHERE"), SecurityFailed, r"is not for '127\.0\.0\.1'"),
        ("MUTUAL", kafka.settings("MUTUAL"), SecurityFailed, r"may want a certificate of this client"),
        ("MUTUAL", mutual(kafka, stranger), SecurityFailed, r"does not trust this client's certificate"),
        # The broker's key is elliptic: it has no such suite to offer.
        (
            "TLS",
            tls | {"ssl.cipher.suites": "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"},
            SecurityFailed,
            r"do not agree on TLS",
        ),
        ("TLS", {}, SecurityFailed, r"speaks TLS: set security\.protocol to SSL or SASL_SSL"),
        ("BOTH", login, SecurityFailed, r"speaks TLS: set security\.protocol to SASL_SSL"),
        ("LOGIN", {}, ConnectionLost, r"may want a login: set security\.protocol to SASL_PLAINTEXT"),
        ("BOTH", tls, ConnectionLost, r"may want a login: set security\.protocol to SASL_SSL"),
        ("LOGIN", both, BrokerUnreachable, r"may speak no TLS \(set security\.protocol to SASL_PLAINTEXT\)"),
        ("TLS", both, SecurityFailed, r"takes no logins: set security\.protocol to SSL"),
    ]
    for listener, settings, kind, words in cases:
        with pytest.raises(kind, match=words) as error:
            run(connect(kafka.at(listener), settings))
        assert "wr0ng" not in str(error.value) and SECRET not in str(error.value)
    with pytest.raises(BrokerUnreachable, match=r"may speak no TLS \(set security\.protocol to PLAINTEXT"):
        run(connect(kafka.bootstrap, tls))
    with pytest.raises(SecurityFailed, match=r"takes no logins: set security\.protocol to PLAINTEXT"):
        run(connect(kafka.bootstrap, login))
    unchecked = kafka.settings("ELSEWHERE") | {"ssl.endpoint.identification.algorithm": ""}
    assert run(connect(kafka.at("ELSEWHERE"), unchecked)) == 1


def test_a_file_that_goes_away_is_named_when_the_connection_is_made(kafka: SecuredKafka, tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text(kafka.ca.pem)
    security = read_security(
        {"security.protocol": "SSL", "ssl.truststore.location": str(tmp_path / "ca.pem")}, prefix="kafka."
    )
    (tmp_path / "ca.pem").unlink()

    async def play() -> None:
        with pytest.raises(SettingRefused, match=r"'kafka\.ssl\.truststore\.location'.*on each executor"):
            await Cluster(kafka.at("TLS"), security=security).refresh(())

    run(play())


# -- commands


def test_commands_connect_by_a_file_of_settings(
    kafka: SecuredKafka, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def call(*words: str) -> tuple[int, str]:
        # A context of its own: a command in this process must leave nothing behind.
        try:
            code = copy_context().run(command, [*words, "-b", kafka.at("BOTH"), "--command-config", str(file)])
        except SystemExit as end:
            code = int(end.code or 0)
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    file = tmp_path / "client.properties"
    file.write_text(_properties(kafka.settings("BOTH", "SCRAM-SHA-256")))
    assert call("topic", "create", "by-command")[0] == 0
    code, shown = call("topic", "list")
    assert code == 0 and "by-command" in shown
    code, shown = call("doctor", "--data", str(tmp_path / "data"))
    assert "reachable from here" in shown
    file.write_text(_properties(kafka.settings("BOTH", "SCRAM-SHA-256", "wr0ng")))
    for words in (["topic", "list"], ["doctor", "--data", str(tmp_path / "data")]):
        code, shown = call(*words)
        assert code == 1 and "refused the login of 'alice'" in shown and "wr0ng" not in shown


def _properties(settings: dict[str, str]) -> str:
    return "".join(f"{name}={value}\n".replace("\\", "\\\\") for name, value in settings.items())


# -- Spark


def options(kafka: SecuredKafka, *args: Any) -> dict[str, str]:
    given = {"bootstrap.servers": kafka.at("BOTH"), **kafka.settings("BOTH", *args)}
    return {f"kafka.{name}": value for name, value in given.items()}


def test_spark_reads_and_writes_with_a_login_over_tls(spark: SparkSession, kafka: SecuredKafka) -> None:
    given = options(kafka, "SCRAM-SHA-512")
    make(kafka.bootstrap, "spark-secured")
    make(kafka.bootstrap, "spark-dead")
    frame = spark.range(500).selectExpr(
        "CAST(id AS STRING) AS key", "IF(id = 7, 'broken', concat('{\"n\":', id, '}')) AS value"
    )
    frame.write.format("headrace").options(**given).option("topic", "spark-secured").mode("append").save()
    # Letters are written by the task that reads.
    letters = {
        "valueFormat": "json",
        "valueSchema": "n BIGINT",
        "badRows": "deadLetter",
        "deadLetterTopic": "spark-dead",
    }
    read = spark.read.format("headrace").options(**given, **letters).option("subscribe", "spark-secured").load()
    assert sorted(row.n for row in read.select("value.n").collect()) == [n for n in range(500) if n != 7]
    assert values_of(kafka, "spark-dead") == [b"broken"]
    plans = read._jdf.queryExecution()
    # A part of the password that no kind of quoting changes.
    assert "s=ecret" in SECRET
    assert "s=ecret" not in plans.toString() + spark._jvm.PythonSQLUtils.explainString(plans, "formatted")


def test_spark_blots_out_every_secret_where_it_shows_options(spark: SparkSession, kafka: SecuredKafka) -> None:
    """Event logs show options of some commands: what is secret must be so by Spark's own rules."""
    secrets = {
        f"kafka.{name}": "hush" for name in ("ssl.truststore.password", "ssl.keystore.password", "ssl.key.password")
    }
    given = options(kafka, "SCRAM-SHA-512") | secrets
    scala = spark._jvm.PythonUtils.toScalaMap(given)
    shown = spark._jsparkSession.sessionState().conf().redactOptions(scala).toString()
    assert kafka.at("BOTH") in shown
    assert "hush" not in shown and "s=ecret" not in shown


def test_a_stream_tells_its_progress_with_a_login(kafka: SecuredKafka) -> None:
    given = options(kafka, "PLAIN") | {
        "subscribe": "stream-secured",
        "startingOffsets": "earliest",
        "kafka.group.id": "g",
    }
    make(kafka.bootstrap, "stream-secured")
    put_numbers(kafka.bootstrap, "stream-secured", 0, range(30))
    stream = HeadraceStreamReader(source_schema(given), given)
    start = stream.initialOffset()
    end = stream.latestOffset(start, stream.getDefaultReadLimit())
    # Tasks have a copy that was pickled.
    parts, task = stream.partitions(start, end), pickle.loads(pickle.dumps(stream))
    values = [value for part in parts for batch in task.read(part) for value in batch["value"].to_pylist()]
    assert values == [b"%d" % i for i in range(30)]
    stream.commit(end)
    stream.stop()
    assert committed(kafka.bootstrap, "g") == {("stream-secured", 0): 30}


def test_topics_of_a_pipeline_are_looked_up_with_its_login(kafka: SecuredKafka, tmp_path: Path) -> None:
    settings = "".join(f"  {name}: {json.dumps(value)}\n" for name, value in kafka.settings("BOTH", "PLAIN").items())
    text = (
        f"name: secured\nbootstrap: {kafka.at('BOTH')}\nkafka:\n{settings}"
        "sources:\n  a: {topic: pipeline-in}\nsinks:\n  b: {from: a, topic: pipeline-out, create_partitions: 2}\n"
    )
    make(kafka.bootstrap, "pipeline-in")
    (tmp_path / "pipeline.yaml").write_text(text)
    pipeline = load_pipeline(tmp_path / "pipeline.yaml", {})
    assert run(prepare_topics(pipeline, create=True)) == []
    assert run(topic_ends(pipeline)) == {"pipeline-in": {"0": 0}}
    (tmp_path / "pipeline.yaml").write_text(text.replace("ecret", "wr0ng"))
    [problem] = run(prepare_topics(load_pipeline(tmp_path / "pipeline.yaml", {}), create=True))
    assert problem.where.key == "kafka.security.protocol" and "refused the login of 'alice'" in problem.message


def test_spark_is_told_of_a_wrong_password_before_any_task(spark: SparkSession, kafka: SecuredKafka) -> None:
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    given = options(kafka, "SCRAM-SHA-512", "wr0ng")
    frame = spark.range(1).selectExpr("CAST(id AS STRING) AS value")
    attempts: tuple[Callable[[], object], ...] = (
        lambda: spark.read.format("headrace").options(**given).option("subscribe", "t").load().count(),
        lambda: frame.write.format("headrace").options(**given).option("topic", "t").mode("append").save(),
    )
    for attempt in attempts:
        with pytest.raises((PySparkException, Py4JJavaError), match="refused the login of 'alice'") as error:
            attempt()
        assert "wr0ng" not in str(error.value)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_sparks_own_connector_takes_the_same_options(kafka: SecuredKafka) -> None:
    try:
        spark_kafka.jars()
    except Unavailable as missing:
        pytest.skip(str(missing))
    make(kafka.bootstrap, "connector-secured")
    put_numbers(kafka.bootstrap, "connector-secured", 0, range(100))
    given = options(kafka, "SCRAM-SHA-512") | {"subscribe": "connector-secured"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.secured_job"],
        input=json.dumps(given), capture_output=True, text=True, check=False, timeout=800,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["kafka"] == found["headrace"] == [str(i) for i in range(100)]


def values_of(kafka: SecuredKafka, topic: str) -> list[bytes | None]:
    return [record.value for records in records_of(kafka.bootstrap, topic).values() for record in records]
