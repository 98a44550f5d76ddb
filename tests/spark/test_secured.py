"""The client and Spark's side against a secured Apache Kafka. One file, since both need the same dear broker."""

import asyncio
import json

import pytest

from headrace.client import (
    Admin,
    BrokerUnreachable,
    ConnectionLost,
    SecurityFailed,
    SettingRefused,
    read_security,
)
from headrace.client.cluster import Cluster
from headrace.client.group_consumer import GroupConsumer
from headrace.client.producer_core import OutgoingBatch, ProducerCore
from headrace.client.raw import fetch
from headrace.records.batch import Record, build_batch, iter_records
from tests.reference.apache import Unavailable
from tests.reference.certificates import PASSWORD, Identity
from tests.reference.secured import SECRET, secured_kafka

pytestmark = pytest.mark.reference


@pytest.fixture(scope="module")
def kafka():
    try:
        with secured_kafka() as broker:
            yield broker
    except Unavailable as missing:
        pytest.skip(str(missing))


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 60))


async def connect(address, settings) -> int:
    """How many brokers there are."""
    async with Admin(address, security=read_security(settings)) as admin:
        await admin.cluster.metadata(None)
        return len(admin.cluster.brokers)


def mutual(kafka, identity) -> dict[str, str]:
    text = {"ssl.keystore.certificate.chain": identity.pem, "ssl.keystore.key": identity.key_pem("pw"), "ssl.key.password": "pw"}
    return kafka.settings("MUTUAL") | {"ssl.keystore.type": "PEM"} | text


# -- the client


@pytest.mark.parametrize(
    ("listener", "mechanism"),
    [("TLS", "PLAIN"), ("LOGIN", "PLAIN"), ("BOTH", "PLAIN"), ("BOTH", "SCRAM-SHA-256"), ("BOTH", "SCRAM-SHA-512")],
)
def test_every_way_to_connect(kafka, listener, mechanism):
    assert run(connect(kafka.at(listener), kafka.settings(listener, mechanism))) == 1


def test_a_client_shows_its_certificate(kafka, tmp_path):
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


def test_produce_fetch_and_a_group(kafka):
    security = read_security(kafka.settings("BOTH", "SCRAM-SHA-512"))
    bootstrap = kafka.at("BOTH")
    # Larger than any buffer on the way.
    values = [bytes([65 + i]) * 300_000 for i in range(10)]

    async def play() -> None:
        async with Admin(bootstrap, security=security) as admin:
            await admin.create_topic("secured", 1)
        async with Cluster(bootstrap, security=security) as cluster:
            async with ProducerCore(cluster) as producer:
                batches = [build_batch([Record(0, 1, None, value)]) for value in values]
                await producer.send([OutgoingBatch("secured", 0, memoryview(bytearray(batch)), 1) for batch in batches])
                await producer.flush()
            got, offset = [], 0
            while offset < len(values):
                answer = await fetch(cluster, "secured", 0, offset, max_bytes=8 << 20)
                got += [record.value for record in iter_records(answer.records)]
                offset = len(got)
            assert got == values
        consumer = GroupConsumer(bootstrap, group="secured", topics=["secured"], security=security, auto_offset_reset="earliest")
        async with consumer:
            seen: list[bytes | None] = []
            while len(seen) < len(values):
                seen += [one.value for one in await consumer.poll(timeout_s=5)]
            assert seen == values

    run(play())


def test_logins_that_run_out_are_renewed_on_the_same_connection(kafka):
    async def play() -> None:
        # A machine that was busy for long enough may miss the moment; the broker then hangs up, and another one is opened.
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


