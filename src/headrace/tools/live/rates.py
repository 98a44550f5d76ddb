"""Two looks at a cluster, compared: how much went in and out, who leads, who is behind, who is slow. Pure."""

import msgspec

from headrace.tools.live.sample import Place, Sample

SLOW_ANSWER_MS = 100.0
"""A broker that takes longer for a small request is slow, if it also takes much longer than the others."""
SLOW_RATIO = 5.0
BEHIND_S = 10.0


class BrokerRow(msgspec.Struct):
    node_id: int
    address: str
    is_up: bool
    is_controller: bool
    leads: int
    replicas: int
    out_of_sync: int
    """Replicas of its own that are not in sync."""
    in_per_s: float | None
    """Records, of the partitions that it leads."""
    size_bytes: int | None
    answer_ms: float | None
    slow: str = ""
    """Why it is called slow, or nothing."""


class TopicRow(msgspec.Struct):
    topic: str
    partitions: int
    in_per_s: float | None
    bytes_per_s: float | None
    out_per_s: float | None
    """Records that groups have committed."""
    size_bytes: int
    under_replicated: int
    offline: int
    leaders: list[int]


class GroupRow(msgspec.Struct):
    group: str
    state: str
    lag: int
    seconds: float | None
    out_per_s: float | None
    slow: str = ""


class View(msgspec.Struct):
    """One screen's worth. Rates are None at the first look, which has nothing to be compared with."""

    cluster_id: str
    controller: int
    brokers: list[BrokerRow]
    topics: list[TopicRow]
    groups: list[GroupRow]
    in_per_s: float | None
    bytes_per_s: float | None
    out_per_s: float | None
    partitions: int
    under_replicated: int
    offline: int
    slow: list[str]


def view_of(now: Sample, before: Sample | None) -> View:
    """Everything that is shown; rows with the most to tell first."""
    span_s = now.at - before.at if before is not None else 0.0
    written = _written(now, before, span_s)
    read = _read(now, before, span_s)
    brokers = _brokers(now, written)
    topics = _topics(now, before, span_s, written, read)
    groups = _groups(now, before, span_s)
    known = before is not None and span_s > 0
    return View(
        now.cluster_id,
        now.controller,
        brokers,
        topics,
        groups,
        sum(written.values()) if known else None,
        sum(row.bytes_per_s or 0.0 for row in topics) if known else None,
        sum(row.out_per_s or 0.0 for row in groups) if known else None,
        len(now.partitions),
        sum(row.under_replicated for row in topics),
        sum(row.offline for row in topics),
        [
            *(f"broker {row.node_id}: {row.slow}" for row in brokers if row.slow),
            *(f"group {row.group}: {row.slow}" for row in groups if row.slow),
        ],
    )


def _written(now: Sample, before: Sample | None, span_s: float) -> dict[Place, float]:
    """Records per second of each partition that is known in both."""
    if before is None or span_s <= 0:
        return {}
    found = {}
    for at, part in now.partitions.items():
        old = before.partitions.get(at)
        if old is not None and old.end_offset is not None and part.end_offset is not None:
            found[at] = max(0, part.end_offset - old.end_offset) / span_s
    return found


def _read(now: Sample, before: Sample | None, span_s: float) -> dict[str, float]:
    """Records per second that groups have committed, of each topic."""
    found: dict[str, float] = {}
    if before is None or span_s <= 0:
        return found
    for name, group in now.groups.items():
        old = before.groups.get(name)
        for at, offset in group.committed.items():
            if old is not None and at in old.committed:
                found[at[0]] = found.get(at[0], 0.0) + max(0, offset - old.committed[at]) / span_s
    return found


def _brokers(now: Sample, written: dict[Place, float]) -> list[BrokerRow]:
    answers = sorted(one.answer_ms for one in now.brokers.values() if one.answer_ms is not None)
    usual_ms = answers[len(answers) // 2] if answers else 0.0
    rows = []
    for one in now.brokers.values():
        own = [(at, part) for at, part in now.partitions.items() if one.node_id in part.replicas]
        row = BrokerRow(
            one.node_id,
            one.address,
            one.is_up,
            one.node_id == now.controller,
            sum(part.leader == one.node_id for _, part in own),
            len(own),
            sum(one.node_id not in part.isr for _, part in own),
            sum(written.get(at, 0.0) for at, part in own if part.leader == one.node_id) if written else None,
            one.size_bytes,
            one.answer_ms,
        )
        if not one.is_up:
            row.slow = "is down"
        elif one.answer_ms is None:
            row.slow = "does not answer"
        elif one.answer_ms > SLOW_ANSWER_MS and one.answer_ms > SLOW_RATIO * usual_ms:
            row.slow = f"answers after {one.answer_ms:.0f} ms"
        elif row.out_of_sync:
            row.slow = f"{row.out_of_sync} of its replicas are not in sync"
        rows.append(row)
    return sorted(rows, key=lambda row: row.node_id)


def _topics(
    now: Sample, before: Sample | None, span_s: float, written: dict[Place, float], read: dict[str, float]
) -> list[TopicRow]:
    rows: dict[str, TopicRow] = {}
    for (topic, index), part in now.partitions.items():
        row = rows.get(topic)
        if row is None:
            known = before is not None and span_s > 0
            nothing = 0.0 if known else None
            row = rows[topic] = TopicRow(topic, 0, nothing, nothing, nothing, 0, 0, 0, [])
        row.partitions += 1
        row.size_bytes += part.size_bytes
        row.under_replicated += len(part.isr) < len(part.replicas)
        row.offline += part.leader < 0
        row.leaders = sorted({*row.leaders, *([part.leader] if part.leader >= 0 else [])})
        old = before.partitions.get((topic, index)) if before is not None else None
        if old is not None and row.bytes_per_s is not None and row.in_per_s is not None:
            row.bytes_per_s += max(0, part.size_bytes - old.size_bytes) / span_s
            row.in_per_s += written.get((topic, index), 0.0)
    for row in rows.values():
        if row.out_per_s is not None:
            row.out_per_s = read.get(row.topic, 0.0)
    return sorted(rows.values(), key=lambda row: (-row.offline, -row.under_replicated, -(row.in_per_s or 0), row.topic))


def _groups(now: Sample, before: Sample | None, span_s: float) -> list[GroupRow]:
    rows = []
    for name, group in now.groups.items():
        old = before.groups.get(name) if before is not None else None
        out = None
        if old is not None and span_s > 0:
            moved = [max(0, offset - old.committed.get(at, offset)) for at, offset in group.committed.items()]
            out = sum(moved) / span_s
        row = GroupRow(name, group.state, group.lag, group.seconds, out)
        if group.lag and (group.seconds is None or group.seconds > BEHIND_S):
            age = "" if group.seconds is None else f", {group.seconds:.0f} s"
            falling = old is not None and group.lag > old.lag
            row.slow = f"{group.lag:,} behind{age}" + (" and falling back" if falling else "")
        rows.append(row)
    return sorted(rows, key=lambda row: (-(row.seconds or 0.0), -row.lag, row.group))
