"""One broker for all tests of the public client: Headrace's, and Apache's where its jars are at hand."""

from collections.abc import Iterator

import pytest

from headrace.testing.broker import TestBroker
from tests.consumer.conftest import QUICK
from tests.reference.apache import ApacheKafka
from tests.reference.either import KINDS, running_broker

SETTINGS = QUICK | {
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "auto.create.topics.enable": "false",
}


@pytest.fixture(scope="session", params=KINDS)
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TestBroker | ApacheKafka]:
    with running_broker(request.param, tmp_path_factory.mktemp("broker"), SETTINGS) as running:
        yield running
