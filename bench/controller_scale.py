"""The controller's core on paper: a cluster of a thousand brokers and a million partitions, in memory and without a
log.

    python -m bench.controller_scale [--brokers 1000] [--partitions 1000000] [--factor 3]

Prints the CPU time and memory to load the metadata, to create a topic, to change one ISR, to fence a broker, to bring
it back, to start a move and to list all moves, and the time of a heartbeat. Nothing may grow with the whole cluster but
loading.
"""

import argparse
import gc
import resource
import time
from collections.abc import Callable
from random import Random
from typing import Any

from headrace.config import BrokerConfig
from headrace.metadata.controller import Controller
from headrace.metadata.image import Image
from headrace.metadata.loader import Loader
from headrace.metadata.outcome import Outcome
from headrace.metadata.reassignment import list_reassignments
from headrace.metadata.records import Record, decode_record, encode_record
from headrace.metadata.sessions import Sessions
from headrace.metadata.snapshot import image_records
from headrace.metadata.versions import KNOWN_FEATURES
from headrace.protocol import messages as m

PARTITIONS_PER_TOPIC = 1_000
RACKS = 10


def memory_mb() -> float:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize() / 1e6


class Paper:
    """A controller, and the image that its decisions make."""

    def __init__(self) -> None:
        random = Random(1)
        config = BrokerConfig.load({"node.id": "1", "log.dirs": "/nowhere"})
        self.controller = Controller(
            config, "cluster", random.randrange, lambda: random.getrandbits(128).to_bytes(16, "big")
        )
        self.loader = Loader()
        self.offset = 0

    @property
    def image(self) -> Image:
        return self.loader.image

    def commit(self, records: list[Record]) -> None:
        if records:
            self.loader.load(records, self.offset, 1, 0)
            self.offset += len(records)

    def do(self, outcome: Outcome[Any]) -> Any:
        self.commit(outcome.records)
        return outcome.response

    def register(self, broker_id: int) -> None:
        Q = m.BrokerRegistrationRequest
        request = Q(
            broker_id=broker_id,
            cluster_id="cluster",
            incarnation_id=broker_id.to_bytes(16, "big"),
            listeners=[Q.Listener(name="PLAINTEXT", host=f"broker-{broker_id}", port=9092, security_protocol=0)],
            features=[
                Q.Feature(name=name, min_supported_version=low, max_supported_version=high)
                for name, (low, high) in KNOWN_FEATURES.items()
            ],
            rack=f"rack-{broker_id % RACKS}",
            log_dirs=[(1_000_000 + broker_id).to_bytes(16, "big")],
        )
        self.do(self.controller.register_broker(self.image, request, self.offset, session_alive=False))
        self.commit(self.controller.unfence_broker(self.image, broker_id))

    def create(self, name: str, partitions: int, factor: int) -> None:
        Q = m.CreateTopicsRequest
        topic = Q.CreatableTopic(name=name, num_partitions=partitions, replication_factor=factor)
        answer = self.do(self.controller.create_topics(self.image, Q(topics=[topic])))
        assert answer.topics[0].error_code == 0, answer


def measured(what: str, work: Callable[[], Any], times: int = 1) -> Any:
    """CPU time: it does not depend on what else the machine does, and there is nothing here to wait for."""
    before_mb, started = memory_mb(), time.process_time()
    result = None
    for _ in range(times):
        result = work()
    each_ms = (time.process_time() - started) * 1000 / times
    print(f"{what:58} {each_ms:12.3f} ms {memory_mb() - before_mb:+9.1f} MB")
    return result


