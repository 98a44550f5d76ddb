"""Commands of transcripts for consumer groups, beside those of driver.py."""

import msgspec

from headrace.protocol import messages as m
from tests.unit.coordinator.driver import COMMANDS, Player, show
from tests.unit.coordinator.sessions import make_image

IDS = {name: number for number, name in enumerate("tuvw", 1)}


def _cluster(p: Player, **topics: str) -> None:
    """Topics with so many partitions: t=3 u=2."""
    counts = {name: (IDS[name], int(count)) for name, count in topics.items()}
    made = make_image(p.driver.shard.state.image.offset + 1, counts)
    p.driver.run(p.driver.shard.on_metadata(made, p.driver.now_ms))


def _configure(p: Player, **values: str) -> None:
    config = p.driver.config
    typed = {name: type(getattr(config, name))(value) for name, value in values.items()}
    p.driver.__init__(msgspec.structs.replace(config, **typed))  # type: ignore[misc]


def _topics(text: str) -> list[m.ConsumerGroupHeartbeatRequest.TopicPartitions]:
    """t/0+1,u/2"""
    made = []
    for part in filter(None, text.split(",")):
        name, _, partitions = part.partition("/")
        made.append(
            m.ConsumerGroupHeartbeatRequest.TopicPartitions(
                topic_id=IDS[name].to_bytes(16, "big"), partitions=[int(x) for x in partitions.split("+")]
            )
        )
    return made


def _beat(
    p: Player, member: str, epoch: str = "0", g: str = "g", v: str = "1", topics: str | None = None,
    regex: str | None = None, owns: str | None = None, instance: str | None = None, rack: str | None = None,
    assignor: str | None = None, rebalance: str | None = None,
) -> None:  # fmt: skip
    """A member that joins says what it must unless told otherwise."""
    joins = epoch == "0"
    request = m.ConsumerGroupHeartbeatRequest(
        group_id=g,
        member_id="" if member == "-" else member,
        member_epoch=int(epoch),
        instance_id=instance,
        rack_id=rack,
        rebalance_timeout_ms=int(rebalance or ("60000" if joins else "-1")),
        subscribed_topic_names=None if topics is None else list(filter(None, topics.split(","))),
        subscribed_topic_regex=regex,
        server_assignor=assignor,
        topic_partitions=_topics(owns or "") if owns is not None or joins else None,
    )
    p.driver.ask(member, "consumer_group_heartbeat", request, int(v))


def _describe(p: Player, client: str, groups: str = "g") -> list[str]:
    return [f"{client} <- {show(group)}" for group in p.driver.shard.consumer_group_describe(groups.split(","))]


def _notes(p: Player) -> list[str]:
    said = [f"note {text}" for text in p.driver.notes]
    p.driver.notes.clear()
    return said


COMMANDS.update(
    {
        "cluster": _cluster,
        "configure": _configure,
        "beat": _beat,
        "describe-consumer": _describe,
        "notes": _notes,
    }
)
