"""The portable ways on Linux: tests of storage and of the broker, once more with HEADRACE_PORTABLE=1.

A selection that takes seconds; all of `tests/unit/storage` and `tests/broker` can be run so by hand.
"""

import os
import subprocess
import sys

import pytest

from headrace.platform import IS_PORTABLE, PORTABLE_VARIABLE
from tests.documents import ROOT

LIMIT_S = 280.0
SELECTION = (
    "tests/unit/storage/test_files.py",
    "tests/unit/storage/test_log.py",
    "tests/unit/storage/test_durability.py",
    "tests/unit/storage/test_ownership.py",
    "tests/unit/broker/net/test_outbox.py",
    "tests/unit/broker/net/test_page_cache.py",
    "tests/broker/test_kill.py::test_kill_under_load[on]",
    "tests/unit/testing/test_broker_fixture.py::test_fresh_broker_survives_kill_and_restart",
)


@pytest.mark.skipif(IS_PORTABLE, reason="all tests of this run take the portable ways")
def test_storage_and_brokers_work_without_linuxs_own_calls() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-m", "not soak and not reference", *SELECTION],
        cwd=ROOT,
        env={**os.environ, PORTABLE_VARIABLE: "1"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
