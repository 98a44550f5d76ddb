"""Arrow tables to topics and back: the same records that rows would be, with keys, headers, times and codecs."""

from typing import Any

import pytest

import headrace
from headrace.client.api import tables
from headrace.client.produce.deliveries import WrittenBatch
from headrace.client.produce.partitioner import partition_for_key
from headrace.testing.broker import TestBroker
from tests.client.support import QUICK, read_all, run

pa = pytest.importorskip("pyarrow")
pytest.importorskip("numba")


def table_of(count: int) -> Any:
    return pa.table(
        {
            "key": pa.array([b"k%d" % (n % 5) if n % 3 else None for n in range(count)], pa.binary()),
            "value": pa.array([b"%d" % n for n in range(count)], pa.binary()),
            "timestamp": pa.array([1_000 + n for n in range(count)], pa.timestamp("ms")),
        }
    )


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_table_goes_out_and_comes_back(broker: TestBroker, codec: str) -> None:
    async def work(topic: str) -> None:
        table = table_of(2_000)
        async with headrace.Producer(broker.bootstrap, compression=codec, batch_bytes=4_000) as producer:
            assert await producer.send_table(topic, table) == 2_000
        rows = await read_all(broker, topic)
        assert {row.value for row in rows} == {b"%d" % n for n in range(2_000)}
        assert all(row.timestamp == 1_000 + int(row.value) for row in rows)
        keyed = [row for row in rows if row.key is not None]
        assert keyed and all(row.partition == partition_for_key(row.key, 3) for row in keyed)
        found = 0
        names = ["key", "value", "partition", "offset", "timestamp"]
        async with headrace.Consumer(topic, bootstrap=broker.bootstrap, group=topic, **QUICK) as consumer:
            by_place = {(row.partition, row.offset): row for row in rows}
            async for got in consumer.tables(names):
                assert got.column_names == names
                for row in got.to_pylist():
                    same = by_place[row["partition"], row["offset"]]
                    assert (row["key"], row["value"]) == (same.key, same.value)
                    assert round(row["timestamp"].timestamp() * 1000) == same.timestamp
                found += len(got)
                if found == 2_000:
                    break
            await consumer.commit()
            assert sum((await consumer.committed()).values()) == 2_000

    run(broker, work, partitions=3)


def test_what_is_no_table_of_records_is_refused(broker: TestBroker) -> None:
    async def work(topic: str) -> None:
        async with headrace.Producer(broker.bootstrap) as producer:
            for bad in ([1], pa.table({"a": [1]})):
                with pytest.raises(headrace.ClientError, match="with a column value"):
                    await producer.send_table(topic, bad)
            with pytest.raises(headrace.RequestFailed, match="1 partition, number 0"):
                await producer.send_table(topic, table_of(1), partition=4)
        async with headrace.Consumer(topic, bootstrap=broker.bootstrap, **QUICK) as consumer:
            with pytest.raises(headrace.ClientError, match="there is no column 'nothing'"):
                async for _ in consumer.tables(["nothing"]):
                    pass

    run(broker, work)


def test_a_large_table_goes_in_pieces_and_in_order(broker: TestBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of each partition take turns, rows of a partition stay in their order, and where they went is told."""
    monkeypatch.setattr(tables, "PIECE_BYTES", 1)

    async def work(topic: str) -> None:
        written: list[WrittenBatch] = []
        async with headrace.Producer(broker.bootstrap, batch_bytes=500) as producer:
            assert await producer.send_table(topic, table_of(3_000), on_written=written.append) == 3_000
        places: dict[int, list[headrace.Record]] = {}
        for row in await read_all(broker, topic):
            places.setdefault(row.partition, []).append(row)
        assert len(places) == 3 and len(written) > 30
        for partition, rows in places.items():
            assert [row.offset for row in rows] == list(range(len(rows)))
            for keyed in (True, False):  # those without a key are placed in runs, which end where batches do
                numbers = [int(row.value) for row in rows if (row.key is not None) is keyed]
                assert numbers == sorted(numbers)
            told = [(one.offset, one.count) for one in written if one.partition == partition]
            assert [offset for offset, _ in told] == [sum(n for _, n in told[:at]) for at in range(len(told))]

    run(broker, work, partitions=3)


def test_a_row_that_is_too_large_fails_the_table(broker: TestBroker) -> None:
    """The broker finds its batch too large: the rows are tried by themselves, and the others are written."""

    async def work(topic: str) -> None:
        written: list[WrittenBatch] = []
        table = pa.table({"value": pa.array([b"first", b"x" * 20_000, b"third", b"fourth"], pa.binary())})
        async with headrace.Producer(broker.bootstrap) as producer:
            with pytest.raises(headrace.RequestFailed, match=r"max\.message\.bytes"):
                await producer.send_table(topic, table, on_written=written.append)
            await producer.flush()  # the error was told
        assert written == [WrittenBatch(0, 0, 1)]
        assert [row.value for row in await read_all(broker, topic)] == [b"first", b"third", b"fourth"]

    run(broker, work, configs={"max.message.bytes": "10000"})


def test_a_table_whose_batches_are_split_is_told_part_by_part(broker: TestBroker) -> None:
    async def work(topic: str) -> None:
        written: list[WrittenBatch] = []
        async with headrace.Producer(broker.bootstrap, batch_bytes=100_000) as producer:
            table = pa.table({"value": pa.array([b"%04d" % n * 100 for n in range(100)], pa.binary())})
            assert await producer.send_table(topic, table, on_written=written.append) == 100
        assert len(written) > 1 and sum(one.count for one in written) == 100
        values = {row.offset: row.value for row in await read_all(broker, topic)}
        told = [values[one.offset + n] for one in written for n in range(one.count)]
        assert told == table.column("value").to_pylist()

    run(broker, work, configs={"max.message.bytes": "10000"})


def test_polars_pandas_and_duckdb_take_tables_as_they_are(broker: TestBroker) -> None:
    polars, pandas, duckdb = (pytest.importorskip(name) for name in ("polars", "pandas", "duckdb"))

    async def work(topic: str) -> None:
        async with headrace.Producer(broker.bootstrap) as producer:
            await producer.send_table(topic, table_of(100))
            # And what they make comes back: a table of polars, and of pandas, is one of Arrow.
            frame = polars.DataFrame({"value": [b"from polars"], "key": [b"p"]})
            await producer.send_table(topic, frame.to_arrow(compat_level=polars.CompatLevel.oldest()))
            await producer.send_table(topic, pa.Table.from_pandas(pandas.DataFrame({"value": [b"from pandas"]})))
        async with headrace.Consumer(topic, bootstrap=broker.bootstrap, **QUICK) as consumer:
            whole: list[Any] = []
            async for got in consumer.tables():
                whole.append(got)
                if sum(map(len, whole)) == 102:
                    break
        table = pa.concat_tables(whole)
        assert polars.from_arrow(table).filter(polars.col("value") == b"from polars")["key"].to_list() == [b"p"]
        assert set(table.to_pandas()["value"]) >= {b"from pandas", b"99"}
        with duckdb.connect() as connection:
            connection.register("rows", table)
            (count, keys) = connection.execute("select count(*), count(distinct key) from rows").fetchone()
        assert (count, keys) == (102, 6)

    run(broker, work)
