"""The fixtures that users get."""

import asyncio
from pathlib import Path

import pytest

from headrace.client.admin.admin import Admin
from headrace.testing.broker import BrokerFailed, TestBroker


def topics(broker: TestBroker, create: str | None = None) -> list[str]:
    async def ask() -> list[str]:
        async with Admin(broker.bootstrap) as admin:
            if create is not None:
                await admin.create_topic(create, 1, 1)
            return [topic.name for topic in await admin.list_topics()]

    return asyncio.run(ask())


def test_shared_broker_serves(headrace_broker: TestBroker) -> None:
    assert "fixture" in topics(headrace_broker, create="fixture")


def test_fresh_broker_survives_kill_and_restart(fresh_headrace_broker: TestBroker) -> None:
    broker = fresh_headrace_broker
    address = broker.bootstrap
    assert topics(broker, create="kept") == ["kept"]
    broker.kill()
    broker.start()
    assert broker.bootstrap == address
    assert topics(broker) == ["kept"]
    assert topics(broker.restart()) == ["kept"]


def test_data_and_settings_are_the_callers(tmp_path: Path) -> None:
    with TestBroker(tmp_path, {"node.id": "7"}):
        assert "node.id=7" in (tmp_path / "data" / "meta.properties").read_text()
    assert (tmp_path / "data").is_dir()


def test_temporary_folder_is_removed() -> None:
    with TestBroker() as broker:
        assert broker.data.is_dir()
    assert not broker.data.exists()


def test_a_broker_that_cannot_start_says_why() -> None:
    with pytest.raises(BrokerFailed, match=r"log\.segment\.bytes"), TestBroker(settings={"log.segment.bytes": "x"}):
        pass
