"""Where replicas should go: emptying a broker, filling a new one, another number of copies.

Pure: a placement and the brokers in, only the partitions that change out. As little is moved as gets there, replicas of
a partition stay in different racks as far as racks last, and preferred leaders are spread by reordering, which moves
no data.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

from headrace.errors import Err, KafkaError

TopicPartition = tuple[str, int]
Replicas = tuple[int, ...]
Placement = Mapping[TopicPartition, Sequence[int]]
Racks = Mapping[int, str | None]
"""The brokers that may hold replicas, with their racks."""

Sizes = Mapping[TopicPartition, int]
"""Bytes of a partition, as far as they are known."""

LEADER_PASSES = 8


def impossible(why: str) -> KafkaError:
    """No placement is as asked for."""
    return KafkaError(Err.INVALID_REPLICA_ASSIGNMENT, why)


class Plan:
    """The placement as planned so far, and how much each broker holds by it."""

    def __init__(self, placement: Placement, racks: Racks, sizes: Sizes | None = None) -> None:
        self.sizes = sizes or {}
        self.before = {at: tuple(replicas) for at, replicas in placement.items()}
        self.replicas = dict(self.before)
        self.racks = racks
        self.rack_names = {rack for rack in racks.values() if rack is not None}
        self.held: dict[int, dict[TopicPartition, None]] = {node: {} for node in racks}
        self.held_bytes: dict[int, int] = dict.fromkeys(racks, 0)
        for at, replicas in self.before.items():
            size = self.sizes.get(at, 0)
            for node in replicas:
                self.held.setdefault(node, {})[at] = None
                self.held_bytes[node] = self.held_bytes.get(node, 0) + size

    def set(self, at: TopicPartition, replicas: Replicas) -> None:
        size = self.sizes.get(at, 0)
        for node in self.replicas[at]:
            self.held[node].pop(at, None)
            self.held_bytes[node] -= size
        for node in replicas:
            self.held[node][at] = None
            self.held_bytes[node] += size
        self.replicas[at] = replicas

    def crowded(self, replicas: Iterable[int], node: int) -> bool:
        """Whether `node` shares its rack with one of `replicas`. Brokers without a rack share none."""
        rack = self.racks.get(node)
        return rack is not None and any(self.racks.get(other) == rack for other in replicas if other != node)

    def choose(self, at: TopicPartition, others: Replicas, candidates: Iterable[int]) -> int:
        """The best broker for one more replica beside `others`: another rack, then who holds fewest, then least."""
        free = [node for node in candidates if node not in others]
        if not free:
            topic, index = at
            raise impossible(
                f"{topic}-{index} has {len(others) + 1} replicas and there are not as many other brokers to hold them"
            )
        return min(
            free, key=lambda node: (self.crowded(others, node), len(self.held[node]), self.held_bytes[node], node)
        )

    def changes(self) -> dict[TopicPartition, Replicas]:
        return {at: replicas for at, replicas in sorted(self.replicas.items()) if replicas != self.before[at]}


def drain(placement: Placement, racks: Racks, leaving: Collection[int]) -> dict[TopicPartition, Replicas]:
    """Move every replica off the brokers `leaving`; each takes the place, and the lead, of the one it replaces."""
    plan = Plan(placement, racks)
    staying = [node for node in racks if node not in leaving]
    for at, replicas in sorted(plan.before.items()):
        for node in replicas:
            if node in leaving:
                now = plan.replicas[at]
                others = tuple(n for n in now if n != node)
                new = plan.choose(at, others, staying)
                plan.set(at, tuple(new if n == node else n for n in now))
    _spread_leaders(plan, only=plan.changes())
    return plan.changes()


def balance(
    placement: Placement, racks: Racks, sizes: Sizes | None = None, *, moves_max: int | None = None
) -> dict[TopicPartition, Replicas]:
    """Even out how many replicas, and preferred leaders, the brokers have: for brokers that were added, mostly.

    Replicas that share a rack while another has none are moved first. With `moves_max` only so many replicas move;
    asking again with the result goes on from there. Leaders are spread once no replica has to move.
    """
    return even_out(Plan(placement, racks, sizes), moves_max)


def even_out(plan: Plan, moves_max: int | None = None) -> dict[TopicPartition, Replicas]:
    """`balance`, from a plan in which nothing has moved yet."""
    left = sum(map(len, plan.before.values())) if moves_max is None else moves_max
    for at in sorted(at for at, replicas in plan.before.items() if _may_be_crowded(plan, replicas)):
        while left and _spread_racks(plan, at):
            left -= 1
    while left and _even_out(plan):
        left -= 1
    if left:
        _spread_leaders(plan, only=plan.replicas)
    return plan.changes()


def _may_be_crowded(plan: Plan, replicas: Replicas) -> bool:
    """Cheap, as it is asked of every partition: no where each replica has a rack of its own, or every rack has one."""
    reached = {plan.racks.get(node) for node in replicas}
    return len(reached) < len(replicas) and not plan.rack_names <= reached


def _spread_racks(plan: Plan, at: TopicPartition) -> bool:
    """Move one replica out of a rack that has another of its partition, if there is a rack with none."""
    replicas = plan.replicas[at]
    reached = {plan.racks.get(node) for node in replicas}
    free = [node for node, rack in plan.racks.items() if rack is not None and rack not in reached]
    crowded = [node for node in replicas if node in plan.racks and plan.crowded(replicas, node)]
    if not free or not crowded:
        return False
    giver = max(crowded, key=lambda node: (len(plan.held[node]), node))
    taker = min(free, key=lambda node: (len(plan.held[node]), node))
    plan.set(at, tuple(taker if node == giver else node for node in replicas))
    return True


def _even_out(plan: Plan) -> bool:
    by_load = sorted(plan.racks, key=lambda node: (len(plan.held[node]), node))
    return any(_move_one(plan, giver, taker) for giver in reversed(by_load) for taker in by_load)


def _move_one(plan: Plan, giver: int, taker: int) -> bool:
    """Move one replica if that makes the two more equal and no rack more crowded.

    Every such move makes the sum of the squares of all brokers' numbers smaller, so no sequence of them ends where it
    began: nothing is moved back and forth.
    """
    if len(plan.held[giver]) - len(plan.held[taker]) < 2:
        return False
    movable = _movable(plan, giver, taker)
    if not movable:
        return False
    # Of those that may go, the one that leaves the two most alike in bytes.
    gap = plan.held_bytes[giver] - plan.held_bytes[taker]
    at = min(movable, key=lambda at: abs(gap - 2 * plan.sizes.get(at, 0)))
    plan.set(at, tuple(taker if node == giver else node for node in plan.replicas[at]))
    return True


def _movable(plan: Plan, giver: int, taker: int) -> list[TopicPartition]:
    """Asked of all that a broker holds, for every move."""
    taken, rack = plan.held[taker], plan.racks[taker]
    if rack is None or rack == plan.racks.get(giver):  # racks are as crowded afterwards as before
        return [at for at in plan.held[giver] if at not in taken]
    return [at for at in plan.held[giver] if at not in taken and not _crowds(plan, at, giver, taker)]


def _crowds(plan: Plan, at: TopicPartition, giver: int, taker: int) -> bool:
    """Whether the taker would share its rack with another replica, and the giver shares none."""
    others = tuple(node for node in plan.replicas[at] if node != giver)
    return plan.crowded(others, taker) and not plan.crowded(others, giver)


def with_replication_factor(placement: Placement, racks: Racks, factor: int) -> dict[TopicPartition, Replicas]:
    """Add or take away replicas until each partition has `factor`; the preferred leader stays."""
    if factor < 1:
        raise impossible(f"a replication factor of {factor} would keep nothing")
    if factor > len(racks):
        raise impossible(f"a replication factor of {factor} needs as many brokers, and there are {len(racks)}")
    plan = Plan(placement, racks)
    for at in sorted(plan.before):
        while len(plan.replicas[at]) < factor:
            now = plan.replicas[at]
            plan.set(at, (*now, plan.choose(at, now, racks)))
        while len(plan.replicas[at]) > factor:
            now = plan.replicas[at]
            # First a broker that is gone, then one whose rack is covered twice, then the fullest; never the leader.
            worst = max(now[1:], key=lambda n: (n not in racks, plan.crowded(now, n), len(plan.held[n]), n))
            plan.set(at, tuple(node for node in now if node != worst))
    return plan.changes()


def _spread_leaders(plan: Plan, only: Collection[TopicPartition]) -> None:
    """Reorder replicas of `only` so that preferred leaders are as even as the placement allows."""
    leads: dict[int, int] = dict.fromkeys(plan.held, 0)
    for replicas in plan.replicas.values():
        leads[replicas[0]] += 1
    order = sorted(only)
    for _ in range(LEADER_PASSES):
        if not sum(_hand_over(plan, leads, at) for at in order):
            break
    # A broker with too many leads may share no partition with one that has too few: then one in between passes it on.
    while chain := _chain(plan, leads, order):
        for at, to in chain:
            _prefer(plan, leads, at, to)


def _hand_over(plan: Plan, leads: dict[int, int], at: TopicPartition) -> bool:
    """Give a partition's lead to the one of its replicas that leads least, if that evens them out."""
    replicas = plan.replicas[at]
    best = min(replicas, key=lambda node: leads[node])
    if leads[replicas[0]] - leads[best] < 2:
        return False
    _prefer(plan, leads, at, best)
    return True


