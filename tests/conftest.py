"""Fixtures every test may ask for."""

from collections.abc import Iterator

import pytest

from tests.compat.process import HeadraceProcess
from tests.reference.apache import ApacheKafka, Unavailable, apache_kafka


@pytest.fixture(scope="session")
def apache() -> Iterator[ApacheKafka]:
    """A running Apache Kafka, shared by the whole run: use topic names of your own and leave its configs as they were."""
    try:
        with apache_kafka() as broker:
            yield broker
    except Unavailable as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def headrace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeadraceProcess]:
    """A running Headrace broker, shared by the whole run on the same terms; node id 1 as its Apache twin."""
    with HeadraceProcess(tmp_path_factory.mktemp("headrace") / "data", config={"node.id": 1}) as broker:
        yield broker
