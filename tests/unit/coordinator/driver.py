"""A runtime for one shard without a broker: a log in a list, a clock that is told the time, timers, and transcripts.

`Driver` does what outcome.py asks of a runtime. `play` runs a transcript: commands at the margin, effects indented.
"""

import shlex
import struct
from collections.abc import Callable, Hashable, Iterator
from typing import Any, NamedTuple

import msgspec

from headrace.coordinator.classic_group import ClassicGroup
from headrace.coordinator.outcome import Cancel, Context, Outcome, Promise, Record, Timer
from headrace.coordinator.shard import GroupShard
from headrace.coordinator.shard_requests import precheck
from headrace.coordinator.shard_state import ShardConfig
from headrace.errors import Err
from headrace.metadata.image import EMPTY, Image, Topic
from headrace.metadata.persistent import PersistentMap
from headrace.protocol import messages as m
from headrace.protocol.api import DATA

NO_PRODUCER = -1


def image(**topics: int) -> Image:
    """Topics with so many partitions; a topic's id is its name, padded."""
    made = {topic_id(name): Topic(topic_id(name), name, PersistentMap()) for name in topics}
    return msgspec.structs.replace(
        EMPTY, topics=PersistentMap(made), topic_ids=PersistentMap({t.name: i for i, t in made.items()})
    )


def topic_id(name: str) -> bytes:
    return name.encode().ljust(16, b"_")[:16]


def subscription(*topics: str, version: int = 1) -> bytes:
    message = m.ConsumerProtocolSubscription(topics=list(topics))
    return struct.pack(">h", version) + DATA["ConsumerProtocolSubscription"].encode(message, version)


class Caller(NamedTuple):
    """A `Context`."""

    client_id: str
    client_host: str
    version: int
    new_id: Callable[[], str]


class Driver:
    def __init__(self, config: ShardConfig | None = None, *, hold: bool = False) -> None:
        self.config = config or ShardConfig()
        self.now_ms = 0
        self.notes: list[str] = []
        self.shard = GroupShard(self.config, note=self.notes.append)
        self.log: list[tuple[bytes | None, bytes | None, int]] = []
        """(key, value, producer id); a marker has no key and commits if its value is not None."""
        self.timers: dict[Any, int] = {}
        self.hold = hold
        """Do not move the high watermark by itself."""
        self.high_watermark = 0
        self.parked: list[tuple[int, str, Any]] = []
        self.answers: list[tuple[str, Any]] = []
        self.waiting: dict[int, str] = {}
        self.ids = 0
        self.fired = 0

    def new_id(self) -> str:
        self.ids += 1
        return str(self.ids)

    def context(self, client_id: str, version: int) -> Context:
        return Caller(client_id, "/127.0.0.1", version, self.new_id)

    def ask(self, client: str, method: str, request: Any, version: int) -> Outcome:
        context = self.context(client, version)
        refused = precheck(request, version, self.config)
        if refused is not None:
            self.answers.append((client, refused))
            return Outcome(refused)
        outcome: Outcome = getattr(self.shard, method)(request, context, self.now_ms)
        producer_id = getattr(request, "producer_id", NO_PRODUCER)
        self.run(outcome, client, producer_id)
        return outcome

    def run(self, outcome: Outcome, client: str = "", producer_id: int = NO_PRODUCER) -> None:
        for record in outcome.records:
            self.append(record, producer_id)
        for timer in outcome.timers:
            if isinstance(timer, Timer):
                self.timers[timer.key] = self.now_ms + timer.delay_ms
            else:
                assert isinstance(timer, Cancel)
                self.timers.pop(timer.key, None)
        if isinstance(outcome.response, Promise):
            self.waiting[id(outcome.response)] = client
            outcome.response.waiter = client
        elif client:
            self.parked.append((len(self.log), client, outcome.response))
        for promise in outcome.completed:
            self.waiting.pop(id(promise))
            self.parked.append((len(self.log), promise.waiter, promise.response))
        self.commit()

    def append(self, record: Record, producer_id: int) -> None:
        self.log.append((record.key, record.value, producer_id))
        self.shard.apply(len(self.log) - 1, producer_id, 0, record)

    def marker(self, producer_id: int, committed: bool) -> None:
        self.log.append((None, b"" if committed else None, producer_id))
        self.shard.replay_marker(len(self.log) - 1, producer_id, 0, committed)
        self.commit()

    def commit(self, *, release: bool = False) -> None:
        if self.hold and not release:
            return
        self.high_watermark = len(self.log)
        self.shard.advance(self.high_watermark)
        while self.parked and self.parked[0][0] <= self.high_watermark:
            self.answers.append(self.parked.pop(0)[1:])

    def elapse(self, ms: int) -> None:
        """Let time pass, firing what is due at its own moment."""
        end_ms = self.now_ms + ms
        while self.timers:
            # Of two at once Kafka fires the session's, which was armed first; here it may have been armed again.
            key, due_ms = min(self.timers.items(), key=lambda item: (item[1], item[0][0] != "session"))
            if due_ms > end_ms:
                break
            del self.timers[key]
            self.now_ms = due_ms
            self.fired += 1
            self.run(self.shard.timeout(key, self.now_ms))
        self.now_ms = end_ms

    def reload(self) -> GroupShard:
        """Another shard from the log alone."""
        shard = GroupShard(self.config)
        shard.advance(self.high_watermark)
        for offset, (key, value, producer_id) in enumerate(self.log):
            if key is None:
                shard.replay_marker(offset, producer_id, 0, value is not None)
            else:
                shard.replay(offset, producer_id, 0, key, value)
        return shard


