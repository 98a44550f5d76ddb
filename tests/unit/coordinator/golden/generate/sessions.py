"""Random sessions of members with Apache Kafka's coordinator (Oracle.java), written down to be played to ours.

    python -m tests.unit.coordinator.golden.generate.sessions <Kafka's jars> [--count 60] [--seed 1] [--check]

With --check nothing is written: each event is played to both at once, and the first difference is shown.
"""

import argparse
import json
import random
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headrace.protocol import messages as m
from headrace.protocol.api import API, ApiKey
from tests.unit.coordinator.sessions import Ours, difference

HERE = Path(__file__).parent
TARGET = HERE.parent / "consumer-sessions-kafka-4.3.1.json"
TOPICS = ("t", "u", "v", "tt")
REGEXES = ("t.*", "[uv]", "x+", "t|u")
BATCH = {"range": [("range", 1)], "both": [("range", 1), ("roundrobin", 0)], "other": [("roundrobin", 2)]}


class Oracle:
    def __init__(self, libs: str) -> None:
        self._folder = tempfile.TemporaryDirectory()
        classpath = f"{self._folder.name}:{libs}/*"
        subprocess.run(
            ["javac", "-nowarn", "-d", self._folder.name, "-cp", classpath, str(HERE / "Oracle.java")],
            check=True,
        )
        self._process = subprocess.Popen(
            ["java", "-cp", classpath, "Oracle"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def tell(self, command: str) -> list[str]:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        lines = []
        while (line := self._process.stdout.readline().strip()) != ".":
            if not line:
                raise RuntimeError(f"the oracle died of: {command}")
            lines.append(line)
        return lines

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()
        self._folder.cleanup()


class Client:
    """What a member knows. It speaks one of the two protocols, and forgets or repeats itself at times."""

    def __init__(self, member_id: str, instance_id: str | None) -> None:
        self.member_id = member_id
        self.instance_id = instance_id
        self.epoch = 0
        self.classic = False
        self.owned: dict[bytes, set[int]] = {}
        self.assigned: dict[bytes, set[int]] = {}
        self.topics: list[str] | None = None
        self.led: list[str] = []
        """As leader of a classic group, the members to assign to."""


class Session:
    """Makes up the next event from what the members know."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.mixed = seed % 3 == 0
        """With classic members; Kafka makes up ids for some, so that only `range` assigns in a known order."""
        self.migrating = seed % 6 == 0
        """Few members, who often change their protocol, so that groups change theirs."""
        self.now_ms = 1_000_000
        self.number = 0
        self.offset = 1
        self.counts = {"t": 3, "u": 2}
        self.ids = {"t": 3, "u": 4, "v": 5, "tt": 6}
        self.racks = ""
        self.clients = [
            Client(letter, f"i{n}" if n % 3 == 0 and self.random.random() < 0.7 else None)
            for n, letter in enumerate("abcd" if self.migrating else "abcdefgh")
        ]
        self.asked: dict[int, tuple[ApiKey, int]] = {}
        self.pending: dict[int, Client] = {}

    def config(self) -> dict[str, str]:
        choose = self.random.choice
        return {
            "group.consumer.assignors": "range" if self.mixed else choose(["uniform,range", "range,uniform"]),
            "group.consumer.assignment.interval.ms": choose(["0", "0", "1000"]),
            "group.consumer.migration.policy": choose(["bidirectional"] * 4 + ["upgrade", "downgrade", "disabled"]),
            "group.consumer.max.size": choose(["2147483647"] * 4 + ["3"]),
            "group.consumer.regex.refresh.interval.ms": choose(["600000", "20000"]),
            "group.initial.rebalance.delay.ms": "3",
        }

    def image(self) -> str:
        topics = (f"{name}:{self.ids[name]}:{count}{self.racks}" for name, count in sorted(self.counts.items()))
        return " ".join(["image", str(self.offset), *topics])

    def steps(self, length: int) -> Iterator[str]:
        yield self.image()
        for _ in range(length):
            # Odd times, so that no two deadlines meet.
            self.now_ms += self.random.choice([7, 13, 131, 1009, 3001, 5003]) + self.random.randrange(1000)
            yield f"advance {self.now_ms}"
            self.number += 1
            yield self._event()

    def _event(self) -> str:
        roll = self.random.random()
        if roll < 0.06:
            return self._change_topics()
        if roll < 0.09:
            self.now_ms += self.random.choice([11_003, 46_007, 61_001])
            return f"advance {self.now_ms}"
        if roll < 0.12:
            return self._request(
                ApiKey.CONSUMER_GROUP_DESCRIBE, 1, m.ConsumerGroupDescribeRequest(group_ids=["g"]), "x"
            )
        client = self.random.choice(self.clients)
        if roll < 0.16:
            return self._commit(client)
        turns_classic = self.random.random() < (0.5 if self.migrating and not client.epoch else 0.15)
        stays_classic = self.random.random() < (0.88 if self.migrating else 0.93)
        if self.mixed and (client.classic or turns_classic) and stays_classic:
            return self._classic(client)
        return self._consumer(client)

    def _change_topics(self) -> str:
        self.offset += 1
        name = self.random.choice(TOPICS)
        if self.random.random() < 0.3 and len(self.counts) > 1:
            self.counts.pop(name, None)
        elif name in self.counts:
            self.counts[name] += 1
        else:
            # A topic deleted and made again is another topic.
            self.counts[name] = self.random.randrange(1, 4)
            self.ids[name] += 4
        if self.random.random() < 0.1:
            self.racks = self.random.choice(["", ":r1", ":r1+r2"])
        return self.image()

    def _request(self, key: ApiKey, version: int, request: Any, client: str) -> str:
        self.asked[self.number] = (key, version)
        data = API[key].request.encode(request, version).hex()
        return f"request {self.number} {self.now_ms} {int(key)} {version} {client} {data}"

    def _commit(self, client: Client) -> str:
        name = self.random.choice(list(self.counts))
        kind = m.OffsetCommitRequest
        request = kind(
            group_id="g",
            generation_id_or_member_epoch=client.epoch - self.random.choice([0, 0, 1, 2, -1]),
            member_id=client.member_id,
            topics=[
                kind.OffsetCommitRequestTopic(
                    name=name,
                    topic_id=self.ids[name].to_bytes(16, "big"),
                    partitions=[kind.OffsetCommitRequestPartition(partition_index=0, committed_offset=self.number)],
                )
            ],
        )
        return self._request(ApiKey.OFFSET_COMMIT, self.random.choice([8, 10, 10]), request, client.member_id)

    def _consumer(self, client: Client) -> str:
        choose, chance = self.random.choice, self.random.random
        request = m.ConsumerGroupHeartbeatRequest(
            group_id="g",
            member_id=client.member_id,
            member_epoch=client.epoch,
            instance_id=client.instance_id,
        )
        self.pending[self.number] = client
        roll = chance()
        if roll < (0.2 if self.migrating else 0.04) and client.epoch > 0:
            request.member_epoch = -2 if client.instance_id and chance() < 0.6 else -1
            client.epoch, client.owned = 0, {}
            return self._request(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, request, client.member_id)
        if roll < 0.08:
            request.member_epoch = max(client.epoch + choose([-2, -1, 1]), 0)
        elif roll < 0.11:
            request.member_epoch = client.epoch = 0
        if chance() < 0.03 and request.member_epoch > 0:
            request.instance_id = "i0"
        if request.member_epoch <= 0:
            client.owned, client.classic = {}, False
            request.member_epoch = 0
            request.rebalance_timeout_ms = choose([20_011, 300_007])
            request.topic_partitions = []
            self._subscribe(request)
        else:
            if chance() < 0.06:
                self._subscribe(request)
            if chance() < 0.8:
                # Gives up what it must first, and takes what is new with the next heartbeat.
                kept = {t: p & client.assigned.get(t, set()) for t, p in client.owned.items()}
                client.owned = kept if chance() < 0.5 else {t: set(p) for t, p in client.assigned.items()}
                request.topic_partitions = [
                    m.ConsumerGroupHeartbeatRequest.TopicPartitions(topic_id=t, partitions=sorted(p))
                    for t, p in sorted(client.owned.items())
                    if p
                ]
            if chance() < 0.1:
                request.rebalance_timeout_ms = 300_007
        if chance() < 0.05:
            request.rack_id = choose(["r1", "r2"])
        if chance() < 0.1 and not self.mixed:
            request.server_assignor = choose(["uniform", "range"])
        return self._request(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, request, client.member_id)

    def _subscribe(self, request: m.ConsumerGroupHeartbeatRequest) -> None:
        choose, chance = self.random.choice, self.random.random
        names = sorted(t for t in TOPICS if chance() < 0.6)
        if chance() < 0.25:
            request.subscribed_topic_regex = choose(REGEXES)
            if chance() < 0.6:
                names = []
        elif chance() < 0.2:
            request.subscribed_topic_regex = ""
        request.subscribed_topic_names = names if chance() < 0.95 or request.subscribed_topic_regex is None else None

    def _classic(self, client: Client) -> str:
        chance = self.random.random
        self.pending[self.number] = client
        generation = client.epoch if chance() < 0.95 else client.epoch + self.random.choice([-1, 1])
        roll = chance()
        if not client.classic or roll < 0.35:
            return self._classic_join(client)
        if roll < 0.6:
            sync = m.SyncGroupRequest(
                group_id="g", generation_id=generation, member_id=client.member_id,
                group_instance_id=client.instance_id, protocol_type="consumer", protocol_name="range",
                assignments=self._assignments(client),
            )  # fmt: skip
            return self._request(ApiKey.SYNC_GROUP, 5, sync, client.member_id)
        if roll < 0.94:
            beat = m.HeartbeatRequest(
                group_id="g",
                generation_id=generation,
                member_id=client.member_id,
                group_instance_id=client.instance_id,
            )
            return self._request(ApiKey.HEARTBEAT, 4, beat, client.member_id)
        leave = m.LeaveGroupRequest(
            group_id="g",
            members=[
                m.LeaveGroupRequest.MemberIdentity(member_id=client.member_id, group_instance_id=client.instance_id)
            ],
        )
        return self._request(ApiKey.LEAVE_GROUP, 5, leave, client.member_id)

    def _assignments(self, client: Client) -> list[Any]:
        """Each member gets every so-manieth partition of every topic."""
        made = []
        for place, member_id in enumerate(client.led):
            partitions = {name: list(range(place, count, len(client.led))) for name, count in self.counts.items()}
            made.append(
                m.SyncGroupRequest.SyncGroupRequestAssignment(member_id=member_id, assignment=_assignment(partitions))
            )
        return made

    def _classic_join(self, client: Client) -> str:
        choose, chance = self.random.choice, self.random.random
        names = client.topics if client.topics and chance() < 0.7 else sorted(t for t in TOPICS if chance() < 0.6)
        client.topics = names
        protocols = BATCH[choose(["range"] * 5 + ["both"] * 3 + ["other"])]
        by_id = {i: name for name, i in self.ids.items()}
        owned = {
            by_id[int.from_bytes(t, "big")]: sorted(p)
            for t, p in client.owned.items()
            if int.from_bytes(t, "big") in by_id and p
        }
        # A static member that has lost its id joins without; so may a dynamic one of the new protocol turn classic.
        known = client.member_id if client.classic or client.instance_id is None else ""
        if self.migrating and not client.classic and chance() < 0.8:
            known = ""
        request = m.JoinGroupRequest(
            group_id="g",
            session_timeout_ms=choose([30_011, 45_013]),
            rebalance_timeout_ms=choose([20_021, 60_029]),
            member_id=known,
            group_instance_id=client.instance_id,
            protocol_type="consumer",
            protocols=[
                m.JoinGroupRequest.JoinGroupRequestProtocol(name=name, metadata=_metadata(names, owned, version))
                for name, version in protocols
            ],
        )
        return self._request(ApiKey.JOIN_GROUP, 9, request, client.member_id)

    def heard(self, lines: list[str]) -> None:
        """Members learn from their answers, unless these are lost."""
        for line in lines:
            word, *rest = line.split(" ")
            if word == "member" and rest[0] != "null":
                for client in self.clients:
                    if client.instance_id == rest[0] and client.classic:
                        client.member_id = rest[1]
            if word not in ("response", "error") or int(rest[0]) not in self.pending:
                continue
            client = self.pending.pop(int(rest[0]))
            if word == "error":
                if self.random.random() < 0.8:
                    client.epoch, client.owned, client.classic = 0, {}, False
            elif self.random.random() < 0.93:
                self._learn(client, *self.asked[int(rest[0])], bytes.fromhex(rest[1]))

    def _learn(self, client: Client, key: ApiKey, version: int, data: bytes) -> None:
        response: Any = API[key].response.decode(data, version)
        if getattr(response, "error_code", 0):
            if response.error_code == 79:
                client.member_id, client.classic = response.member_id, True
            elif response.error_code != 27:
                client.epoch, client.owned, client.classic = 0, {}, False
        elif key is ApiKey.CONSUMER_GROUP_HEARTBEAT:
            client.epoch = max(response.member_epoch, 0)
            if response.assignment is not None:
                client.assigned = {t.topic_id: set(t.partitions) for t in response.assignment.topic_partitions}
        elif key is ApiKey.JOIN_GROUP:
            client.member_id, client.epoch, client.classic = response.member_id, response.generation_id, True
            client.led = [member.member_id for member in response.members]
        elif key is ApiKey.LEAVE_GROUP:
            client.epoch, client.owned, client.classic = 0, {}, False


def _metadata(names: list[str], owned: dict[str, list[int]], version: int) -> bytes:
    from headrace.protocol.api import DATA

    kind = m.ConsumerProtocolSubscription
    message = kind(
        topics=names,
        owned_partitions=[kind.TopicPartition(topic=t, partitions=p) for t, p in owned.items()] if version else [],
    )
    return version.to_bytes(2, "big") + DATA["ConsumerProtocolSubscription"].encode(message, version)


def _assignment(partitions: dict[str, list[int]]) -> bytes:
    from headrace.protocol.api import DATA

    kind = m.ConsumerProtocolAssignment
    topics = [kind.TopicPartition(topic=name, partitions=p) for name, p in partitions.items() if p]
    return b"\x00\x01" + DATA["ConsumerProtocolAssignment"].encode(kind(assigned_partitions=topics), 1)


def _subscribes_to_no_name(command: str) -> bool:
    """Kafka takes a group for homogeneous when a member joins it with nothing but a pattern, and misassigns.

    What such a session would go on with is of no use.
    """
    words = command.split(" ")
    if words[0] != "request" or int(words[3]) != ApiKey.CONSUMER_GROUP_HEARTBEAT:
        return False
    request: Any = API[ApiKey.CONSUMER_GROUP_HEARTBEAT].request.decode(bytes.fromhex(words[6]), int(words[4]))
    return bool(request.subscribed_topic_names is None or not request.subscribed_topic_names)


def session(oracle: Oracle, seed: int, length: int) -> dict[str, Any] | None:
    made = Session(seed)
    config = made.config()
    oracle.tell(" ".join(["config", *(f"{name}={value}" for name, value in config.items())]))
    ours = Ours(config)
    events: list[tuple[str, list[str]]] = []
    for command in made.steps(length):
        lines = oracle.tell(command)
        events.append((command, lines))
        made.heard(lines)
        wrong = difference(ours, command, lines)
        if wrong and _subscribes_to_no_name(command):
            events.pop()
            break
        if wrong:
            print(f"seed {seed}, event {len(events)}: {command}\n{wrong}")
            return None
    return {"seed": seed, "config": config, "events": events}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("libs")
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--length", type=int, default=60)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    oracle = Oracle(options.libs)
    try:
        seeds = range(options.seed, options.seed + options.count)
        made = [session(oracle, seed, options.length) for seed in seeds]
    finally:
        oracle.close()
    print(sum(x is not None for x in made), "of", len(made), "sessions")
    made = [x for x in made if x is not None]
    if not options.check:
        TARGET.write_text("[\n" + ",\n".join(json.dumps(s, separators=(",", ":")) for s in made) + "\n]\n", "utf-8")


if __name__ == "__main__":
    main()
