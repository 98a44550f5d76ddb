"""A broker with short timeouts, shared by the tests of the client's own consumer."""

from collections.abc import Iterator

import pytest

from headrace.testing.broker import TestBroker

QUICK = {
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "2000",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "200",
    "offsets.topic.num.partitions": "4",
}


@pytest.fixture(scope="module")
def broker() -> Iterator[TestBroker]:
    with TestBroker(settings=QUICK) as running:
        yield running
