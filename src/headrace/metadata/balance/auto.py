"""What the controller moves by itself (`auto.balance`): a few replicas at a time, and nothing that moves already.

Asked again and again with the metadata as it is then, so there is no plan to lose: a new controller goes on where the
last one ended. In this order:

1. Replicas on brokers that are lost or drained go to others. So a partition gets back to its replication factor.
2. Replicas leave a broker that is full, one at a time, for one that is not.
3. With nothing of that left, and every broker there, numbers of replicas are evened out, then leaders. Of replicas that
   may move, those go that leave bytes most even.

A replica is only ever replaced by another one, never removed: the old one leaves when the new one is in sync.
"""

from collections.abc import Collection
from typing import NamedTuple

from headrace.metadata.balance.plans import Plan, Racks, Replicas, Sizes, TopicPartition, even_out
from headrace.metadata.image import Broker, Image


class Standing(NamedTuple):
    """What the controller knows of brokers besides the image."""

    lost: Collection[int]
    """Fenced for longer than it is waited for them."""
    drained: Collection[int]
    """To be emptied, and kept so."""
    full: Collection[int]
    """They give what they can, and take nothing."""
    full_lately: Collection[int] = ()
    """They take nothing: what left them would soon be back. They give nothing either, since they have room again."""


def next_moves(
    image: Image, standing: Standing, moves_max: int, sizes: Sizes | None = None
) -> dict[TopicPartition, Replicas]:
    """Where some partitions should go now, so that at most `moves_max` are being moved at a time.

    Bytes decide which replica moves and who takes it, where numbers and racks leave a choice. They are never a reason
    to move: they change all the time, and moves would follow them back and forth.
    """
    leaving = {*standing.lost, *standing.drained}
    racks = _holders(image, leaving)
    takers = [node for node in racks if node not in standing.full and node not in standing.full_lately]
    room = moves_max - len(image.reassigning)
    if not takers:
        return {}
    plan = Plan(_placement(image), racks, sizes)
    found = _refill(image, plan, leaving, takers, room)
    if not found and room > 0:
        found = _relieve(image, plan, [node for node in standing.full if node in racks], takers)
    if found or image.reassigning or not _calm(image, standing, leaving):
        return found
    return even_out(plan, moves_max)


def still_right(
    moves: dict[TopicPartition, Replicas], planned_for: Image, image: Image
) -> dict[TopicPartition, Replicas]:
    """Those of the moves whose partition is as it was, and whose brokers are all still there.

    Planning takes a moment, in which the metadata goes on. What has changed is planned anew at the next look.
    """
    return {
        at: replicas
        for at, replicas in moves.items()
        if _assigned(image, at) is not None
        and _assigned(image, at) == _assigned(planned_for, at)
        and all(_is_as_able(planned_for, image, node) for node in replicas)
    }


def _assigned(image: Image, at: TopicPartition) -> tuple[object, ...] | None:
    topic = image.topic_named(at[0])
    partition = topic.partitions.get(at[1]) if topic is not None else None
    if topic is None or partition is None:
        return None
    return topic.id, tuple(partition.replicas), tuple(partition.adding), tuple(partition.removing)


def _is_as_able(before: Image, now: Image, node: int) -> bool:
    old, new = before.brokers.get(node), now.brokers.get(node)
    return new is not None and (new.active or (old is not None and not old.active))


def _holders(image: Image, leaving: Collection[int]) -> Racks:
    return {n: broker.rack for n, broker in sorted(image.brokers.items()) if broker.active and n not in leaving}


def _placement(image: Image) -> dict[TopicPartition, Replicas]:
    """Where partitions are or, if they are being moved, will be."""
    return {
        (topic.name, number): tuple(node for node in partition.replicas if node not in partition.removing)
        for topic in image.topics.values()
        for number, partition in topic.partitions.items()
    }


def _calm(image: Image, standing: Standing, leaving: Collection[int]) -> bool:
    """Whether nobody is expected back. A broker that restarts would look like one that holds too much."""
    brokers: list[Broker] = [broker for broker in image.brokers.values() if broker.id not in leaving]
    return not standing.full and not standing.full_lately and all(broker.active for broker in brokers)


def _refill(
    image: Image, plan: Plan, leaving: Collection[int], takers: Collection[int], room: int
) -> dict[TopicPartition, Replicas]:
    """Every replica on a broker that leaves gets another broker. A move that waits for such a broker is redirected."""
    affected = sorted({at for node in leaving for at in plan.held.get(node, ())})
    found: dict[TopicPartition, Replicas] = {}
    for at in affected:
        topic = image.topic_named(at[0])
        moving = topic is not None and topic.partitions[at[1]].reassigning
        if len(found) >= room and not moving:
            continue
        replicas = plan.replicas[at]
        for node in replicas:
            others = tuple(n for n in plan.replicas[at] if n != node)
            if node in leaving and any(taker not in others for taker in takers):
                new = plan.choose(at, others, takers)
                plan.set(at, tuple(new if n == node else n for n in plan.replicas[at]))
        if plan.replicas[at] != replicas:
            found[at] = plan.replicas[at]
    return found


def _relieve(
    image: Image, plan: Plan, full: Collection[int], takers: Collection[int]
) -> dict[TopicPartition, Replicas]:
    """One replica away from each full broker; the next one when that has been done and did not help."""
    found: dict[TopicPartition, Replicas] = {}
    moving = {(image.topics[topic_id].name, number) for topic_id, number in image.reassigning}
    for node in full:
        if any(node in image.topics[topic_id].partitions[n].removing for topic_id, n in image.reassigning):
            continue  # one is on its way
        for at in plan.held[node]:
            others = tuple(n for n in plan.replicas[at] if n != node)
            free = [taker for taker in takers if taker not in others]
            if at not in moving and at not in found and free:
                new = plan.choose(at, others, free)
                found[at] = tuple(new if n == node else n for n in plan.replicas[at])
                plan.set(at, found[at])
                break
    return found
