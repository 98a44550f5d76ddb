"""One broker for all tests of the public client: Headrace's, and Apache's where its jars are at hand."""

from collections.abc import Iterator

import pytest

from headrace.testing.broker import TestBroker
from tests.reference.apache import ApacheKafka, Unavailable, java, libs

SETTINGS = {
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "2000",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "200",
    "group.min.session.timeout.ms": "1000",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "auto.create.topics.enable": "false",
}


@pytest.fixture(scope="session", params=["headrace", pytest.param("apache", marks=pytest.mark.reference)])
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TestBroker | ApacheKafka]:
    if request.param == "headrace":
        with TestBroker(settings=SETTINGS) as running:
            yield running
        return
    try:
        java()
        libs()
    except Unavailable as missing:
        pytest.skip(str(missing))
    with ApacheKafka(tmp_path_factory.mktemp("apache"), properties=dict(SETTINGS)) as running:
        yield running
