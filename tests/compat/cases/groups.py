"""Groups: finding their coordinator, members of both protocols, offsets, and looking at them."""

from typing import Any

from tests.compat.cases import Talk, case

NOT_READY = (14, 15, 16)
COMMIT, FETCH, JOIN, SYNC, BEAT = "OffsetCommit", "OffsetFetch", "JoinGroup", "SyncGroup", "Heartbeat"
MEMBER_ID_REQUIRED = 79


def group(t: Talk, label: str = "g") -> str:
    """The name of a group of this talk's own whose coordinator is ready."""
    name = t.name(label)

    def is_ready() -> bool:
        found = t.call("FindCoordinator", coordinator_keys=[name]).coordinators[0]
        return found.error_code == 0 and t.call("DescribeGroups", groups=[name]).groups[0].error_code not in NOT_READY

    t.until(is_ready)
    return name


def protocols(*names: str, data: bytes = b"\0\1") -> list[dict[str, Any]]:
    return [{"name": name, "metadata": data} for name in names]


def joining(name: str, **more: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "group_id": name, "session_timeout_ms": 30_000, "rebalance_timeout_ms": 30_000, "member_id": "",
        "protocol_type": "consumer", "protocols": protocols("range"), **more,
    }  # fmt: skip
    return fields


def member(t: Talk, name: str, **more: Any) -> Any:
    """Set-up: joins as the only member and syncs; returns the answer to the join."""
    first = t.call(JOIN, 5, **joining(name, **more))
    answer = first
    if first.error_code == MEMBER_ID_REQUIRED:
        answer = t.call(JOIN, 5, **joining(name, **more | {"member_id": first.member_id}))
    assert answer.error_code == 0, answer
    t.names[answer.member_id] = "$member"
    assignment = [{"member_id": answer.member_id, "assignment": b"mine"}]
    synced = t.call(
        SYNC, 3, group_id=name, generation_id=answer.generation_id, member_id=answer.member_id, assignments=assignment
    )
    assert synced.error_code == 0, synced
    return answer


def offsets(topic: str, *rows: tuple[int, int, str], **more: Any) -> list[dict[str, Any]]:
    parts = [{"partition_index": p, "committed_offset": o, "committed_metadata": m} for p, o, m in rows]
    return [{"name": topic, "partitions": parts, **more}]


def of_topic(t: Talk, topic: str, *rows: tuple[int, int, str]) -> list[dict[str, Any]]:
    """The same in any version: from 10 on a topic goes by its id."""
    if t.version >= 10:
        known = {text: topic_id for topic_id, text in t.ids.items()}
        return offsets("", *rows, topic_id=known.get(f"<id of {t.names.get(topic, topic)}>", b"\1" * 16))
    return offsets(topic, *rows)


# FindCoordinator


@case("FindCoordinator")
def of_a_group(t: Talk) -> None:
    name = group(t)
    t.ask(key=name) if t.version < 4 else t.ask(coordinator_keys=[name])


@case("FindCoordinator", versions=[1, 2, 3, 4, 5, 6])
def of_a_type_that_does_not_exist(t: Talk) -> None:
    group(t)
    t.ask(key="x", key_type=7) if t.version < 4 else t.ask(coordinator_keys=["x"], key_type=7)


@case("FindCoordinator", versions=[4, 5, 6])
def of_nothing_and_of_the_empty_group(t: Talk) -> None:
    group(t)
    t.ask(coordinator_keys=[])
    t.ask(coordinator_keys=[""])


# JoinGroup


@case("JoinGroup")
def refused_at_the_door(t: Talk) -> None:
    name = group(t)
    t.ask(**joining(""))
    t.ask(**joining(name, session_timeout_ms=1))
    t.ask(**joining(name, session_timeout_ms=2**31 - 1))
    t.ask(**joining(name, member_id="nobody"))
    t.note("no protocol")
    t.ask(**joining(name, protocols=[]))
    t.ask(**joining(name, protocol_type=""))


@case("JoinGroup")
def alone(t: Talk) -> None:
    name = group(t)
    answer = t._exchange(JOIN, None, joining(name))
    t.names[answer.member_id] = "$member"
    t.record(JOIN, answer)
    if answer.error_code == MEMBER_ID_REQUIRED:
        answer = t.ask(**joining(name, member_id=answer.member_id))
    t.note("again, then with other protocols")
    t.ask(**joining(name, member_id=answer.member_id))
    t.ask(**joining(name, member_id=answer.member_id, protocols=protocols("other", "range")))
    t.note("as someone else")
    t.ask(**joining(name, protocol_type="connect"))
    t.ask(**joining(name, protocols=protocols("unheard-of")))
    t.ask(**joining(name, member_id="nobody"))


