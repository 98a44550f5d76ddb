"""How processes of one run (pytest-xdist) share the tests: by file, and the longest first, so that none is left alone
at the end.

Files that share something dear, such as Spark's driver or a cluster, go to one process together.
"""

from typing import TYPE_CHECKING

import pytest
from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:
    from xdist.remote import Producer

TOGETHER = ("tests/spark/", "tests/mission/")
"""Folders of tests that one process runs one after the other."""

LONGEST_FIRST = (
    "tests/spark/", "tests/nemesis/", "tests/cluster/", "tests/compat/", "tests/damage/", "tests/demo/",
    "tests/groups/", "tests/mission/", "tests/transactions/", "tests/tools/",
    "tests/simulation/", "tests/consumer/", "tests/broker/", "tests/unit/storage/",
)  # fmt: skip


class ByFile(LoadScopeScheduling):
    def __init__(self, config: pytest.Config, log: "Producer | None" = None) -> None:
        super().__init__(config, log)
        # As collected: `in_order` has done it.
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return next((folder for folder in TOGETHER if file.startswith(folder)), file)


def in_order(items: list[pytest.Item]) -> None:
    items.sort(
        key=lambda item: next(
            (n for n, folder in enumerate(LONGEST_FIRST) if item.nodeid.startswith(folder)), len(LONGEST_FIRST)
        )
    )
