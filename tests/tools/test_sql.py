"""SQL over topics: what it answers, what it reads for that, and what it says to mistakes."""

import json
import time
from typing import Any

import pytest

from headrace.testing.broker import TestBroker
from tests.tools.support import cli, create, fill, many, refused

pytest.importorskip("duckdb")

NOW_MS = time.time_ns() // 1_000_000 - 1_000_000


@pytest.fixture(scope="module")
def topic(broker: TestBroker) -> str:
    """1,000 records in two partitions, a second apart."""
    name = create(broker)
    fill(broker, name, many(1_000), first_ms=NOW_MS)
    return name


def rows(broker: TestBroker, query: str, *words: str) -> list[Any]:
    said = cli("sql", query, "--json", "-b", broker.bootstrap, *words).stdout
    return [json.loads(line) for line in said.splitlines()]


def planned(broker: TestBroker, query: str, *words: str) -> list[tuple[int, int]]:
    """How many offsets are read of each topic, and how many it has."""
    said = cli("sql", query, "--explain", "--json", "-b", broker.bootstrap, *words).stdout
    return [(one["offsets"], one["of"]) for one in json.loads(said)]


def test_values_are_json_and_rows_are_records(broker: TestBroker, topic: str) -> None:
    found = rows(
        broker,
        f"select key, count(*) as n, sum((value->>'number')::int) as total from \"{topic}\" group by key order by key",
    )
    expected: dict[str, list[int]] = {}
    for number in range(1_000):
        expected.setdefault(f"key-{number % 97}", []).append(number)
    assert found == [{"key": key, "n": len(all), "total": sum(all)} for key, all in sorted(expected.items())]


def test_what_is_no_json_and_no_text_is_there_too(broker: TestBroker) -> None:
    name = create(broker, partitions=1)
    fill(broker, name, [(b"k", b'{"a": 1}', ()), (None, b"plain", ()), (b"", None, ()), (b"\xff", b"\xff", ())], 1)
    found = rows(broker, f'select key, value, key_bytes, value_bytes from "{name}" order by "offset"')
    assert [one["key"] for one in found] == ["k", None, "", None]
    assert [one["value"] for one in found] == ['{"a": 1}', '"plain"', None, None]
    assert found[3]["key_bytes"] == found[3]["value_bytes"] == "ff"


def test_headers_and_times(broker: TestBroker) -> None:
    name = create(broker, partitions=1, **{"retention.ms": "-1"})
    fill(broker, name, [(b"k", b"1", (("source", b"web"), ("none", None)))], 1, first_ms=1_700_000_000_000)
    (found,) = rows(broker, f'select headers[1].key as name, decode(headers[1].value) as said, timestamp from "{name}"')
    assert found["name"] == "source" and found["said"] == "web" and found["timestamp"].startswith("2023-11-14T22:13:20")


def test_only_what_is_asked_for_is_read(broker: TestBroker, topic: str) -> None:
    def plan(where: str, *words: str) -> int:
        ((read, of),) = planned(broker, f'select count(*) from "{topic}" where {where}', *words)
        assert of == 1_000
        return read

    moment = f"to_timestamp({(NOW_MS + 900_000) // 1000})"
    assert plan("true") == 1_000
    assert plan("partition = 1") == 500
    assert plan("partition in (0, 1, 7)") == 1_000
    assert plan('"offset" >= 490') == 20
    assert plan('480 < "offset" and "offset" <= 485') == 10
    assert plan('"offset" between 10 and 19 and partition < 1') == 10
    assert plan('"offset" < 10 or key is null') == 1_000, "an OR narrows nothing"
    assert plan('"offset" > random() * 100') == 1_000, "not the same for every row"
    assert 98 <= plan(f"timestamp >= {moment}") <= 102
    assert plan(f"timestamp < {moment}") == 1_000, "later records may be older"
    assert 898 <= plan(f"timestamp < {moment}", "--ordered") <= 902
    assert plan("timestamp > now() - interval 1 year") == 1_000
    assert plan("timestamp > now() + interval 1 hour") == 0
    for where in ('"offset" >= 490', f"timestamp >= {moment}", '"offset" between 10 and 19 and partition < 1'):
        (whole,) = rows(broker, f'select count(*) as n from (select * from "{topic}" offset 0) where {where}')
        assert rows(broker, f'select count(*) as n from "{topic}" where {where}') == [whole]