def durable(shard: GroupShard) -> dict[str, Any]:
    """What must be the same live and replayed. Groups are what their last record says."""
    groups = {
        group_id: group.written if isinstance(group, ClassicGroup) else group.type
        for group_id, group in shard.state.groups.live.items()
    }
    return {"groups": groups, **shard.offsets.snapshot()}


# Transcripts.


def show(value: Any) -> str:
    if isinstance(value, msgspec.Struct):
        fields = []
        for field in msgspec.structs.fields(value):
            actual = getattr(value, field.name)
            default = field.default if field.default is not msgspec.NODEFAULT else None
            if field.name == "error_code":
                if actual:
                    fields.append(f"error={Err(actual).name}")
            elif actual not in (default, [], b"", bytes(16), None):
                fields.append(f"{field.name}={show(actual)}")
        name = type(value).__name__
        return f"{name}({' '.join(fields)})"
    if isinstance(value, list):
        return "[" + ", ".join(map(show, value)) + "]"
    if isinstance(value, bytes):
        return repr(value)[1:] if value.isascii() and value.decode().isprintable() else value.hex()
    return str(value)


def _arguments(words: list[str]) -> dict[str, str]:
    return dict(word.split("=", 1) for word in words)


class Player:
    """Runs the commands of a transcript; see `COMMANDS` for their names and the files for their arguments."""

    def __init__(self) -> None:
        self.driver = Driver()

    def play(self, line: str) -> Iterator[str]:
        verb, *words = shlex.split(line)
        driver = self.driver
        shown = len(driver.log)
        before = dict(driver.timers)
        clients = [word for word in words if "=" not in word]
        extra = COMMANDS[verb](self, *clients, **_arguments([word for word in words if "=" in word]))
        driver = self.driver
        for offset in range(shown, len(driver.log)):
            yield self.describe_record(offset)
        for key, due_ms in driver.timers.items():
            if before.get(key) != due_ms:
                yield f"timer {show_key(key)} at {due_ms}"
        yield from (f"cancel {show_key(key)}" for key in before if key not in driver.timers and verb != "pass")
        for client, response in driver.answers:
            yield f"{client} <- {show(response)}"
        driver.answers.clear()
        yield from extra or ()

    def describe_record(self, offset: int) -> str:
        from headrace.coordinator.records import decode

        key, value, producer_id = self.driver.log[offset]
        if key is None:
            return f"{offset}: marker producer={producer_id} {'commit' if value is not None else 'abort'}"
        record = decode(key, value)
        assert record is not None
        text = "tombstone" if record.value_message is None else show(record.value_message)
        by = "" if producer_id == NO_PRODUCER else f" producer={producer_id}"
        return f"{offset}: {show(record.key_message)} {text}{by}"


def show_key(key: Hashable) -> str:
    assert isinstance(key, tuple)
    return " ".join(map(str, key))


def _protocols(text: str) -> list[Any]:
    """name:topic+topic or name:!hex, separated by commas."""
    made = []
    for part in filter(None, text.split(",")):
        name, _, topics = part.partition(":")
        metadata = (
            bytes.fromhex(topics[1:]) if topics.startswith("!") else subscription(*filter(None, topics.split("+")))
        )
        made.append(m.JoinGroupRequest.JoinGroupRequestProtocol(name=name, metadata=metadata))
    return made


def _config(p: Player, **values: str) -> None:
    numbers: dict[str, Any] = {name: int(value) for name, value in values.items()}
    p.driver = Driver(ShardConfig(**numbers))


def _hold(p: Player) -> None:
    p.driver.hold = True