def test_what_goes_wrong_is_told_in_one_sentence(kafka, tmp_path):
    tls, both, login = kafka.settings("TLS"), kafka.settings("BOTH", "SCRAM-SHA-512"), kafka.settings("LOGIN")
    stranger = Identity("stranger")
    other_ca = {"security.protocol": "SSL", "ssl.truststore.certificates": stranger.pem}
    cases = [
        ("BOTH", kafka.settings("BOTH", "SCRAM-SHA-512", "wr0ng"), SecurityFailed, r"refused the login of 'alice' by SCRAM-SHA-512"),
        ("BOTH", kafka.settings("BOTH", "PLAIN", "wr0ng"), SecurityFailed, r"refused the login.*check username and password"),
        ("LOGIN", kafka.settings("LOGIN", "SCRAM-SHA-256"), SecurityFailed, r"by SCRAM-SHA-256, but PLAIN"),
        ("TLS", other_ca, SecurityFailed, r"nobody that this client trusts.*ssl\.truststore\.location"),
        ("TLS", {"security.protocol": "SSL"}, SecurityFailed, r"nobody that this client trusts"),
        ("ELSEWHERE", kafka.settings("ELSEWHERE"), SecurityFailed, r"is not for '127\.0\.0\.1'"),
        ("MUTUAL", kafka.settings("MUTUAL"), SecurityFailed, r"may want a certificate of this client"),
        ("MUTUAL", mutual(kafka, stranger), SecurityFailed, r"does not trust this client's certificate"),
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


def test_a_file_that_goes_away_is_named_when_the_connection_is_made(kafka, tmp_path):
    (tmp_path / "ca.pem").write_text(kafka.ca.pem)
    security = read_security({"security.protocol": "SSL", "ssl.truststore.location": str(tmp_path / "ca.pem")}, prefix="kafka.")
    (tmp_path / "ca.pem").unlink()

    async def play() -> None:
        with pytest.raises(SettingRefused, match=r"'kafka\.ssl\.truststore\.location'.*on each executor"):
            await Cluster(kafka.at("TLS"), security=security).refresh(())

    run(play())


# -- Spark


def options(kafka, *args) -> dict[str, str]:
    given = {"bootstrap.servers": kafka.at("BOTH"), **kafka.settings("BOTH", *args)}
    return {f"kafka.{name}": value for name, value in given.items()}


def test_spark_reads_and_writes_with_a_login_over_tls(spark, kafka, tmp_path):
    given = options(kafka, "SCRAM-SHA-512")
    run(_make(kafka, "spark-secured", "spark-dead"))
    frame = spark.range(500).selectExpr("CAST(id AS STRING) AS key", "IF(id = 7, 'broken', concat('{\"n\":', id, '}')) AS value")
    frame.write.format("headrace").options(**given).option("topic", "spark-secured").mode("append").save()
    # As a stream, with a typed value and letters: every part that connects does so.
    letters = {"valueFormat": "json", "valueSchema": "n BIGINT", "badRows": "deadLetter", "deadLetterTopic": "spark-dead"}
    read = spark.readStream.format("headrace").options(**given, **letters).option("subscribe", "spark-secured")
    stream = read.option("startingOffsets", "earliest").option("kafka.group.id", "spark-secured").load().select("value.n")
    query = (
        stream.writeStream.format("memory").queryName("secured").option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True).start()
    )  # fmt: skip
    query.awaitTermination()
    numbers = sorted(row.n for row in spark.table("secured").collect())
    assert numbers == [n for n in range(500) if n != 7]
    back = spark.read.format("headrace").options(**given).option("subscribe", "spark-dead").load()
    assert [bytes(row.value) for row in back.collect()] == [b"broken"]
    shown = json.dumps([progress.json for progress in query.recentProgress])
    shown += back._jdf.queryExecution().toString() + str(query._jsq.toString())
    shown += "".join(path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file() and "rocks" not in path.name)
    assert SECRET not in shown and json.dumps(SECRET)[1:-1] not in shown and "ice" not in shown


def test_spark_is_told_of_a_wrong_password_before_any_task(spark, kafka):
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    given = options(kafka, "SCRAM-SHA-512", "wr0ng")
    frame = spark.range(1).selectExpr("CAST(id AS STRING) AS value")
    for attempt in (
        lambda: spark.read.format("headrace").options(**given).option("subscribe", "t").load().count(),
        lambda: frame.write.format("headrace").options(**given).option("topic", "t").mode("append").save(),
    ):
        with pytest.raises((PySparkException, Py4JJavaError), match="refused the login of 'alice'") as error:
            attempt()
        assert "wr0ng" not in str(error.value)


async def _make(kafka, *topics) -> None:
    async with Admin(kafka.bootstrap) as admin:
        for topic in topics:
            await admin.create_topic(topic, 1)
