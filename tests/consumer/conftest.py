"""Brokers with short timeouts, Headrace's and Apache's, for the tests of the client's own consumer."""

from collections.abc import Iterator

import pytest

from headrace.testing.broker import TestBroker
from tests.reference.apache import ApacheKafka
from tests.reference.either import KINDS, running_broker

QUICK = {
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "2000",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "200",
    "group.min.session.timeout.ms": "1000",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "4",
    # Tests choose times as they like. Retention, which begins 30 s after a start, would delete what is of 1970.
    "log.retention.ms": "-1",
}


@pytest.fixture(scope="module", params=KINDS)
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TestBroker | ApacheKafka]:
    with running_broker(request.param, tmp_path_factory.mktemp("broker"), QUICK) as running:
        yield running