def _release(p: Player) -> None:
    p.driver.hold = False
    p.driver.commit()


def _pass(p: Player, ms: str) -> None:
    p.driver.elapse(int(ms))


def _join(
    p: Player, client: str, g: str = "g", v: str = "9", member: str = "", instance: str | None = None,
    session: str = "10000", rebalance: str = "60000", type: str = "consumer", protocols: str = "range:t",
    reason: str | None = None,
) -> None:  # fmt: skip
    request = m.JoinGroupRequest(
        group_id=g,
        session_timeout_ms=int(session),
        rebalance_timeout_ms=int(rebalance),
        member_id=member,
        group_instance_id=instance,
        protocol_type=type,
        protocols=_protocols(protocols),
        reason=reason,
    )
    p.driver.ask(client, "join_group", request, int(v))


def _sync(
    p: Player, client: str, g: str = "g", v: str = "5", member: str = "", instance: str | None = None,
    generation: str = "1", type: str = "consumer", protocol: str = "range", assign: str = "",
) -> None:  # fmt: skip
    assignments = [part.split(":") for part in filter(None, assign.split(","))]
    request = m.SyncGroupRequest(
        group_id=g,
        generation_id=int(generation),
        member_id=member,
        group_instance_id=instance,
        protocol_type=type or None,
        protocol_name=protocol or None,
        assignments=[
            m.SyncGroupRequest.SyncGroupRequestAssignment(member_id=member, assignment=text.encode())
            for member, text in assignments
        ],
    )
    p.driver.ask(client, "sync_group", request, int(v))


def _heartbeat(
    p: Player, client: str, g: str = "g", v: str = "4", member: str = "", instance: str | None = None,
    generation: str = "1",
) -> None:  # fmt: skip
    request = m.HeartbeatRequest(
        group_id=g, generation_id=int(generation), member_id=member, group_instance_id=instance
    )
    p.driver.ask(client, "heartbeat", request, int(v))


def _leave(p: Player, client: str, g: str = "g", v: str = "5", member: str = "", members: str = "") -> None:
    """members=id/instance,id/instance"""
    identities = []
    for part in filter(None, members.split(",")):
        member_id, _, instance = part.partition("/")
        identities.append(m.LeaveGroupRequest.MemberIdentity(member_id=member_id, group_instance_id=instance or None))
    request = m.LeaveGroupRequest(group_id=g, member_id=member, members=identities)
    p.driver.ask(client, "leave_group", request, int(v))


def _offsets(text: str) -> dict[str, list[tuple[int, int, str]]]:
    """topic/partition:offset:metadata, separated by commas."""
    found: dict[str, list[tuple[int, int, str]]] = {}
    for part in filter(None, text.split(",")):
        place, offset, *metadata = part.split(":")
        topic, _, partition = place.partition("/")
        found.setdefault(topic, []).append((int(partition), int(offset), metadata[0] if metadata else ""))
    return found


def _commit(
    p: Player, client: str, g: str = "g", v: str = "9", member: str = "", instance: str | None = None,
    generation: str = "-1", offsets: str = "t/0:5", retention: str = "-1", epoch: str = "-1",
) -> None:  # fmt: skip
    topic_class, partition_class = (
        m.OffsetCommitRequest.OffsetCommitRequestTopic,
        m.OffsetCommitRequest.OffsetCommitRequestPartition,
    )
    request = m.OffsetCommitRequest(
        group_id=g,
        generation_id_or_member_epoch=int(generation),
        member_id=member,
        group_instance_id=instance,
        retention_time_ms=int(retention),
        topics=[
            topic_class(
                name=name,
                topic_id=topic_id(name) if int(v) >= 10 else bytes(16),
                partitions=[
                    partition_class(
                        partition_index=partition,
                        committed_offset=offset,
                        committed_leader_epoch=int(epoch),
                        committed_metadata=metadata.replace("*4097", "x" * 4097) or None,
                    )
                    for partition, offset, metadata in partitions
                ],
            )
            for name, partitions in _offsets(offsets).items()
        ],
    )
    p.driver.ask(client, "offset_commit", request, int(v))


def _txn_commit(
    p: Player, client: str, g: str = "g", v: str = "5", member: str = "", generation: str = "-1",
    offsets: str = "t/0:5", producer: str = "7",
) -> None:  # fmt: skip
    request = m.TxnOffsetCommitRequest(
        transactional_id="tx",
        group_id=g,
        producer_id=int(producer),
        producer_epoch=0,
        generation_id=int(generation),
        member_id=member,
        topics=[
            m.TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(
                name=name,
                partitions=[
                    m.TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(
                        partition_index=partition, committed_offset=offset, committed_metadata=metadata
                    )
                    for partition, offset, metadata in partitions
                ],
            )
            for name, partitions in _offsets(offsets).items()
        ],
    )
    p.driver.ask(client, "txn_offset_commit", request, int(v))


