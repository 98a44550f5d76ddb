"""The shape in which coordinators' topics are created: what is not set follows the cluster."""

import pytest

from headrace.broker.coordinators.state_topic import transactions_topic
from headrace.config import BrokerConfig
from headrace.metadata.image import Broker, Image
from headrace.metadata.persistent import PersistentMap

COUNT, FACTOR = "transaction.state.log.num.partitions", "transaction.state.log.replication.factor"


def image(alive: int, fenced: int) -> Image:
    brokers = {
        number: Broker(number, 0, bytes(16), (), {}, None, number > alive, False, ())
        for number in range(1, alive + fenced + 1)
    }
    return Image(brokers=PersistentMap(brokers))


@pytest.mark.parametrize(
    ("settings", "alive", "shape"),
    [
        ({}, 1, (1, 1, "1")),
        ({}, 3, (3, 3, "2")),
        ({}, 80, (50, 3, "2")),
        ({COUNT: "50"}, 1, (50, 1, "1")),
        ({COUNT: "7", FACTOR: "2"}, 3, (7, 2, "2")),
    ],
)
def test_transactions_have_a_shard_for_each_broker_unless_it_is_set(
    settings: dict[str, str], alive: int, shape: tuple[int, int, str]
) -> None:
    wanted = transactions_topic(BrokerConfig.load({}, {}, settings), image(alive, 1))
    (in_sync,) = (one.value for one in wanted.configs if one.name == "min.insync.replicas")
    assert (wanted.num_partitions, wanted.replication_factor, in_sync) == shape
