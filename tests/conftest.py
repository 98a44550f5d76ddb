"""Fixtures every test may ask for, and how processes of one run share the tests."""

import gc
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests import recorder
from tests.compat.process import HeadraceProcess
from tests.reference.apache import ApacheKafka, Unavailable, apache_kafka, java, libs

if TYPE_CHECKING:
    from tests.schedule import ByFile

# For Spark's drivers, here and in processes of tests: they live for seconds, in which the second compiler and a
# collector with threads of its own take twice the time that they would save in an hour.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# How long an example takes says more about the machine than about the code.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


def pytest_configure(config: pytest.Config) -> None:
    if recorder is not None:
        from tests.coverage import Plugin

        config.pluginmanager.register(Plugin(config, recorder))


def pytest_collection_finish() -> None:
    # The modules of all tests stay: the collector need not look at them again and again.
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    # DuckDB takes what is frozen at the end of its process for leaks of its own, and says so in a hundred lines.
    gc.unfreeze()


@pytest.fixture(scope="session")
def needs_apache() -> None:
    """For tests that start Apache Kafka in a way of their own."""
    try:
        java()
        libs()
    except Unavailable as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def apache() -> Iterator[ApacheKafka]:
    """A running Apache Kafka, shared by the whole run: use topic names of your own and leave its configs as they
    were."""
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


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> "ByFile":
    from tests.schedule import ByFile

    return ByFile(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        from tests.schedule import in_order

        in_order(items)
