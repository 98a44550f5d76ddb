"""Topics to files and back: byte for byte, resumed after kill -9 without loss or double, by any range."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import headrace
from headrace.testing.broker import TestBroker
from tests.tools.support import (
    ODD,
    cli,
    cli_json,
    contents,
    create,
    fill,
    many,
    new_name,
    refused,
    within,
)
from tests.waiting import eventually

NOW_MS = time.time_ns() // 1_000_000 - 100_000
FORMATS = ("jsonl", "parquet")
KILLED = ("jsonl", pytest.param("parquet", marks=pytest.mark.soak))


@pytest.mark.parametrize("kind", FORMATS)
def test_everything_of_a_record_survives(broker: TestBroker, tmp_path: Path, kind: str) -> None:
    source, target = create(broker), create(broker)
    fill(broker, source, ODD * 3, first_ms=NOW_MS)
    file = tmp_path / f"records.{kind}"
    done = cli_json("export", source, str(file), "-b", broker.bootstrap)
    assert done["records"] == len(ODD) * 3 and done["missing_offsets"] == 0
    assert [path.name for path in tmp_path.iterdir()] == [file.name], "the work folder is gone"
    report = cli_json("import", str(file), target, "-b", broker.bootstrap)
    assert report["records"] == len(ODD) * 3 and report["skipped"] == 0
    before, after = contents(broker, source, offsets=False), contents(broker, target, offsets=False)
    assert before == after


def test_lines_say_what_parquet_says(broker: TestBroker, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    topic = create(broker)
    fill(broker, topic, ODD, first_ms=NOW_MS)
    cli("export", topic, str(tmp_path / "a.jsonl"), "-b", broker.bootstrap)
    cli("export", topic, str(tmp_path / "a.parquet"), "-b", broker.bootstrap)
    lines = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    rows = pq.read_table(tmp_path / "a.parquet").to_pylist()
    assert [(one["partition"], one["offset"]) for one in lines] == [(one["partition"], one["offset"]) for one in rows]
    assert [one["timestamp"] for one in lines] == [round(one["timestamp"].timestamp() * 1000) for one in rows]
    assert {one["value"] is None for one in lines} == {True, False}
    assert [one["value"] is None for one in lines] == [one["value"] is None for one in rows]
    assert {"base64": "//4gbm90IFVURi04IAA="} in [one["value"] for one in lines]


@pytest.mark.parametrize("kind", FORMATS)
def test_ranges_by_offset_time_and_partition(broker: TestBroker, tmp_path: Path, kind: str) -> None:
    topic = create(broker)
    fill(broker, topic, many(40), first_ms=NOW_MS)
    moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime((NOW_MS + 20_500) / 1000)) + f".{(NOW_MS + 500) % 1000:03}"
    asked = {
        ("--from", "5", "--to", "8"): 6,
        ("--from", "-3"): 6,
        ("--partitions", "1"): 20,
        ("--from", f"{moment}+00:00"): 19,
        ("--to", f"{moment}+00:00"): 21,
        ("--from", "latest"): 0,
    }
    for number, (words, count) in enumerate(asked.items()):
        file = tmp_path / f"{number}.{kind}"
        assert cli_json("export", topic, str(file), *words, "-b", broker.bootstrap)["records"] == count, words


@pytest.mark.parametrize("kind", FORMATS)
def test_aborted_transactions_are_left_out(broker: TestBroker, tmp_path: Path, kind: str) -> None:
    topic = create(broker, partitions=1)

    async def work() -> None:
        async with headrace.Producer(broker.bootstrap, transactional_id=new_name("tx")) as producer:
            async with producer.transaction():
                await producer.send(topic, b"kept")
            async with producer.transaction() as transaction:
                await producer.send(topic, b"aborted")
                await transaction.abort()
            async with producer.transaction():
                await producer.send(topic, b"kept too")

    within(work)
    counts = {
        flag: cli_json("export", topic, str(tmp_path / f"{flag}.{kind}"), flag, "-b", broker.bootstrap)["records"]
        for flag in ("--committed", "--uncommitted")
    }
    assert counts == {"--committed": 2, "--uncommitted": 3}


SLOW_EXPORT = """
import sys, time
from headrace.tools.archive import exporting, files
exporting.CHECKPOINT_S = exporting.PART_S = 0
from headrace.client.consume import range_fetcher
range_fetcher.FIRST_BYTES = exporting.RangeFetcher.__init__.__kwdefaults__["fetch_bytes"] = 20_000
from headrace.cli.main import main
main(sys.argv[1:])
"""


def written(progress: Path) -> bytes:
    return progress.read_bytes() if progress.exists() else b""


@pytest.mark.parametrize("kind", KILLED)
def test_an_export_goes_on_after_kill_9(broker: TestBroker, tmp_path: Path, kind: str) -> None:
    topic = create(broker)
    fill(broker, topic, many(4_000), first_ms=NOW_MS - 10_000_000)
    file = tmp_path / f"records.{kind}"
    words = ["export", topic, str(file), "-b", broker.bootstrap]
    progress = tmp_path / f"{file.name}.partial" / "progress.json"
    for _ in range(2):
        running = subprocess.Popen([sys.executable, "-c", SLOW_EXPORT, *words], stderr=subprocess.PIPE)
        before = written(progress)
        eventually(lambda: running.poll() is not None or written(progress) != before, "progress")  # noqa: B023
        running.send_signal(signal.SIGKILL)
        running.communicate()
    assert not file.exists()
    fill(broker, topic, many(10))  # comes too late to be exported
    done = cli_json(*words)
    assert done["resumed"] and done["records"] == 4_000
    target = create(broker)
    cli("import", str(file), target, "-b", broker.bootstrap)
    here, there = contents(broker, topic, offsets=False), contents(broker, target, offsets=False)
    assert there == {at: rows[:2_000] for at, rows in here.items()}


SLOW_IMPORT = """
import sys
from headrace.tools.archive import importing
importing.CHUNK_RECORDS = 200
from headrace.cli.main import main
main(sys.argv[1:])
"""


@pytest.mark.parametrize("kind", KILLED)
def test_an_import_goes_on_after_kill_9(broker: TestBroker, tmp_path: Path, kind: str) -> None:
    source, target = create(broker), create(broker)
    fill(broker, source, many(4_000), first_ms=NOW_MS - 10_000_000)
    file = tmp_path / f"records.{kind}"
    cli("export", source, str(file), "-b", broker.bootstrap)
    words = ["import", str(file), target, "-b", broker.bootstrap]

    async def end() -> int:
        async with headrace.Admin(broker.bootstrap) as admin:
            return sum((await admin.offsets_of([(target, 0), (target, 1)], -1)).values())

    for _ in range(2):
        running = subprocess.Popen([sys.executable, "-c", SLOW_IMPORT, *words], stderr=subprocess.PIPE)
        before = within(end)
        eventually(lambda: running.poll() is not None or within(end) > before + 700, "several transactions")  # noqa: B023
        running.send_signal(signal.SIGKILL)
        running.communicate()
    report = cli_json(*words)
    assert report["records"] + report["skipped"] == 4_000 and report["skipped"] > 0
    assert contents(broker, target, offsets=False) == contents(broker, source, offsets=False)
    again = cli_json(*words)
    assert (again["records"], again["skipped"]) == (0, 4_000), "the same file is imported once"


def test_without_transactions_offsets_are_as_they_were(broker: TestBroker, tmp_path: Path) -> None:
    source, target = create(broker), create(broker)
    fill(broker, source, many(100), first_ms=NOW_MS)
    file = str(tmp_path / "records.jsonl")
    cli("export", source, file, "-b", broker.bootstrap)
    said = cli("import", file, target, "--no-transactions", "-b", broker.bootstrap).stdout
    assert "offsets as in the file" in said
    assert contents(broker, target) == contents(broker, source)
    said = cli("import", file, target, "--no-transactions", "--again", "-b", broker.bootstrap).stdout
    assert "offsets 0 to 49 are now 50 to 99 (+50)" in said


def test_a_topic_is_created_as_the_source_was(broker: TestBroker, tmp_path: Path) -> None:
    source = create(broker, partitions=3)
    fill(broker, source, many(2), partitions=2)
    for kind, expected in (("parquet", 3), ("jsonl", 2)):  # lines know of partitions with records alone
        file, target = str(tmp_path / f"records.{kind}"), new_name()
        cli("export", source, file, "-b", broker.bootstrap)
        assert cli_json("import", file, target, "--create", "-b", broker.bootstrap)["created"]

        async def count(topic: str = target) -> int:
            async with headrace.Admin(broker.bootstrap) as admin:
                return len((await admin.describe_topic(topic)).partitions)

        assert within(count) == expected


def test_mistakes_are_told(broker: TestBroker, tmp_path: Path) -> None:
    topic = create(broker, partitions=3)
    fill(broker, topic, many(3), partitions=3)
    at = ("-b", broker.bootstrap)
    file = tmp_path / "records.jsonl"
    assert f"did you mean '{topic}'?" in refused("export", topic + "x", str(file), *at)
    assert "--format jsonl or parquet" in refused("export", topic, str(tmp_path / "records"), *at)
    assert "has no partition 7" in refused("export", topic, str(file), "-p", "7", *at)
    cli("export", topic, str(file), *at)
    assert "--overwrite" in refused("export", topic, str(file), *at)
    cli("export", topic, str(file), "--overwrite", *at)
    assert "headrace topic alter" in refused("import", str(file), create(broker, partitions=1), *at)
    assert "there is no file" in refused("import", str(tmp_path / "none.jsonl"), *at)
    (tmp_path / "plain.jsonl").write_text('{"value": "x"}\n')
    assert "line 1" in refused("import", str(tmp_path / "plain.jsonl"), topic, *at)
    (tmp_path / "bad.parquet").write_text("PAR1")
    assert "cannot be read as Parquet" in refused("import", str(tmp_path / "bad.parquet"), topic, *at)
    lines = file.read_text().splitlines()
    (tmp_path / "twice.jsonl").write_text("\n".join([*lines, lines[-1]]))
    assert "ascend" in refused("import", str(tmp_path / "twice.jsonl"), topic, *at)


def test_another_request_does_not_go_on_with_an_interrupted_one(broker: TestBroker, tmp_path: Path) -> None:
    topic = create(broker)
    fill(broker, topic, many(10))
    work = tmp_path / "records.jsonl.partial"
    work.mkdir()
    (work / "progress.json").write_text(
        json.dumps({"asked": "--from 3", "cluster_id": "x", "topic": topic, "topic_id": "00", "partitions": []})
    )
    words = ("export", topic, str(tmp_path / "records.jsonl"), "-b", broker.bootstrap)
    assert "--restart" in refused(*words)
    assert cli_json(*words, "--restart")["records"] == 10
