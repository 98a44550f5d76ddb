"""A broker of Headrace's or Apache's for tests of clients, which must do the same with both."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.testing.broker import TestBroker
from tests.reference.apache import ApacheKafka, Unavailable, java, libs

KINDS = ("headrace", pytest.param("apache", marks=pytest.mark.reference))
"""Parameters of a fixture."""


@contextmanager
def running_broker(kind: str, folder: Path, settings: Mapping[str, str]) -> Iterator[TestBroker | ApacheKafka]:
    """Skips the test where Apache Kafka is wanted and cannot be run."""
    if kind == "headrace":
        with TestBroker(settings=dict(settings)) as broker:
            yield broker
        return
    try:
        java()
        libs()
    except Unavailable as missing:
        pytest.skip(str(missing))
    with ApacheKafka(folder, properties=dict(settings)) as broker:
        yield broker
        broker.kill9()  # nobody needs its files any more, and an orderly stop takes seconds