def load_from_bytes(encoded: list[bytes]) -> Image:
    """As a node that starts reads its snapshot: all of it is one change."""
    loader = Loader()
    loader.load((decode_record(value) for value in encoded), 0, 1, 0)
    return loader.image


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--brokers", type=int, default=1_000)
    parser.add_argument("--partitions", type=int, default=1_000_000)
    parser.add_argument("--factor", type=int, default=3)
    options = parser.parse_args()
    gc.disable()
    paper = Paper()
    paper.commit([(m.FeatureLevelRecord(name="metadata.version", feature_level=30), 0)])
    for broker_id in range(1, options.brokers + 1):
        paper.register(broker_id)
    started = time.process_time()
    for number in range(options.partitions // PARTITIONS_PER_TOPIC):
        paper.create(f"topic-{number}", PARTITIONS_PER_TOPIC, options.factor)
    print(
        f"{options.brokers} brokers, {options.partitions} partitions, factor {options.factor}:"
        f" decided in {time.process_time() - started:.1f} s, {memory_mb():.0f} MB"
    )
    encoded = [encode_record(message, version) for message, version in image_records(paper.image)]
    print(f"{len(encoded)} records, {sum(map(len, encoded)) / 1e6:.0f} MB")
    gc.collect()
    gc.freeze()
    measured("load it all from records", lambda: load_from_bytes(encoded))
    names = iter(range(10**9))
    measured("create a topic of 10 partitions", lambda: paper.create(f"new-{next(names)}", 10, options.factor), 20)
    change_one(paper)
    victim = options.brokers // 2
    held = sum(1 for _ in paper.image.partitions_of(victim))
    measured(
        f"fence a broker that holds {held} partitions",
        lambda: paper.commit(paper.controller.fence_broker(paper.image, victim)),
    )
    measured("bring it back", lambda: paper.commit(paper.controller.unfence_broker(paper.image, victim)))
    move_one(paper)
    heartbeats(paper, options.brokers)
    print(f"peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3:.0f} MB")


def change_one(paper: Paper) -> None:
    topic = paper.image.topic_named("topic-0")
    assert topic is not None

    def shrink_or_grow() -> None:
        partition = paper.image.topics[topic.id].partitions[0]
        isr = partition.isr[:-1] if len(partition.isr) == len(partition.replicas) else partition.replicas
        Q = m.AlterPartitionRequest
        row = Q.PartitionData(
            partition_index=0,
            leader_epoch=partition.leader_epoch,
            partition_epoch=partition.partition_epoch,
            new_isr_with_epochs=[Q.BrokerState(broker_id=broker_id) for broker_id in isr],
        )
        request = Q(
            broker_id=partition.leader,
            broker_epoch=paper.image.brokers[partition.leader].epoch,
            topics=[Q.TopicData(topic_id=topic.id, partitions=[row])],
        )
        answer = paper.do(paper.controller.alter_partition(paper.image, request, 3))
        assert answer.topics[0].partitions[0].error_code == 0, answer

    measured("change one ISR", shrink_or_grow, 50)


def move_one(paper: Paper) -> None:
    Q = m.AlterPartitionReassignmentsRequest
    topic = paper.image.topic_named("topic-1")
    assert topic is not None
    replicas = topic.partitions[0].replicas
    target = [broker_id for broker_id in paper.image.brokers if broker_id not in replicas][: len(replicas)]
    row = Q.ReassignablePartition(partition_index=0, replicas=target)
    request = Q(topics=[Q.ReassignableTopic(name="topic-1", partitions=[row])])
    measured("start a move", lambda: paper.do(paper.controller.alter_reassignments(paper.image, request)))
    everything = m.ListPartitionReassignmentsRequest(topics=None)
    answer = measured("list all moves", lambda: list_reassignments(paper.image, everything), 10)
    assert len(answer.topics) == 1


def heartbeats(paper: Paper, brokers: int) -> None:
    sessions = Sessions(3000)
    epochs = {broker.id: broker.epoch for broker in paper.image.brokers.values()}
    sessions.restart(epochs, 0, {})
    turn = iter(range(10**9))

    def beat() -> None:
        broker_id = next(turn) % brokers + 1
        request = m.BrokerHeartbeatRequest(
            broker_id=broker_id, broker_epoch=epochs[broker_id], current_metadata_offset=paper.image.offset
        )
        outcome = paper.controller.heartbeat(paper.image, request, lambda: True)
        assert not outcome.records
        sessions.touch(broker_id, epochs[broker_id], 1)
        assert sessions.expired(1) is None

    measured("a heartbeat", beat, 10_000)


if __name__ == "__main__":
    main()
