"""Lag of groups, as Prometheus sees it on the nodes of a cluster that has more of them than a topic has replicas."""

import json
import re
import time
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headrace.client.admin.admin import Admin
from headrace.client.admin.groups import Groups
from headrace.client.raw import produce
from headrace.records.builder import build_batch
from headrace.records.reader import Record
from headrace.testing.cluster import TestCluster
from tests.cluster.command_line import headrace
from tests.cluster.conftest import QUICK

PARTITIONS = 6
RECORDS = 10
SCRAPE_EVERY_S = 0.5
GROUPS = {f"g{number}": number for number in range(6)}
"""With the offset that each has committed everywhere."""

Shown = dict[str, dict[str, float]]
"""Metric -> group -> value."""


@pytest.fixture
def watched() -> Iterator[TestCluster]:
    with TestCluster(3, settings={**QUICK, "metrics.port": "0"}) as cluster:
        yield cluster


def scrape(cluster: TestCluster) -> Shown:
    """Of all nodes: each group is shown by one, its coordinator."""
    shown: Shown = {}
    for node in cluster.nodes.values():
        found = re.search(r"metrics on (http://\S+)", node.output())
        assert found is not None, node.output()
        text = urllib.request.urlopen(found[1], timeout=30).read().decode()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if "group" in sample.labels:
                    of_metric = shown.setdefault(sample.name, {})
                    assert sample.labels["group"] not in of_metric
                    of_metric[sample.labels["group"]] = sample.value
    return shown


async def fill(admin: Admin) -> None:
    now_ms = time.time_ns() // 1_000_000
    for index in range(PARTITIONS):
        records = [Record(0, now_ms - (RECORDS - number) * 60_000, None, bytes(10)) for number in range(RECORDS)]
        await produce(admin.cluster, "t", index, build_batch(records))
    for group, offset in GROUPS.items():
        await Groups(admin).commit(group, {("t", index): offset for index in range(PARTITIONS)})


def test_the_metrics_show_what_the_command_line_shows(watched: TestCluster) -> None:
    watched.create_topic("t", PARTITIONS, 1)
    assert len({partition.leader for partition in watched.topic("t").partitions.values()}) == 3
    watched.ask(fill)

    def look() -> Shown | None:
        time.sleep(SCRAPE_EVERY_S)
        shown = scrape(watched)
        all_there = shown.get("headrace_group_lag_seconds", {}).keys() >= GROUPS.keys()
        # On a busy machine a leader may be too slow for one round.
        return shown if all_there and "headrace_group_lag_unknown_partitions" not in shown else None

    shown = watched.wait("the lag of all groups", look)
    described = json.loads(headrace("group", "describe", *GROUPS, "--json", "-b", watched.bootstrap))
    for row in described:
        group, lags = row["group"], row["partitions"]
        assert len(lags) == PARTITIONS
        records = sum(lag["lag"] for lag in lags)
        assert shown["headrace_group_lag_records"][group] == records == (RECORDS - GROUPS[group]) * PARTITIONS
        seconds = max(lag["lag_seconds"] for lag in lags)
        assert abs(shown["headrace_group_lag_seconds"][group] - seconds) < 60, (group, seconds)
