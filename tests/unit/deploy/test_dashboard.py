"""The dashboard asks only for what a broker exports, in the way that each kind of metric is asked for."""

import json
import re
from functools import cache
from itertools import combinations
from typing import Any

from prometheus_client import Metric

from headrace.protocol.api import API
from tests.documents import ROOT
from tests.unit.broker.controlled import Node, in_world

DASHBOARD: dict[str, Any] = json.loads((ROOT / "deploy/grafana-dashboard.json").read_text())
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
GRAPHS = [panel for panel in PANELS if panel["type"] != "row"]
QUERIES = [target["expr"] for panel in GRAPHS for target in panel["targets"]]

SUFFIXES = {"counter": ["_total"], "gauge": [""], "histogram": ["_bucket", "_sum", "_count"]}
OF_A_SCRAPE = {"instance", "job"}
"""Labels that Prometheus adds."""
_SELECTED = re.compile(r"\b(headrace_\w+)\{([^}]*)\}(\[)?")


@cache
def families() -> list[Metric]:
    """What a broker that is also a controller exports."""
    found: list[Metric] = []

    async def scenario(node: Node) -> None:
        await node.create("orders", [1])
        found.extend(node.broker.collector().collect())

    in_world(scenario)
    return found


@cache
def exported() -> dict[str, tuple[str, set[str]]]:
    """The kind and the labels of every series."""
    return {
        family.name + suffix: (family.type, {*family._labelnames, *(["le"] if suffix == "_bucket" else [])})  # type: ignore[attr-defined]
        for family in families()
        for suffix in SUFFIXES[family.type]
    }


def test_every_metric_is_exported() -> None:
    named = {name for query in QUERIES for name in re.findall(r"\bheadrace_\w+", query)}
    assert len(named) > 30
    assert named - set(exported()) == set()


def test_every_metric_is_chosen_by_job() -> None:
    for query in QUERIES:
        selected = _SELECTED.findall(query)
        assert len(selected) == len(re.findall(r"\bheadrace_\w+", query)), query
        assert all('job=~"$job"' in matchers for _, matchers, _ in selected), query


def test_labels_exist() -> None:
    for panel in GRAPHS:
        for target in panel["targets"]:
            query = target["expr"]
            ((name, matchers, _),) = _SELECTED.findall(query)
            known = exported()[name][1] | OF_A_SCRAPE
            grouped = [label.strip() for found in re.findall(r"by \(([^)]*)\)", query) for label in found.split(",")]
            assert {*grouped, *re.findall(r"(\w+)=", matchers)} <= known, query
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= set(grouped), query


def test_label_values_exist() -> None:
    """`kind="unclean"` and the like would match nothing, without an error, if the broker said another word."""
    values: dict[tuple[str, str], set[str]] = {}
    for sample in (sample for family in families() for sample in family.samples):
        for label, value in sample.labels.items():
            values.setdefault((sample.name, label), set()).add(value)
    apis = {api.name for api in API.values()}
    asked = [
        (name, label, value)
        for query in QUERIES
        for name, matchers, _ in _SELECTED.findall(query)
        for label, value in re.findall(r'(\w+)="(\w+)"', matchers)
    ]
    assert len(asked) >= 4
    lost = [one for one in asked if one[2] not in (apis if one[1] == "api" else values[one[:2]])]
    assert lost == []


def test_what_only_grows_is_asked_for_over_time_and_nothing_else_is() -> None:
    for query in QUERIES:
        for name, _, over_time in _SELECTED.findall(query):
            assert bool(over_time) == (exported()[name][0] != "gauge"), query
            assert name.endswith("_bucket") == ("histogram_quantile(" in query), query


def test_it_asks_the_source_that_the_reader_chose() -> None:
    variables = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    (watched,) = re.findall(r"headrace_\w+", variables["job"]["definition"])
    assert watched in exported()
    for panel in GRAPHS:
        assert {source["datasource"]["uid"] for source in (panel, *panel["targets"])} == {"${datasource}"}


def test_panels_do_not_overlap() -> None:
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    places = [panel["gridPos"] for panel in PANELS]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    for one, other in combinations(places, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        above = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or above, (one, other)