@case("JoinGroup", versions=[5, 6, 7, 8, 9])
def static_members(t: Talk) -> None:
    name = group(t)
    answer = t._exchange(JOIN, None, joining(name, group_instance_id="one"))
    t.names[answer.member_id] = "$member"
    t.record(JOIN, answer)
    t.note("come back")
    answer = t._exchange(JOIN, None, joining(name, group_instance_id="one"))
    t.names[answer.member_id] = "$again"
    t.record(JOIN, answer)
    t.note("with the id it had before, or another")
    t.ask(
        **joining(
            name, group_instance_id="one", member_id=next(iter(m for m, text in t.names.items() if text == "$member"))
        )
    )
    t.ask(**joining(name, group_instance_id="two", member_id="nobody"))


# SyncGroup, Heartbeat, LeaveGroup


@case("SyncGroup")
def sync(t: Talk) -> None:
    name = group(t)
    more: dict[str, Any] = {"protocol_type": "consumer", "protocol_name": "range"} if t.version >= 5 else {}
    t.ask(group_id="", generation_id=1, member_id="x", **more)
    t.ask(group_id=name, generation_id=1, member_id="nobody", **more)
    joined = member(t, name)
    mine = {"group_id": name, "member_id": joined.member_id}
    t.ask(**mine, generation_id=joined.generation_id, **more)
    t.ask(**mine, generation_id=joined.generation_id + 1, **more)
    t.ask(group_id=name, member_id="nobody", generation_id=joined.generation_id, **more)
    if t.version >= 5:
        t.ask(**mine, generation_id=joined.generation_id)
        t.ask(**mine, generation_id=joined.generation_id, protocol_type="connect", protocol_name="range")
        t.ask(**mine, generation_id=joined.generation_id, protocol_type="consumer", protocol_name="other")
    if t.version >= 3:
        t.ask(**mine, generation_id=joined.generation_id, group_instance_id="stranger", **more)


@case("Heartbeat")
def beats(t: Talk) -> None:
    name = group(t)
    t.ask(group_id="", generation_id=1, member_id="x")
    t.ask(group_id=name, generation_id=1, member_id="nobody")
    joined = member(t, name)
    mine = {"group_id": name, "member_id": joined.member_id}
    t.ask(**mine, generation_id=joined.generation_id)
    t.ask(**mine, generation_id=joined.generation_id - 1)
    t.ask(**mine, generation_id=joined.generation_id + 1)
    t.ask(group_id=name, member_id="", generation_id=joined.generation_id)
    if t.version >= 3:
        t.ask(**mine, generation_id=joined.generation_id, group_instance_id="stranger")


@case("LeaveGroup")
def leaving(t: Talk) -> None:
    name = group(t)

    def leave(group_id: str, member_id: str, instance: str | None = None) -> None:
        if t.version < 3:
            t.ask(group_id=group_id, member_id=member_id)
        else:
            t.ask(group_id=group_id, members=[{"member_id": member_id, "group_instance_id": instance}])

    leave("", "x")
    leave(name, "nobody")
    joined = member(t, name)
    leave(name, "nobody")
    if t.version >= 3:
        leave(name, "", "stranger")
        leave(name, joined.member_id, "stranger")
    leave(name, joined.member_id)
    leave(name, joined.member_id)


# Offsets


@case("OffsetCommit")
def by_a_simple_consumer(t: Talk) -> None:
    name, topic = group(t), t.topic(partitions=2)
    base: dict[str, Any] = {"group_id": name, "generation_id_or_member_epoch": -1, "member_id": ""}
    t.ask(**base, topics=of_topic(t, topic, (0, 5, "note"), (1, 6, "")))
    t.ask(**base, topics=of_topic(t, topic, (0, -1, "")))
    t.ask(**base, topics=of_topic(t, topic, (7, 5, ""), (1, 6, ""), (-1, 2, "")))
    t.ask(**base, topics=of_topic(t, t.name("nowhere"), (0, 5, "")))
    t.ask(**base, topics=of_topic(t, topic, (0, 7, "x" * 4096)))
    t.ask(**base, topics=of_topic(t, topic, (0, 8, "x" * 4097), (1, 9, "")))
    t.ask(**base, topics=[])
    t.ask(**base | {"group_id": ""}, topics=of_topic(t, topic, (0, 5, "")))
    t.note("as a member of a group that has none")
    t.ask(**base | {"generation_id_or_member_epoch": 3}, topics=of_topic(t, topic, (0, 5, "")))
    t.ask(**base | {"member_id": "nobody"}, topics=of_topic(t, topic, (0, 5, "")))


