"""Looks at the run from outside, as any user can: lag from the coordinator, windows from the pipeline's topic."""

import asyncio
import json
import time
from collections.abc import Collection, Sequence

from headrace.client.admin.admin import Admin
from headrace.client.admin.groups import Groups
from headrace.client.api.consumer import Consumer
from headrace.client.errors import ClientError
from headrace.demo.feed import Feed
from headrace.demo.groups import Group
from headrace.demo.status import GroupState, Series, Status, per_second

SAMPLE_S = 0.5
LAG_S = 1.0
AGAIN_S = 0.5
COMMITS_S = 10.0
"""Spark commits once per batch, so that its rate is one of several seconds."""


async def sample(status: Status, feed: Feed, groups: list[Group]) -> None:
    """Keep counts and rates up to date."""
    sent: Series = []
    while True:
        now_s = status.elapsed_s
        sent.append((now_s, feed.acknowledged))
        status.sent, status.kinds, status.slowest_s = feed.acknowledged, feed.kinds, feed.slowest_s
        status.stalled_s = time.monotonic() - feed.waiting_since_s if feed.waiting_since_s is not None else 0.0
        status.rate = per_second(sent[-8:])
        if status.fed_s is None:
            status.rates.append((now_s, per_second(sent[-2:])))
            status.waits.append((now_s, max(feed.slowest_lately_s, status.stalled_s) * 1000))
            feed.slowest_lately_s = 0.0
        for group in groups:
            group.check()
            state = status.group(group.name)
            state.gots.append((now_s, group.book.total))
            state.got, state.rate = group.book.total, per_second(state.gots[-8:])
            state.members = [(worker.name, worker.partitions, worker.got) for worker in group.workers]
        await asyncio.sleep(SAMPLE_S)


async def watch_lag(
    status: Status, bootstrap: str, topic: str, group_ids: Sequence[str], of_spark: Collection[str] = ()
) -> None:
    """The lag of the groups that read the topic, as the brokers tell it; Spark's queries are groups too."""
    async with Admin(bootstrap, client_id="demo-lag", retry_timeout_s=2.0) as admin:
        groups = Groups(admin)
        while True:
            try:
                ends = {index: found.offset for index, found in (await admin.list_offsets(topic)).items()}
                for group_id in (*group_ids, *of_spark):
                    committed = await groups.committed(group_id)
                    mine = {index: row.offset for (name, index), row in committed.items() if name == topic}
                    # Spark has committed nothing before its first batch is done: all there is waits for it.
                    if mine or group_id in of_spark:
                        _note_lag(status, group_id, ends, mine)
            except ClientError:
                # A broker is away, as it is meant to be for a while: the last figures stand.
                await asyncio.sleep(AGAIN_S)
            await asyncio.sleep(LAG_S)


def _note_lag(status: Status, group_id: str, ends: dict[int, int], committed: dict[int, int]) -> None:
    state = next((group for group in status.groups if group.name == group_id), None)
    if state is None:
        state = GroupState(group_id, "Spark")
        status.groups.append(state)
    lag = sum(max(0, end - committed.get(index, 0)) for index, end in ends.items())
    if state.role == "Spark":
        state.got = sum(committed.values())
        state.gots.append((status.elapsed_s, state.got))
        state.rate = per_second(state.gots[-8:], COMMITS_S)
    state.lag = lag
    state.lags.append((status.elapsed_s, lag))


async def watch_windows(status: Status, bootstrap: str, topic: str) -> None:
    """The pipeline's results as they come, by a consumer like any other."""
    while True:
        try:
            consumer = Consumer(
                topic,
                bootstrap=bootstrap,
                group="dashboard",
                auto_offset_reset="earliest",
                isolation_level="read_committed",
            )
            async with consumer:
                while True:
                    for record in await consumer.poll(1.0):
                        row = json.loads(record.value or b"{}")
                        window = status.windows.setdefault(row["window_ms"], {})
                        window[row["category"]] = (row["events"], row["orders"], row["cents"])
                    if status.windows and status.first_window_s is None:
                        status.first_window_s = status.age_s
                        status.note(f"the first window is out, {status.first_window_s:.1f} s after the start")
        except ClientError:
            await asyncio.sleep(AGAIN_S)
