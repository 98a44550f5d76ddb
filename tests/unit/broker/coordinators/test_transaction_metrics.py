"""What Prometheus is shown of transactions: how many are open, for how long, and who is held back by them."""

import asyncio

from headrace.broker.coordinators import transaction_metrics
from headrace.client.net.cluster import Cluster
from headrace.client.produce.transactions import ProducerTransactions
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey
from headrace.testing.simulator.world import World
from tests.compat.raw import batch
from tests.unit.broker.group_world import BOOTSTRAP, Machine, connect, in_world, with_topic

TRANSACTIONAL = 0x10


def shown(machine: Machine) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in machine.broker.collector().collect()
        for sample in family.samples
        if sample.name.startswith(("headrace_transaction", "headrace_partition_lso"))
    }


async def write(producer: ProducerTransactions, partition: int) -> None:
    who = (producer.producer.id, producer.producer.epoch, 0)
    data = batch(b"a", b"b", producer=who, attributes=TRANSACTIONAL)
    kind = m.ProduceRequest
    row = kind.PartitionProduceData(index=partition, records=data)
    request = kind(
        transactional_id=producer.transactional_id,
        acks=-1,
        timeout_ms=5000,
        topic_data=[kind.TopicProduceData(name="t", partition_data=[row])],
    )
    connection = await connect()
    answer = await connection.request(ApiKey.PRODUCE, request, version_max=12)
    connection.close()
    assert answer.responses[0].partition_responses[0].error_code == 0


def test_open_transactions_their_age_and_the_readers_they_hold_back_are_shown() -> None:
    async def main(world: World) -> None:
        machine = await with_topic(world, **{"transaction.state.log.num.partitions": "4"})
        nothing = {
            ("headrace_partition_lso_lags_hidden",): 0,
            ("headrace_transactions_open",): 0,
            ("headrace_transaction_oldest_seconds",): 0,
            ("headrace_transactional_ids",): 0,
            ("headrace_transaction_requests_waiting",): 0,
        }
        assert shown(machine) == nothing
        async with Cluster(BOOTSTRAP) as cluster:
            first, second = (ProducerTransactions(cluster, id) for id in ("first", "second"))
            for producer, partition in ((first, 0), (second, 1)):
                await producer.init()
                producer.begin()
                await producer.add([("t", partition)])
                await write(producer, partition)
                await asyncio.sleep(10)
            seen = shown(machine)
            assert (seen["headrace_transactions_open",], seen["headrace_transactional_ids",]) == (2, 2)
            assert 19 <= seen["headrace_transaction_oldest_seconds",] <= 25
            assert seen["headrace_partition_lso_lag_records", "t", "0"] == 2
            assert seen["headrace_partition_lso_lag_records", "t", "1"] == 2
            transaction_metrics.SHOWN_PARTITIONS_MAX = 1
            try:
                seen = shown(machine)
            finally:
                transaction_metrics.SHOWN_PARTITIONS_MAX = 100
            assert seen["headrace_partition_lso_lags_hidden",] == 1
            assert sum(name[0] == "headrace_partition_lso_lag_records" for name in seen) == 1
            await first.commit()
            await second.abort()
            await asyncio.sleep(1)
            assert shown(machine) == nothing | {("headrace_transactional_ids",): 2}

    in_world(main)