@case("OffsetCommit")
def by_members(t: Talk) -> None:
    name, topic = group(t), t.topic()
    joined = member(t, name)
    base: dict[str, Any] = {
        "group_id": name, "generation_id_or_member_epoch": joined.generation_id, "member_id": joined.member_id,
        "topics": of_topic(t, topic, (0, 5, "")),
    }  # fmt: skip
    t.ask(**base)
    t.ask(**base | {"generation_id_or_member_epoch": joined.generation_id + 1})
    t.ask(**base | {"generation_id_or_member_epoch": -1})
    t.ask(**base | {"member_id": "nobody"})
    t.ask(**base | {"member_id": "", "generation_id_or_member_epoch": -1})
    if t.version >= 7:
        t.ask(**base | {"group_instance_id": "stranger"})


@case("OffsetCommit")
def of_topics_named_twice_and_of_no_partitions(t: Talk) -> None:
    name, topic, nowhere = group(t), t.topic(partitions=2), t.name("nowhere")
    base: dict[str, Any] = {"group_id": name, "generation_id_or_member_epoch": -1, "member_id": ""}
    t.ask(**base, topics=of_topic(t, topic))
    t.ask(**base, topics=of_topic(t, nowhere))
    t.ask(**base, topics=of_topic(t, nowhere) + of_topic(t, nowhere, (0, 1, ""), (1, 1, "")))
    t.ask(**base, topics=of_topic(t, nowhere, (0, 1, "")) + of_topic(t, topic) + of_topic(t, nowhere))
    t.note("some of them there")
    t.ask(**base, topics=of_topic(t, topic, (0, 5, ""), (-1, 5, "")) + of_topic(t, topic, (-1, 6, ""), (7, 6, "")))
    t.ask(**base, topics=of_topic(t, topic, (0, 5, "")) + of_topic(t, topic) + of_topic(t, nowhere, (3, 1, "")))


def fetching(t: Talk, name: str, topics: list[tuple[str, list[int]]] | None, **more: Any) -> None:
    if t.version < 8:
        t.ask(
            group_id=name,
            topics=None if topics is None else [{"name": n, "partition_indexes": p} for n, p in topics],
            **more,
        )
        return
    known = {text: topic_id for topic_id, text in t.ids.items()}

    def which(topic: str) -> dict[str, Any]:
        if t.version < 10:
            return {"name": topic}
        return {"topic_id": known.get(f"<id of {t.names.get(topic, topic)}>", b"\1" * 16)}

    rows = None if topics is None else [which(n) | {"partition_indexes": p} for n, p in topics]
    t.ask(groups=[{"group_id": name, "topics": rows}], **more)


@case("OffsetFetch")
def of_some_and_of_all(t: Talk) -> None:
    name, topic = group(t), t.topic(partitions=3)
    t.note("before anything is committed")
    fetching(t, name, [(topic, [0])])
    if t.version >= 2:
        fetching(t, name, None)
    rows = offsets(topic, (0, 5, "note"), (1, 6, ""))
    t.call(COMMIT, 9, group_id=name, generation_id_or_member_epoch=-1, topics=rows)
    fetching(t, name, [(topic, [0, 1, 2, 9, 0])])
    fetching(t, name, [(t.name("nowhere"), [0]), (topic, [1])])
    fetching(t, name, [])
    fetching(t, "", [(topic, [0])])
    if t.version >= 2:
        fetching(t, name, None)
    if t.version >= 7:
        fetching(t, name, [(topic, [0])], require_stable=True)
    if t.version >= 9:
        t.note("as a member")
        rows = [{"name": topic, "topic_id": t.id_of() if t.version >= 10 else bytes(16), "partition_indexes": [0]}]
        for who, epoch in (("nobody", 1), ("nobody", -1), (None, 5)):
            t.ask(groups=[{"group_id": name, "member_id": who, "member_epoch": epoch, "topics": rows}])


