"""Kafka's own tool for transactions, `kafka-transactions.sh`, against Headrace: what it lists, describes and aborts."""

from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaException, Producer

from headrace.testing.broker import TestBroker
from tests.reference.apache import Unavailable, run_tool
from tests.transactions.bank import read_committed

pytestmark = [pytest.mark.reference, pytest.mark.soak, pytest.mark.timeout(300)]

ID, TOPIC = "transfers-1", "accounts"
LIMIT_S = 60.0


@pytest.fixture
def broker() -> Iterator[TestBroker]:
    with TestBroker(settings={"transaction.state.log.num.partitions": "1"}) as broker:
        yield broker


def tool(broker: TestBroker, *words: str) -> list[dict[str, str]]:
    """The rows of the table that it prints, by the names of their columns."""
    try:
        text = run_tool("org.apache.kafka.tools.TransactionsCommand", "--bootstrap-server", broker.bootstrap, *words)
    except Unavailable as missing:
        pytest.skip(str(missing))
    names, *rows = (line.split() for line in text.splitlines() if line.strip()) if text.strip() else ([],)
    return [dict(zip(names, row)) for row in rows]


def opened(broker: TestBroker) -> Producer:
    settings = {"bootstrap.servers": broker.bootstrap, "transactional.id": ID, "log_level": 2}
    # On a busy machine the tool's starts alone take longer than a transaction may by default.
    producer = Producer({**settings, "transaction.timeout.ms": 600_000})
    producer.init_transactions(LIMIT_S)
    producer.begin_transaction()
    producer.produce(TOPIC, key="a", value="1", partition=0)
    assert producer.flush(LIMIT_S) == 0
    return producer


def test_it_lists_describes_and_aborts(broker: TestBroker) -> None:
    producer = opened(broker)
    (listed,) = tool(broker, "list")
    assert (listed["TransactionalId"], listed["TransactionState"]) == (ID, "Ongoing")
    assert tool(broker, "list", "--duration-filter", "600000") == []
    assert tool(broker, "list", "--transactional-id-pattern", "other.*") == []

    (described,) = tool(broker, "describe", "--transactional-id", ID)
    assert described["TransactionState"] == "Ongoing" and described["TopicPartitions"] == f"{TOPIC}-0"
    assert described["ProducerId"] == listed["ProducerId"]

    (known,) = tool(broker, "describe-producers", "--topic", TOPIC, "--partition", "0")
    assert known["ProducerId"] == listed["ProducerId"] and known["CurrentTransactionStartOffset"] == "0"
    assert tool(broker, "find-hanging", "--broker-id", "1") == []

    assert read_committed(broker.bootstrap, TOPIC, 1) == {}
    tool(broker, "abort", "--topic", TOPIC, "--partition", "0", "--start-offset", "0")
    (known,) = tool(broker, "describe-producers", "--topic", TOPIC, "--partition", "0")
    assert known["CurrentTransactionStartOffset"] == "None"
    assert read_committed(broker.bootstrap, TOPIC, 1) == {}
    producer.abort_transaction(LIMIT_S)
    (listed,) = tool(broker, "list")
    assert listed["TransactionState"] == "CompleteAbort"


def test_it_ends_a_transaction_by_its_id(broker: TestBroker) -> None:
    producer = opened(broker)
    tool(broker, "forceTerminateTransaction", "--transactionalId", ID)
    (listed,) = tool(broker, "list")
    assert listed["TransactionState"] in ("CompleteAbort", "Empty")
    with pytest.raises(KafkaException) as why:
        producer.commit_transaction(LIMIT_S)
    assert why.value.args[0].fatal()
