"""An hour of topics, connections, groups, sessions and producers that come and go: memory, descriptors and threads
stay.

HEADRACE_SOAK_MINUTES says how long; three minutes are enough to see a leak of a few hundred bytes for each thing.
"""

import os
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

import pytest

from tests.broker.churn import EVERYTHING
from tests.broker.support import rss_bytes
from tests.compat.process import HeadraceProcess

MINUTES = float(os.environ.get("HEADRACE_SOAK_MINUTES", "60"))
WARM_UP = 5
"""Rounds before the first sample: what is made once, and what allocators keep for the next time."""
CONFIG = {"log.segment.delete.delay.ms": 0, "group.initial.rebalance.delay.ms": 0, "offsets.topic.num.partitions": 1}


class Sample(NamedTuple):
    rss: int
    descriptors: int
    threads: int

    @staticmethod
    def of(pid: int) -> "Sample":
        proc = Path(f"/proc/{pid}")
        return Sample(rss_bytes(pid), len(list((proc / "fd").iterdir())), len(list((proc / "task").iterdir())))


@pytest.mark.soak
@pytest.mark.timeout(MINUTES * 60 + 600)
def test_what_comes_and_goes_leaves_no_trace(tmp_path: Path) -> None:
    samples: list[Sample] = []
    with HeadraceProcess(tmp_path / "data", config=CONFIG) as process:
        deadline = time.monotonic() + MINUTES * 60
        rounds = 0
        while time.monotonic() < deadline or len(samples) < 8:
            for churn in EVERYTHING:
                churn(process, f"{churn.__name__}-{rounds}")
            rounds += 1
            if rounds > WARM_UP:
                samples.append(Sample.of(process.pid))
        assert "Traceback" not in process.output()
    quarter = len(samples) // 4
    first, last = (Sample(*map(median, zip(*part, strict=True))) for part in (samples[:quarter], samples[-quarter:]))
    told = f"{rounds} rounds: {first} became {last}"
    print(told)
    assert last.rss <= 1.1 * first.rss, told
    assert last.descriptors <= first.descriptors + 5, told
    assert last.threads <= first.threads + 2, told