@case("OffsetFetch", versions=[8, 9])
def of_several_groups(t: Talk) -> None:
    first, second, topic = group(t), group(t, "h"), t.topic()
    for name, offset in ((first, 3), (second, 4)):
        t.call(COMMIT, 9, group_id=name, generation_id_or_member_epoch=-1, topics=offsets(topic, (0, offset, "")))
    rows = [{"name": topic, "partition_indexes": [0]}]
    t.ask(groups=[{"group_id": name, "topics": rows} for name in (first, second, t.name("none"))])
    t.ask(groups=[])


@case("OffsetDelete")
def forgetting(t: Talk) -> None:
    name, topic = group(t), t.topic(partitions=2)
    asked = [{"name": topic, "partitions": [{"partition_index": 0}, {"partition_index": 9}]}]
    t.ask(group_id=name, topics=asked)
    t.ask(group_id="", topics=asked)
    t.call(COMMIT, 9, group_id=name, generation_id_or_member_epoch=-1, topics=offsets(topic, (0, 5, ""), (1, 6, "")))
    t.ask(group_id=name, topics=asked)
    t.ask(group_id=name, topics=asked)
    t.ask(group_id=name, topics=[{"name": t.name("nowhere"), "partitions": [{"partition_index": 0}]}])
    t.ask(FETCH, 5, group_id=name, topics=None)
    t.note("of a group with members")
    living = group(t, "living")
    member(t, living)
    t.ask(group_id=living, topics=asked)


@case("OffsetDelete")
def forgetting_topics_named_twice_and_no_partitions(t: Talk) -> None:
    name, topic, nowhere = group(t), t.topic(partitions=2), t.name("nowhere")
    t.call(COMMIT, 9, group_id=name, generation_id_or_member_epoch=-1, topics=offsets(topic, (0, 5, ""), (1, 6, "")))
    none: list[dict[str, Any]] = []
    some = [{"partition_index": 0}, {"partition_index": 9}]
    for rows in (
        [(topic, none)],
        [(nowhere, none)],
        [(nowhere, none), (topic, some)],
        [(nowhere, some), (topic, none)],
    ):
        t.ask(group_id=name, topics=[{"name": named, "partitions": partitions} for named, partitions in rows])


# Looking and deleting


@case("DescribeGroups")
def described(t: Talk) -> None:
    name, empty = group(t), group(t, "empty")
    t.ask(groups=[name])  # the nameless group is one that all cases share
    member(t, name)
    topic = t.topic()
    t.call(COMMIT, 9, group_id=empty, generation_id_or_member_epoch=-1, topics=offsets(topic, (0, 5, "")))
    t.ask(groups=[name, empty])
    t.ask(groups=[])
    if t.version >= 3:
        t.ask(groups=[name], include_authorized_operations=True)


@case("ListGroups")
def listed(t: Talk) -> None:
    name, empty, topic = group(t), group(t, "empty"), t.topic()
    member(t, name)
    t.call(COMMIT, 9, group_id=empty, generation_id_or_member_epoch=-1, topics=offsets(topic, (0, 5, "")))
    t.ask(mine="groups")
    if t.version >= 4:
        for states in (["Stable"], ["empty"], ["Stable", "Empty"], ["Nonsense"]):
            t.ask(mine="groups", states_filter=states)
    if t.version >= 5:
        for types in (["classic"], ["Consumer"], ["nonsense"]):
            t.ask(mine="groups", types_filter=types)


@case("DeleteGroups")
def deleted(t: Talk) -> None:
    name, empty, topic = group(t), group(t, "empty"), t.topic()
    member(t, name)
    t.call(COMMIT, 9, group_id=empty, generation_id_or_member_epoch=-1, topics=offsets(topic, (0, 5, "")))
    t.ask(groups_names=[name, empty, t.name("none")])
    t.ask(groups_names=[empty])
    t.ask(groups_names=[])
    t.ask(FETCH, 5, group_id=empty, topics=None)


# The consumer protocol


def beat(t: Talk, name: str, **more: Any) -> Any:
    fields: dict[str, Any] = {
        "group_id": name, "member_id": "member-one", "member_epoch": 0, "rebalance_timeout_ms": 30_000,
        "subscribed_topic_names": [], "topic_partitions": [], **more,
    }  # fmt: skip
    return fields


