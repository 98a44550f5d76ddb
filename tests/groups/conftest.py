"""Brokers with short timeouts, shared by the tests of groups."""

from collections.abc import Iterator

import pytest

from tests.compat.process import HeadraceProcess
from tests.groups.harness import QUICK


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeadraceProcess]:
    with HeadraceProcess(tmp_path_factory.mktemp("groups") / "data", config=QUICK) as running:
        yield running


@pytest.fixture(scope="session")
def broker_without_fast_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeadraceProcess]:
    config = {**QUICK, "fast.path": "off"}
    with HeadraceProcess(tmp_path_factory.mktemp("groups-read") / "data", config=config) as running:
        yield running


@pytest.fixture(params=["broker", "broker_without_fast_path"], ids=["fast path", "no fast path"])
def either_broker(request: pytest.FixtureRequest) -> HeadraceProcess:
    """One that recognises requests that are repeated, then one that does not."""
    running: HeadraceProcess = request.getfixturevalue(request.param)
    return running
