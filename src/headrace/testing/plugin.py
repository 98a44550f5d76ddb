"""pytest fixtures: `pytest_plugins = ["headrace.testing.plugin"]` in a conftest.py, and a test asks for a broker by
name."""

from collections.abc import Iterator

import pytest

from headrace.testing.broker import TestBroker
from headrace.testing.cluster import TestCluster


@pytest.fixture(scope="session")
def headrace_broker() -> Iterator[TestBroker]:
    """One running broker for the whole run, `headrace_broker.bootstrap`: use topic names of your own."""
    with TestBroker() as broker:
        yield broker


@pytest.fixture
def fresh_headrace_broker() -> Iterator[TestBroker]:
    """A running broker for one test alone, to be stopped, killed and restarted at will."""
    with TestBroker() as broker:
        yield broker


@pytest.fixture(scope="session")
def headrace_cluster() -> Iterator[TestCluster]:
    """Three running brokers for the whole run, `headrace_cluster.bootstrap`: leave them all running."""
    with TestCluster(3) as cluster:
        yield cluster


@pytest.fixture
def fresh_headrace_cluster() -> Iterator[TestCluster]:
    """Three running brokers for one test alone, to be killed, frozen, wiped and restarted at will."""
    with TestCluster(3) as cluster:
        yield cluster
