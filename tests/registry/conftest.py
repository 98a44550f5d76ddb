"""A real registry for all tests of this folder, and a broker."""

from collections.abc import Iterator

import pytest

from headrace.testing.broker import TestBroker
from tests.reference.apache import Unavailable
from tests.registry.apicurio import apicurio


@pytest.fixture(scope="session")
def registry_url() -> Iterator[str]:
    try:
        with apicurio() as url:
            yield url
    except Unavailable as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def broker() -> Iterator[TestBroker]:
    with TestBroker() as running:
        yield running
