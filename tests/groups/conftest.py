"""A broker with short timeouts, shared by the tests of groups."""

from collections.abc import Iterator

import pytest

from tests.compat.process import HeadraceProcess
from tests.groups.harness import QUICK


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeadraceProcess]:
    with HeadraceProcess(tmp_path_factory.mktemp("groups") / "data", config=QUICK) as running:
        yield running