def test_each_place_that_reads_a_topic_gets_what_it_needs(broker: TestBroker, topic: str) -> None:
    other = create(broker, partitions=1)
    fill(broker, other, [(b"key-1", b'{"name": "one"}', ()), (b"key-2", b'{"name": "two"}', ())], 1)
    query = (
        f'select n.value->>\'name\' as name, count(*) as n from "{topic}" o join "{other}" n on o.key = n.key'
        ' where o."offset" < 100 group by 1 order by 1'
    )
    assert rows(broker, query) == [{"name": "one", "n": 3}, {"name": "two", "n": 3}]
    assert planned(broker, query) == [(200, 1_000), (2, 2)]
    twice = (
        f'select (select count(*) from "{topic}" where "offset" < 10) as first,'
        f' (select count(*) from "{topic}" where "offset" >= 490) as last'
    )
    assert rows(broker, twice) == [{"first": 20, "last": 20}]
    with_name = f'with late as (select * from "{topic}" where "offset" >= 490) select count(*) as n from late a, late b'
    assert rows(broker, with_name) == [{"n": 400}]


def test_names_with_a_dot_are_found_either_way(broker: TestBroker) -> None:
    import asyncio

    import headrace
    from headrace.tools.ranges import create_and_await
    from tests.tools.support import new_name

    name = new_name("orders").replace("-", "_") + ".v1"

    async def work() -> None:
        async with headrace.Admin(broker.bootstrap) as admin:
            await create_and_await(admin, name, 1)

    asyncio.run(work())
    fill(broker, name, many(3), 1)
    assert rows(broker, f'select count(*) as n from "{name}"') == [{"n": 3}]
    assert rows(broker, f"select count(*) as n from {name} where partition = 0") == [{"n": 3}]


def test_output_as_table_and_csv(broker: TestBroker, topic: str) -> None:
    query = f'select partition, key, "offset" from "{topic}" where "offset" < 1 order by partition'
    assert cli("sql", query, "-b", broker.bootstrap).stdout == (
        "partition  key    offset\n        0  key-0       0\n        1  key-1       0\n"
    )
    said = cli("sql", query, "--csv", "-b", broker.bootstrap).stdout
    assert said == "partition,key,offset\n0,key-0,0\n1,key-1,0\n"
    assert cli("sql", f'select 1 from "{topic}" where false', "-b", broker.bootstrap).stdout == "no rows\n"


def test_mistakes_are_told(broker: TestBroker, topic: str) -> None:
    at = ("-b", broker.bootstrap)
    assert f"did you mean '{topic}'?" in refused("sql", f'select 1 from "{topic}x"', *at)
    assert "only reads" in refused("sql", f'delete from "{topic}"', *at)
    assert 'write "offset", in double quotes' in refused("sql", f'select 1 from "{topic}" where offset > 5', *at)
    assert "nokey" in refused("sql", f'select nokey from "{topic}"', *at)
    assert "exclude" in refused("sql", "select 1", "--csv", "--json", *at)
    assert "syntax error" in refused("sql", "selec 1", *at)


def test_memory_stays_bounded(broker: TestBroker) -> None:
    """64 MB through a query that keeps nothing: a few fetches are in memory at a time."""
    import resource

    name = create(broker, partitions=1)
    fill(broker, name, [(None, b"x" * 100_000, ())] * 640, 1)
    rows(broker, f'select count(value_bytes) as n from "{name}" where "offset" < 10')
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert rows(broker, f'select count(value_bytes) as n from "{name}"') == [{"n": 640}]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 48 << 10
