"""Whatever clients send and whenever timers fire, a shard loaded from the log equals the one that wrote it."""

from typing import Any

from hypothesis import HealthCheck, given, settings, strategies as st

from headrace.coordinator.classic_group import ClassicGroup, State
from headrace.coordinator.outcome import Promise
from headrace.coordinator.shard import GroupShard
from headrace.coordinator.shard_state import ShardConfig
from tests.unit.coordinator.driver import COMMANDS, Driver, Player, durable

GROUPS = st.sampled_from(["g", "g", "g", "g", "h"])
CLIENTS = st.sampled_from(["a", "b", "c"])
PROTOCOLS = st.sampled_from(
    [
        "range:t",
        "range:t+u",
        "roundrobin:t,range:u",
        "range:u,roundrobin:t",
        "range:t",
        "range:!",
        "range:!0001ffffffff",
        "",
    ]
)
OFFSETS = st.sampled_from(["t/0:1", "t/0:2,t/1:3:note", "u/0:4", "u/1:5:*4097,t/0:9"])
INSTANCES = st.sampled_from([None, "i1", "i2"])


@st.composite
def steps(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """A command of the transcripts; `member` and `generation` are resolved against the group when it runs."""
    verb = draw(
        st.sampled_from(
            ["join"] * 8 + ["sync"] * 4 + ["heartbeat", "leave", "commit", "commit", "txn-commit", "marker"]
            + ["pass"] * 2 + ["settle"] * 8 + ["expire", "delete-groups", "delete-offsets", "topics", "hold", "release",
            "reload"]
        )
    )  # fmt: skip
    arguments: dict[str, Any] = {}
    if verb in ("join", "sync", "heartbeat", "leave", "commit", "txn-commit"):
        arguments |= {"client": draw(CLIENTS), "g": draw(GROUPS), "pick": draw(st.integers(0, 3))}
    if verb == "join":
        arguments |= {
            "protocols": draw(PROTOCOLS),
            "v": draw(st.sampled_from(["0", "3", "5", "9"])),
            "type": draw(st.sampled_from(["consumer"] * 20 + ["connect", ""])),
            "instance": draw(INSTANCES),
            "session": draw(st.sampled_from(["6000", "30000", "300000"])),
            "rebalance": draw(st.sampled_from(["4000", "60000"])),
        }
    elif verb in ("commit", "txn-commit", "delete-offsets"):
        arguments["offsets"] = draw(OFFSETS)
        if verb == "commit":
            arguments["retention"] = draw(st.sampled_from(["-1", "-1", "20000"]))
        elif verb == "txn-commit":
            arguments["producer"] = draw(st.sampled_from(["7", "8"]))
    elif verb == "marker":
        arguments |= {
            "result": draw(st.sampled_from(["commit", "abort"])),
            "producer": draw(st.sampled_from(["7", "8"])),
        }
    elif verb == "pass":
        arguments["ms"] = draw(st.sampled_from(["10", "100", "1000", "3000", "3000", "5999", "61000"]))
    elif verb == "topics":
        arguments["names"] = draw(st.sets(st.sampled_from(["t", "u"])))
    elif verb in ("delete-groups", "settle"):
        arguments["groups"] = draw(GROUPS)
        if verb == "settle":
            arguments["until"] = draw(st.sampled_from(["joined", "followers wait", "stable", "stable"]))
    return verb, arguments


def resolve(driver: Driver, verb: str, arguments: dict[str, Any]) -> None:
    """Mostly speak as a member of the group, with its generation; sometimes as nobody."""
    pick = arguments.pop("pick")
    group = driver.shard.classic.find(arguments["g"])
    ids = [] if group is None else [*group.members, *group.pending]
    member = ids[pick % len(ids)] if ids and pick < 3 else ""
    known = None if group is None else group.members.get(member)
    if verb == "leave":
        arguments["members"] = f"{member}/{known.instance_id or '' if known else ''}"
        return
    arguments["member"] = member
    if known is not None and verb != "txn-commit":
        arguments["instance"] = known.instance_id
    if verb != "join" and group is not None:
        arguments["generation"] = str(group.generation if pick < 3 else -1)
        if verb == "sync":
            arguments |= {"type": group.protocol_type or "x", "protocol": group.protocol_name or "x"}
            arguments["assign"] = ",".join(f"{x}:part of {x}" for x in list(group.members)[:2])


def settle(player: Player, group_id: str, until: str) -> None:
    """Everyone does what a good client does, so that other steps meet a group in all of its states."""
    for verb in ("join",) if until == "joined" else ("join", "sync"):
        group = player.driver.shard.classic.find(group_id)
        if group is None:
            continue
        for member in list(group.members.values()):
            if verb == "sync" and until == "followers wait" and group.leader == member.member_id:
                continue
            known: dict[str, Any] = {"g": group_id, "member": member.member_id, "instance": member.instance_id}
            if verb == "join":
                text = ",".join(f"{name}:!{metadata.hex()}" for name, metadata in member.protocols)
                known |= {"protocols": text, "type": group.protocol_type, "v": "9"}
            else:
                known |= {"generation": str(group.generation), "assign": f"{member.member_id}:all"}
                known |= {"type": group.protocol_type or "x", "protocol": group.protocol_name or "x"}
            COMMANDS[verb](player, member.member_id, **known)
        if verb == "join":
            player.driver.elapse(6000)


def run(player: Player, verb: str, arguments: dict[str, Any]) -> None:
    arguments = dict(arguments)
    if verb == "settle":
        settle(player, arguments["groups"], arguments["until"])
        return
    if "pick" in arguments:
        resolve(player.driver, verb, arguments)
    if verb == "topics":
        COMMANDS[verb](player, *arguments["names"])
    elif verb in ("delete-groups", "delete-offsets"):
        COMMANDS[verb](player, "x", **arguments)
    else:
        COMMANDS[verb](player, **arguments)


def check_live(shard: GroupShard, waiting: dict[int, str]) -> None:
    """What must hold at any moment."""
    held: set[int] = set()
    for group in shard.state.groups.live.values():
        assert isinstance(group, ClassicGroup)
        members = group.members.values()
        assert group.awaiting_join_count == sum(x.awaiting_join is not None for x in members)
        assert group.static_members == {x.instance_id: x.member_id for x in members if x.instance_id is not None}
        # As in Kafka, a static member's old id may stay there when it restarts before its SyncGroup.
        assert all(x in group.members or x.startswith("i") for x in group.pending_sync)
        assert not group.pending.keys() & group.members.keys()
        assert (group.leader in group.members) == bool(members)
        support: dict[str, int] = {}
        for member in members:
            for name, _ in member.protocols:
                support[name] = support.get(name, 0) + 1
            for promise in (member.awaiting_join, member.awaiting_sync):
                if isinstance(promise, Promise):
                    held.add(id(promise))
                    assert promise.response is None
            assert (member.awaiting_join is None) or group.state is State.PREPARING
            assert (member.awaiting_sync is None) or group.state is State.COMPLETING
        assert group.support == support
        if group.state in (State.COMPLETING, State.STABLE):
            assert group.members and group.protocol_name is not None
        if group.state is State.EMPTY:
            assert not group.members
    # Everyone who waits is known to some group: nobody waits for ever.
    assert held == set(waiting)


def check_replayed(driver: Driver) -> None:
    replayed = driver.reload()
    assert durable(replayed) == durable(driver.shard)
    for group_id, group in driver.shard.state.groups.live.items():
        assert isinstance(group, ClassicGroup)
        twin = replayed.classic.find(group_id)
        assert twin is not None
        if group.state not in (State.STABLE, State.EMPTY) or group.written is None:
            continue
        assert (twin.state, twin.generation, twin.leader) == (group.state, group.generation, group.leader)
        assert (twin.protocol_type, twin.protocol_name) == (group.protocol_type, group.protocol_name)
        assert twin.subscribed_topics == group.subscribed_topics
        if group.state is State.EMPTY:
            assert twin.state_timestamp_ms == group.state_timestamp_ms
        assert twin.members.keys() == group.members.keys()
        for member_id, member in group.members.items():
            other = twin.members[member_id]
            assert (other.assignment, other.instance_id) == (member.assignment, member.instance_id)
            assert other.metadata(twin.protocol_name) == member.metadata(group.protocol_name)
            assert other.session_timeout_ms == member.session_timeout_ms
            assert other.rebalance_timeout_ms == member.rebalance_timeout_ms


def check_committed(driver: Driver) -> None:
    """A shard that had seen no more than the high watermark answers reads alike."""
    seen = Driver(driver.config)
    seen.log = driver.log[: driver.high_watermark]
    seen.high_watermark = driver.high_watermark
    replayed = seen.reload()
    for group_id in ("g", "h"):
        assert sorted(replayed.offsets.items(group_id, committed=True)) == sorted(
            driver.shard.offsets.items(group_id, committed=True)
        )


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(steps(), min_size=30, max_size=90), st.sampled_from([2, 2**31 - 1]))
def test_live_equals_replayed(script: list[tuple[str, dict[str, Any]]], size_max: int) -> None:
    player = Player()
    player.driver = Driver(ShardConfig(group_max_size=size_max, offsets_retention_ms=100_000))
    for verb, arguments in script:
        run(player, verb, arguments)
        check_live(player.driver.shard, player.driver.waiting)
        check_committed(player.driver)
    check_replayed(player.driver)
