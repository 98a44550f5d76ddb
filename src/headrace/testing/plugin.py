"""pytest fixtures: a test asks for a broker by name. The installed package registers them, no conftest.py need name it.

Every run of pytest where Headrace is installed imports this module, so it imports nothing but pytest itself.
"""

import sys
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from headrace.testing.broker import TestBroker
    from headrace.testing.child import Child
    from headrace.testing.cluster import TestCluster

FIXTURES = frozenset({"headrace_broker", "fresh_headrace_broker", "headrace_cluster", "fresh_headrace_cluster"})
_log_ends = pytest.StashKey["dict[Child, int]"]()


@pytest.fixture(scope="session")
def headrace_settings() -> dict[str, str]:
    """Options of server.properties for the brokers of the fixtures below: override it in a conftest.py."""
    return {}


@pytest.fixture(scope="session")
def headrace_broker(headrace_settings: dict[str, str]) -> "Iterator[TestBroker]":
    """One running broker for the whole run, `headrace_broker.bootstrap`: use topic names of your own."""
    from headrace.testing.broker import TestBroker

    with TestBroker(settings=headrace_settings) as broker:
        yield broker


@pytest.fixture
def fresh_headrace_broker(headrace_settings: dict[str, str]) -> "Iterator[TestBroker]":
    """A running broker for one test alone, to be stopped, killed, restarted and given faults at will."""
    from headrace.testing.broker import TestBroker

    with TestBroker(settings=headrace_settings) as broker:
        yield broker


@pytest.fixture(scope="session")
def headrace_cluster(headrace_settings: dict[str, str]) -> "Iterator[TestCluster]":
    """Three running brokers for the whole run, `headrace_cluster.bootstrap`: leave them all running."""
    from headrace.testing.cluster import TestCluster

    with TestCluster(3, settings=headrace_settings) as cluster:
        yield cluster


@pytest.fixture
def fresh_headrace_cluster(headrace_settings: dict[str, str]) -> "Iterator[TestCluster]":
    """Three running brokers for one test alone, to be killed, frozen, wiped, restarted and given faults at will."""
    from headrace.testing.cluster import TestCluster

    with TestCluster(3, settings=headrace_settings) as cluster:
        yield cluster


def pytest_collection_finish(session: pytest.Session) -> None:
    """Brokers are wanted: what they import can be imported while other tests run."""
    if session.config.option.collectonly:
        return
    if any(FIXTURES.intersection(getattr(item, "fixturenames", ())) for item in session.items):
        from headrace.testing.nursery import warm_up

        warm_up()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Remember how far logs go, of brokers that live longer than one test."""
    item.stash[_log_ends] = {child: child.log_end() for child in _children()}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What brokers said during a test that failed stands in its report."""
    report = yield
    if report.failed:
        before = item.stash.get(_log_ends, {})
        for child in _children():
            said = child.log_from(before.get(child, 0))
            if said:
                report.sections.append((f"Headrace: log of {child.name} during {report.when}", said))
    return report


def _children() -> "list[Child]":
    """Brokers that the kit has started: none, where nobody has imported it."""
    module = sys.modules.get("headrace.testing.child")
    return [] if module is None else sorted(module.alive, key=lambda child: child.name)