def _marker(p: Player, result: str, producer: str = "7") -> None:
    p.driver.marker(int(producer), result == "commit")


def _fetch(
    p: Player, client: str, g: str = "g", v: str = "9", topics: str | None = None, stable: str = ""
) -> list[str]:
    """topics=name/0+1,name/0; none at all is all of them."""
    asked = None
    if topics is not None:
        asked = []
        for part in topics.split(","):
            name, _, partitions = part.partition("/")
            asked.append(
                m.OffsetFetchRequest.OffsetFetchRequestTopics(
                    name=name,
                    topic_id=topic_id(name) if int(v) >= 10 else bytes(16),
                    partition_indexes=[int(x) for x in partitions.split("+")],
                )
            )
    group = m.OffsetFetchRequest.OffsetFetchRequestGroup(group_id=g, topics=asked)
    return [f"{client} <- {show(p.driver.shard.fetch_offsets(group, bool(stable), int(v)))}"]


def _delete_offsets(p: Player, client: str, g: str = "g", offsets: str = "t/0:0") -> None:
    request = m.OffsetDeleteRequest(
        group_id=g,
        topics=[
            m.OffsetDeleteRequest.OffsetDeleteRequestTopic(
                name=name,
                partitions=[
                    m.OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=partition)
                    for partition, _, _ in partitions
                ],
            )
            for name, partitions in _offsets(offsets).items()
        ],
    )
    p.driver.ask(client, "offset_delete", request, 0)


def _delete_groups(p: Player, client: str, groups: str = "g") -> None:
    p.driver.run(p.driver.shard.delete_groups(groups.split(","), p.driver.now_ms), client)


def _describe(p: Player, client: str, groups: str = "g", v: str = "6") -> list[str]:
    return [f"{client} <- {show(x)}" for x in p.driver.shard.describe_groups(groups.split(","), int(v))]


def _list(p: Player, client: str, states: str = "", types: str = "") -> list[str]:
    split: Callable[[str], list[str]] = lambda text: list(filter(None, text.split(",")))  # noqa: E731
    return [f"{client} <- {show(x)}" for x in p.driver.shard.list_groups(split(states), split(types))]


def _expire(p: Player) -> list[str]:
    outcome = p.driver.shard.expire(p.driver.now_ms)
    p.driver.run(outcome)
    return ["more"] if outcome.response else []


def _topics(p: Player, *names: str) -> None:
    p.driver.run(p.driver.shard.on_metadata(image(**dict.fromkeys(names, 1)), p.driver.now_ms))


def _reload(p: Player) -> list[str]:
    """Drops the shard and loads another from the log, as a new coordinator does."""
    driver = p.driver
    refused = driver.shard.unload()
    driver.shard = driver.reload()
    driver.timers.clear()
    driver.waiting.clear()
    driver.run(driver.shard.loaded(driver.now_ms))
    return [f"{promise.waiter} is refused" for promise in refused]


def _state(p: Player, g: str = "g") -> list[str]:
    group = p.driver.shard.classic.find(g)
    if group is None:
        return ["no such classic group"]
    text = f"{group.state} generation={group.generation} leader={group.leader} protocol={group.protocol_name}"
    topics = None if group.subscribed_topics is None else sorted(group.subscribed_topics)
    return [f"{text} members={list(group.members)} pending={list(group.pending)} topics={topics}"]


COMMANDS: dict[str, Callable[..., list[str] | None]] = {
    "config": _config,
    "hold": _hold,
    "release": _release,
    "pass": _pass,
    "join": _join,
    "sync": _sync,
    "heartbeat": _heartbeat,
    "leave": _leave,
    "commit": _commit,
    "txn-commit": _txn_commit,
    "marker": _marker,
    "fetch": _fetch,
    "delete-offsets": _delete_offsets,
    "delete-groups": _delete_groups,
    "describe": _describe,
    "list": _list,
    "expire": _expire,
    "topics": _topics,
    "reload": _reload,
    "state": _state,
}


def play(text: str) -> str:
    """The transcript with the effects that its commands have now."""
    player = Player()
    lines = []
    for line in text.splitlines():
        if line.startswith("  "):
            continue
        lines.append(line)
        if line and not line.startswith("#"):
            lines.extend(f"  {effect}" for effect in player.play(line))
    return "\n".join(lines) + "\n"
