"""The document on events, brokers, partitions, replication and consumer groups."""

import pytest

from headrace.cli.topic_create import parse_assignment
from headrace.client.errors import ClientError
from headrace.testing.cluster import TestCluster
from tests.cluster.command_line import headrace


def test_partition_0_is_led_by_broker_1_p1_by_b2_p2_by_b3(four: TestCluster) -> None:
    headrace("topic", "create", "spread", "--assignment", "1:2:3,2:3:1,3:1:2", "-b", four.bootstrap)
    four.wait_in_sync("spread")
    assert {n: p.leader for n, p in four.topic("spread").partitions.items()} == {0: 1, 1: 2, 2: 3}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1:b", "such as 1:2,2:3"),
        ("", "such as 1:2,2:3"),
        ("1:1", "names a broker twice"),
        ("1:2,3", "as many brokers as partition 0"),
    ],
)
def test_an_assignment_that_cannot_be_says_what_to_do(text: str, said: str) -> None:
    with pytest.raises(ClientError, match=said):
        parse_assignment(text)


def test_a_broker_that_is_not_there_gets_no_replica(four: TestCluster) -> None:
    said = headrace("topic", "create", "bad", "--assignment", "9", "-b", four.bootstrap, code=1)
    assert "broker 9 is assigned but not registered" in said