def _prefer(plan: Plan, leads: dict[int, int], at: TopicPartition, node: int) -> None:
    replicas = plan.replicas[at]
    leads[replicas[0]] -= 1
    leads[node] += 1
    plan.replicas[at] = (node, *(other for other in replicas if other != node))


def _chain(
    plan: Plan, leads: Mapping[int, int], partitions: Sequence[TopicPartition]
) -> list[tuple[TopicPartition, int]]:
    """Partitions, each with its next leader, that bring a lead from a broker to one with at least two less."""
    if max(leads.values(), default=0) - min(leads.values(), default=0) < 2:
        return []
    led: dict[int, list[TopicPartition]] = {}
    for at in partitions:
        led.setdefault(plan.replicas[at][0], []).append(at)
    for giver in sorted(led, key=lambda node: -leads[node]):
        came_by: dict[int, tuple[TopicPartition, int]] = {}
        seen, waiting = {giver}, [giver]
        for node in waiting:
            if leads[giver] - leads[node] >= 2:
                chain = []
                while node != giver:
                    at, before = came_by[node]
                    chain.append((at, node))
                    node = before
                return chain
            for at in led.get(node, ()):
                for other in plan.replicas[at][1:]:
                    if other not in seen:
                        seen.add(other)
                        came_by[other] = at, node
                        waiting.append(other)
    return []
