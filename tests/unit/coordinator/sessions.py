"""Plays sessions that were had with Apache Kafka's coordinator to ours, and tells where the two decide differently."""

from typing import Any

import msgspec

from headrace.coordinator.records import decode
from headrace.coordinator.shard_state import ShardConfig
from headrace.metadata.image import EMPTY, Broker, Image, Partition, Topic
from headrace.metadata.persistent import PersistentMap
from headrace.protocol.api import API, ApiKey
from tests.unit.coordinator.driver import Driver

METHODS = {
    ApiKey.CONSUMER_GROUP_HEARTBEAT: "consumer_group_heartbeat",
    ApiKey.JOIN_GROUP: "join_group",
    ApiKey.SYNC_GROUP: "sync_group",
    ApiKey.HEARTBEAT: "heartbeat",
    ApiKey.LEAVE_GROUP: "leave_group",
    ApiKey.OFFSET_COMMIT: "offset_commit",
}


def make_image(offset: int, topics: dict[str, tuple[int, int]], racks: tuple[str, ...] = ()) -> Image:
    """Topics with (number of the id, partitions); every partition has a replica in each rack."""
    replicas = tuple(range(1, len(racks) + 1)) or (1,)
    partition = Partition(replicas, replicas, replicas[0], 0, 0, (bytes(16),) * len(replicas))
    made = [
        Topic(number.to_bytes(16, "big"), name, PersistentMap(dict.fromkeys(range(count), partition)))
        for name, (number, count) in topics.items()
    ]
    brokers = {
        i: Broker(i, 0, bytes(16), (), {}, rack, False, False, ()) for i, rack in enumerate(racks or (None,), start=1)
    }
    return msgspec.structs.replace(
        EMPTY,
        offset=offset,
        brokers=PersistentMap(brokers),
        topics=PersistentMap({t.id: t for t in made}),
        topic_ids=PersistentMap({t.name: t.id for t in made}),
    )


class Ours:
    """Our shard, given the same commands as Oracle.java."""

    def __init__(self, config: dict[str, str]) -> None:
        known = ShardConfig(
            consumer_assignors=tuple(config["group.consumer.assignors"].split(",")),
            consumer_assignment_interval_ms=int(config["group.consumer.assignment.interval.ms"]),
            consumer_migration_policy=config["group.consumer.migration.policy"],
            consumer_max_size=int(config["group.consumer.max.size"]),
            consumer_regex_refresh_interval_ms=int(config["group.consumer.regex.refresh.interval.ms"]),
            group_initial_rebalance_delay_ms=int(config["group.initial.rebalance.delay.ms"]),
        )
        self.driver = Driver(known)
        self.image = EMPTY
        self.requests: dict[str, tuple[ApiKey, int]] = {}

    def tell(self, command: str, answers: list[str]) -> tuple[list[tuple[bytes, bytes | None]], list[tuple[str, Any]]]:
        """Records and answers. The oracle's answers are looked at for the ids it made up, which become ours."""
        driver = self.driver
        word, *rest = command.split(" ")
        start = len(driver.log)
        if word == "image":
            self._image(rest)
        elif word == "advance":
            driver.elapse(int(rest[0]) - driver.now_ms)
        else:
            self._request(rest, answers)
        records = [(key, value) for key, value, _ in driver.log[start:] if key is not None]
        if word == "image":
            records.clear()  # offsets of deleted topics, which Kafka deletes on another occasion
        heard = list(driver.answers)
        driver.answers.clear()
        return records, heard

    def _image(self, words: list[str]) -> None:
        topics: dict[str, tuple[int, int]] = {}
        racks: tuple[str, ...] = ()
        for word in words[1:]:
            name, number, count, *rack = word.split(":")
            topics[name] = (int(number), int(count))
            racks = tuple(rack[0].split("+")) if rack else ()
        new = make_image(int(words[0]), topics, racks)
        # Kafka's images share what did not change, and so must these.
        same = {t.id: self.image.topics[t.id] for t in new.topics.values() if self._unchanged(t, new)}
        if same:
            new = msgspec.structs.replace(new, topics=new.topics.update(same))
        self.image = new
        self.driver.run(self.driver.shard.on_metadata(new, self.driver.now_ms))

    def _unchanged(self, topic: Topic, new: Image) -> bool:
        old = self.image.topics.get(topic.id)
        return old is not None and old == topic and self.image.brokers == new.brokers

    def _request(self, words: list[str], answers: list[str]) -> None:
        number, now_ms, key, version, client, data = words
        api = API[ApiKey(int(key))]
        self.requests[number] = (ApiKey(int(key)), int(version))
        request: Any = api.request.decode(bytes.fromhex(data), int(version))
        driver = self.driver
        driver.now_ms = int(now_ms)
        if ApiKey(int(key)) is ApiKey.CONSUMER_GROUP_DESCRIBE:
            response = api.response.root.cls(groups=driver.shard.consumer_group_describe(request.group_ids))
            driver.answers.append((number, response))
            return
        made_up = self._made_up_id(request, answers, client, int(version))
        driver.ids += 1
        driver.new_id = lambda: made_up or f"new-{driver.ids}"  # type: ignore[method-assign]
        context = driver.context(client, int(version))
        outcome = getattr(driver.shard, METHODS[ApiKey(int(key))])(request, context, driver.now_ms)
        driver.run(outcome, number)

    def _made_up_id(self, request: Any, answers: list[str], client: str, version: int) -> str | None:
        if getattr(request, "member_id", "x"):
            return None
        instance = getattr(request, "group_instance_id", None)
        known = None
        for line in answers:
            word, *rest = line.split(" ")
            if word == "member" and instance is not None and rest[0] == instance:
                known = rest[1]
            elif word == "response":
                key, used = self.requests[rest[0]]
                response: Any = API[key].response.decode(bytes.fromhex(rest[1]), used)
                known = getattr(response, "member_id", None) or known
        for prefix in (client, instance):
            if known is not None and prefix is not None and known.startswith(f"{prefix}-"):
                known = known[len(prefix) + 1 :]
                break
        return known