@case("ConsumerGroupHeartbeat")
def refused_heartbeats(t: Talk) -> None:
    name, topic = group(t), t.topic()
    t.ask(**beat(t, ""))
    t.ask(**beat(t, name, member_epoch=-3))
    t.ask(**beat(t, name, member_epoch=1))
    t.ask(**beat(t, name, rebalance_timeout_ms=-1))
    t.ask(**beat(t, name, subscribed_topic_names=None))
    t.ask(**beat(t, name, topic_partitions=None))
    t.ask(**beat(t, name, topic_partitions=[{"topic_id": t.id_of(), "partitions": [0]}]))
    t.ask(**beat(t, name, subscribed_topic_names=[topic], server_assignor="nonsense"))
    t.ask(**beat(t, name, instance_id=""))
    t.ask(**beat(t, name, rack_id=""))
    t.ask(**beat(t, name, member_epoch=-1, subscribed_topic_names=None, topic_partitions=None, rebalance_timeout_ms=-1))
    t.ask(**beat(t, name, member_epoch=-2, subscribed_topic_names=None, topic_partitions=None, rebalance_timeout_ms=-1))
    if t.version >= 1:
        t.ask(**beat(t, name, member_id=""))
        t.ask(**beat(t, name, subscribed_topic_names=None, subscribed_topic_regex="(unclosed"))


@case("ConsumerGroupHeartbeat")
def a_life(t: Talk) -> None:
    name, topic = group(t), t.topic(partitions=2)
    t.settle()  # the coordinator, too, follows the controller a moment later
    answer = t.ask(**beat(t, name, subscribed_topic_names=[topic], topic_partitions=[]))
    epoch = answer.member_epoch
    owned = [{"topic_id": t.id_of(), "partitions": [0, 1]}]
    quiet = {"rebalance_timeout_ms": -1, "subscribed_topic_names": None, "topic_partitions": None}
    t.ask(**beat(t, name, member_epoch=epoch, **quiet | {"topic_partitions": owned}))
    t.ask(**beat(t, name, member_epoch=epoch, **quiet))
    t.note("fenced, ahead, unknown")
    t.ask(**beat(t, name, member_epoch=epoch + 5, **quiet))
    t.ask(**beat(t, name, member_epoch=epoch, member_id="member-two", **quiet))
    t.note("seen by the classic protocol, and committing")
    t.ask("DescribeGroups", 6, groups=[name])
    t.ask(BEAT, 4, group_id=name, generation_id=epoch, member_id="member-one")
    rows = offsets(topic, (0, 5, ""))
    t.ask(COMMIT, 9, group_id=name, generation_id_or_member_epoch=epoch, member_id="member-one", topics=rows)
    t.ask(COMMIT, 9, group_id=name, generation_id_or_member_epoch=epoch + 1, member_id="member-one", topics=rows)
    t.ask(COMMIT, 9, group_id=name, generation_id_or_member_epoch=-1, member_id="", topics=rows)
    t.ask(COMMIT, 8, group_id=name, generation_id_or_member_epoch=epoch, member_id="member-one", topics=rows)
    who = {"group_id": name, "topics": [{"name": topic, "partition_indexes": [0]}]}
    t.ask(FETCH, 9, groups=[who | {"member_id": "member-one", "member_epoch": epoch}])
    t.ask(FETCH, 9, groups=[who | {"member_id": "member-one", "member_epoch": epoch + 1}])
    t.ask(FETCH, 9, groups=[who | {"member_id": "member-two", "member_epoch": epoch}])
    t.note("leaving")
    t.ask(**beat(t, name, member_epoch=-1, **quiet))
    t.ask(**beat(t, name, member_epoch=-1, **quiet))
    t.ask("DeleteGroups", 2, groups_names=[name])


@case("ConsumerGroupDescribe")
def described_consumers(t: Talk) -> None:
    name, classic, topic = group(t), group(t, "classic"), t.topic()
    member(t, classic)
    t.settle()
    t.call("ConsumerGroupHeartbeat", 0, **beat(t, name, subscribed_topic_names=[topic], instance_id="i", rack_id="r"))
    t.ask(group_ids=[name, classic, t.name("none"), ""])
    t.ask(group_ids=[])
    t.ask(group_ids=[name], include_authorized_operations=True)
