"""Groups of real clients under load whose members join, leave, stall and crash: each record is processed at least
once, none is skipped, and what was committed never goes back."""

import asyncio
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.compat.process import HeadraceProcess
from tests.groups.harness import KINDS, QUICK, Crew, commits_in_log

STALL_S = 5.0
"""Longer than the session: the member is replaced, and what it commits when it wakes must be refused."""


def churn(crew: Crew) -> None:
    first, second = crew.join(), crew.join()
    crew.feed()
    first.wait_busy()
    second.wait_busy()
    third = crew.join()
    third.wait_busy()
    first.send(signal.SIGSTOP)
    time.sleep(STALL_S)
    first.send(signal.SIGCONT)
    second.end(signal.SIGKILL)
    fourth = crew.join()
    fourth.wait_busy()
    third.end()
    time.sleep(0.5)
    crew.stop_feeding()
    crew.finish()


@pytest.fixture(scope="module")
def crews(
    broker: HeadraceProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, tuple[Crew, "Future[None]"]]]:
    """All kinds at once: they mostly wait, and one after the other they would wait for minutes."""
    folder = tmp_path_factory.mktemp("churn")
    found = {kind: Crew(broker.bootstrap, folder, kind, f"churn-{kind}") for kind in KINDS}
    with ThreadPoolExecutor(len(found)) as pool:
        running = {kind: (crew, pool.submit(churn, crew)) for kind, crew in found.items()}
        yield running
        for crew in found.values():
            crew.close()


@pytest.mark.parametrize("kind", KINDS)
def test_no_record_is_skipped_and_no_commit_goes_back(
    kind: str, crews: dict[str, tuple[Crew, "Future[None]"]], broker: HeadraceProcess
) -> None:
    crew, done = crews[kind]
    done.result(280)
    assert not crew.skipped()
    commits = asyncio.run(
        commits_in_log(broker.bootstrap, crew.group, crew.topic, int(QUICK["offsets.topic.num.partitions"]))
    )
    assert set(commits) == set(range(crew.partitions))
    for partition, offsets in commits.items():
        assert offsets == sorted(offsets), f"partition {partition} went back"


@pytest.mark.parametrize("kind", ["confluent-eager", "confluent-consumer"])
def test_a_broker_killed_in_mid_group(kind: str, tmp_path: Path) -> None:
    """The group, its members and their offsets come back from the log; nobody starts anew."""
    with HeadraceProcess(tmp_path / "data", config=QUICK) as broker:
        crew = Crew(broker.bootstrap, tmp_path, kind, "killed", partitions=4)
        try:
            first, second = crew.join(), crew.join()
            crew.feed()
            first.wait_busy(50)
            second.wait_busy(50)
            broker.kill9()
            broker.start()
            before = len(first.processed()), len(second.processed())
            first.wait_busy(before[0] + 50)
            second.wait_busy(before[1] + 50)
            crew.stop_feeding()
            crew.finish()
            assert not crew.skipped()
            commits = asyncio.run(
                commits_in_log(broker.bootstrap, crew.group, crew.topic, int(QUICK["offsets.topic.num.partitions"]))
            )
            for partition, offsets in commits.items():
                assert offsets == sorted(offsets), f"partition {partition} went back"
        finally:
            crew.close()