def difference(ours: Ours, command: str, lines: list[str]) -> str | None:
    """None if ours decides as Kafka did."""
    records, answers = ours.tell(command, lines)
    theirs = [line.split(" ")[1:] for line in lines if line.startswith("record ")]
    expected = [(bytes.fromhex(k), None if v == "-" else bytes.fromhex(v)) for k, v in theirs]
    if _comparable(records) != _comparable(expected):
        return f"records\n  kafka {_shown(expected)}\n  ours  {_shown(records)}"
    heard = {number: _plain(response) for number, response in answers}
    for line in lines:
        word, number, *rest = line.split(" ")
        if word == "member":
            continue
        if word == "response":
            key, version = ours.requests[number]
            want = _plain(API[key].response.decode(bytes.fromhex(rest[0]), version))
            got = heard.pop(number, None)
            if got is not None:
                key_response = next(r for n, r in answers if n == number)
                got = _plain(API[key].response.decode(API[key].response.encode(key_response, version), version))
            if got != want:
                return f"response\n  kafka {want}\n  ours  {got}"
        elif word == "error":
            got = heard.pop(number, None)
            if got is None or _error(got) != int(rest[0]):
                return f"error\n  kafka {rest[0]}\n  ours  {got}"
    return f"ours alone answers {heard}" if heard else None


def _error(plain: Any) -> int:
    """Of a whole answer, or of its first part."""
    if isinstance(plain, dict):
        if plain.get("error_code"):
            return int(plain["error_code"])
        return max((_error(value) for value in plain.values()), default=0)
    if isinstance(plain, list):
        return max(map(_error, plain), default=0)
    return 0


def _plain(value: Any) -> Any:
    """Without error messages, which are in our own words; sets in order."""
    if isinstance(value, msgspec.Struct):
        fields = {f.name: getattr(value, f.name) for f in msgspec.structs.fields(value)}
        if "assignment_epochs" in fields and fields["assignment_epochs"] is not None:
            pairs = sorted(zip(fields["partitions"], fields["assignment_epochs"], strict=True))
            fields["partitions"], fields["assignment_epochs"] = [p for p, _ in pairs], [e for _, e in pairs]
        return {
            name: _plain(field)
            for name, field in fields.items()
            if name not in ("error_message", "unknown_tags", "throttle_time_ms", "leader")
        }
    if isinstance(value, list):
        plain = [_plain(item) for item in value]
        keep = plain and isinstance(plain[0], dict) and "metadata" in plain[0] and "member_id" not in plain[0]
        return plain if keep else sorted(plain, key=repr)
    return value


def _comparable(records: list[tuple[bytes, bytes | None]]) -> tuple[list[Any], list[int]]:
    """What the records say, and the order of their kinds."""
    decoded = [decode(key, value) for key, value in records]
    said = [(r.kind, _plain(r.key_message), _plain(r.value_message)) for r in decoded if r is not None]
    return sorted(said, key=repr), [r.kind for r in decoded if r is not None]


def _shown(records: list[tuple[bytes, bytes | None]]) -> str:
    decoded = [decode(key, value) for key, value in records]
    return "".join(f"\n    {r.key_message} {r.value_message}" for r in decoded if r is not None)
