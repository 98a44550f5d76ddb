"""Fixtures every test may ask for."""

from collections.abc import Iterator

import pytest

from tests.reference.apache import ApacheKafka, Unavailable, apache_kafka


@pytest.fixture(scope="session")
def apache() -> Iterator[ApacheKafka]:
    """A running Apache Kafka, shared by the whole run: use topic names of your own and leave its configs as they were."""
    try:
        with apache_kafka() as broker:
            yield broker
    except Unavailable as missing:
        pytest.skip(str(missing))
