"""The document on topics, partitions, offsets, keys, leaders and followers."""

import confluent_kafka as confluent

from headrace.testing.cluster import TestCluster
from tests.cluster.command_line import headrace
from tests.mission.records import consumer, produce, read


def test_topic_partition_and_offset_name_a_record_and_order_holds_within_a_partition_only(four: TestCluster) -> None:
    four.create_topic("ordered", 2, 2)
    for partition in (0, 1):
        told = produce(four.bootstrap, "ordered", [b"%d" % n for n in range(5)], partition=partition)
        assert told == [(partition, offset) for offset in range(5)], "offsets are unique within one partition only"
    reader = consumer(four.bootstrap, "ordered")
    reader.assign([confluent.TopicPartition("ordered", 1, 3)])
    assert [message.value() for message in read(reader, 2)] == [b"3", b"4"], "from an offset of one's choice, in order"
    reader.close()


def test_records_with_the_same_key_are_written_to_the_same_partition(four: TestCluster) -> None:
    four.create_topic("cities", 4, 1)
    for city in (b"Oslo", b"Lima", b"Kyiv"):
        told = produce(four.bootstrap, "cities", [b"%d" % n for n in range(5)], key=city)
        assert len({partition for partition, _ in told}) == 1


def test_consumers_go_back_and_forth_and_read_from_any_offset(four: TestCluster) -> None:
    four.create_topic("replayed", 1, 1)
    produce(four.bootstrap, "replayed", [b"%d" % n for n in range(10)])
    reader = consumer(four.bootstrap, "replayed")
    at = confluent.TopicPartition("replayed", 0, 7)
    reader.assign([at])
    assert [message.offset() for message in read(reader, 3)] == [7, 8, 9]
    for offset in (2, 5):
        reader.seek(confluent.TopicPartition("replayed", 0, offset))
        assert read(reader, 1)[0].offset() == offset
    reader.close()


def test_two_partitions_on_four_brokers_broker_1_leads_one_and_follows_the_other(four: TestCluster) -> None:
    headrace("topic", "create", "two", "--assignment", "1:2:3:4,2:1:4:3", "-b", four.bootstrap)
    four.wait_in_sync("two")
    first, second = (four.topic("two").partitions[n] for n in (0, 1))
    assert (first.leader, second.leader) == (1, 2)
    assert 1 in second.replicas and 1 in second.isr
    assert set(first.replicas) == set(second.replicas) == {1, 2, 3, 4}
