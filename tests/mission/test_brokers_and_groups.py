"""The document on events, brokers, partitions, replication and consumer groups."""

from headrace.testing.cluster import TestCluster
from tests.cluster.command_line import headrace


def test_partition_0_is_led_by_broker_1_p1_by_b2_p2_by_b3(four: TestCluster) -> None:
    headrace("topic", "create", "spread", "--assignment", "1:2:3,2:3:1,3:1:2", "-b", four.bootstrap)
    four.wait_in_sync("spread")
    assert {n: p.leader for n, p in four.topic("spread").partitions.items()} == {0: 1, 1: 2, 2: 3}


def test_an_assignment_that_cannot_be_says_what_to_do(four: TestCluster) -> None:
    at = ("-b", four.bootstrap)
    assert "such as 1:2,2:3" in headrace("topic", "create", "bad", "--assignment", "1:b", *at, code=1)
    assert "names a broker twice" in headrace("topic", "create", "bad", "--assignment", "1:1", *at, code=1)
    assert "as many brokers as partition 0" in headrace("topic", "create", "bad", "--assignment", "1:2,3", *at, code=1)
    assert "leave out -p and -r" in headrace("topic", "create", "bad", "-p", "2", "--assignment", "1", *at, code=1)
    assert "broker 9 is assigned but not registered" in headrace(
        "topic", "create", "bad", "--assignment", "9", *at, code=1
    )
