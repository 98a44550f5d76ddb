"""The document "More on the architecture of Kafka": commits, polling, replication, retries."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import confluent_kafka as confluent

from headrace.testing.cluster import TestCluster
from tests.cluster.command_line import headrace
from tests.mission.conftest import SETTINGS
from tests.mission.records import consumer, produce, read

CRASHING = """
import sys, time
from tests.mission.records import consumer, read
reader = consumer(sys.argv[1], "quiz")
reader.subscribe(["quiz"])
for message in read(reader, 25):
    if message.offset() == 19:
        reader.commit(message=message, asynchronous=False)
print("twenty are committed, five more are processed", flush=True)
time.sleep(600)
"""


def test_quiz_twenty_are_committed_then_a_crash_and_the_next_reads_from_the_twenty_first(four: TestCluster) -> None:
    four.create_topic("quiz", 1, 1)
    produce(four.bootstrap, "quiz", [b"%d" % n for n in range(30)])
    crashing = subprocess.Popen([sys.executable, "-c", CRASHING, four.bootstrap], stdout=subprocess.PIPE)
    assert crashing.stdout is not None and crashing.stdout.readline().startswith(b"twenty")
    os.kill(crashing.pid, signal.SIGKILL)
    crashing.wait()
    crashing.stdout.close()
    reader = consumer(four.bootstrap, "quiz")
    reader.assign(reader.committed([confluent.TopicPartition("quiz", 0)]))
    assert read(reader, 1)[0].offset() == 20, "what was processed and not committed is read again"
    reader.close()


def test_three_partitions_of_three_records_with_the_latest_of_the_first_not_committed(four: TestCluster) -> None:
    four.create_topic("drawing", 3, 1)
    for partition in range(3):
        produce(four.bootstrap, "drawing", [b"a", b"b", b"c"], partition=partition)
    reader = consumer(four.bootstrap, "drawing")
    ends = {0: 2, 1: 3, 2: 3}
    reader.commit(
        offsets=[confluent.TopicPartition("drawing", partition, end) for partition, end in ends.items()],
        asynchronous=False,
    )
    reader.close()
    text = headrace("group", "describe", "drawing", "-b", four.bootstrap)
    rows = [line.split() for line in text.splitlines() if re.match(r"drawing +\d", line)]
    assert len(rows) == 3 and [[int(cell) for cell in row[1:5]] for row in rows] == [
        [0, 2, 3, 1], [1, 3, 3, 0], [2, 3, 3, 0],
    ]  # fmt: skip


def test_with_three_replicas_and_two_in_sync_one_may_be_lost_and_records_are_written_and_kept(tmp_path: Path) -> None:
    with TestCluster(3, folder=tmp_path / "c", settings=SETTINGS) as cluster:
        cluster.create_topic("kept", 1, 3, {"min.insync.replicas": "2"})
        produce(cluster.bootstrap, "kept", [b"%d" % n for n in range(10)])
        lost = cluster.leader_of("kept")
        cluster.kill(lost)
        assert cluster.leader_of("kept", other_than=lost) != lost, "a follower in sync becomes leader by itself"
        produce(cluster.bootstrap, "kept", [b"%d" % n for n in range(10, 20)])
        reader = consumer(cluster.bootstrap, "kept")
        reader.assign([confluent.TopicPartition("kept", 0, 0)])
        assert [message.value() for message in read(reader, 20)] == [b"%d" % n for n in range(20)]
        reader.close()
