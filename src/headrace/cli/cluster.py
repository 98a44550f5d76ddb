"""`headrace cluster`: status, elect, forget; moving replicas is in `cluster_moves`, the quorum in `cluster_quorum`,
checks in `scrub`.

All of it goes through requests that Kafka serves to clients, so it works against Apache Kafka too.
"""

import asyncio
import sys
from collections import Counter
from collections.abc import Awaitable, Iterable
from typing import Any, TypeVar

import typer

from headrace.cli import cluster_migrate, cluster_moves, cluster_quorum, scrub
from headrace.cli.cluster_quorum import quorum_facts
from headrace.cli.dump.report import counted
from headrace.cli.output import ANSWER_LIMIT_S, BOOTSTRAP, JSON, YES, command_group, print_json, with_admin
from headrace.cli.watch import watched
from headrace.client.admin.admin import Admin, Resource
from headrace.client.admin.disk_space import DiskSpace, Fill, disk_space_of, time_text
from headrace.client.admin.operations import ClusterBroker, Operations, Quorum, TopicPartition, sizes_in
from headrace.client.errors import ClientError
from headrace.client.net.cluster import Partition, Topic
from headrace.terminal import print_table, size_text

T = TypeVar("T")

app = command_group("Look at a cluster, move replicas, elect leaders, give votes.", no_args_is_help=True)
app.add_typer(cluster_quorum.app, name="quorum")
app.command("reassign")(cluster_moves.reassign)
app.command("drain")(cluster_moves.drain)
app.command("balance")(cluster_moves.balance)
app.command("scrub")(scrub.scrub_cluster)
app.command("migrate")(cluster_migrate.migrate)

CONNECT_LIMIT_S = 1.5
"""As ANSWER_LIMIT_S, until a connection is there."""
SHOWN_MAX = 20
"""Partitions in trouble that are named one by one."""


# -- status


@app.command("status")
@watched
def status(
    check: bool = typer.Option(
        False,
        "--check",
        help="Exit with code 1 unless everything is up and in sync, and no disk is full or soon will be.",
    ),
    bootstrap: str = BOOTSTRAP,
    as_json: bool = JSON,
) -> None:
    """Show brokers, disks, replicas, what is not in sync, the quorum."""
    facts = with_admin(bootstrap, look, connect_timeout_s=CONNECT_LIMIT_S, request_timeout_s=ANSWER_LIMIT_S)
    if as_json:
        print_json(facts)
    else:
        _print_status(facts)
    if check and not (facts["healthy"] and all(disk["state"] not in (Fill.LOW, Fill.FULL) for disk in facts["disks"])):
        raise typer.Exit(1)


async def look(admin: Admin) -> dict[str, Any]:
    """Everything that `status` shows."""
    operations = Operations(admin)
    topics = await operations.topics()
    brokers = await operations.brokers()
    # All at once, and none waited for beyond its limit: brokers and controllers may be away or frozen.
    async with Admin(cluster=admin.cluster.beside()) as beside:
        quorum, moves, log_dirs, least, place = await asyncio.gather(
            _in_time(Operations(beside).quorum()),
            _in_time(Operations(beside).moves()),
            operations.log_dirs((broker.node_id for broker in brokers if not broker.is_fenced), ANSWER_LIMIT_S),
            _least_in_sync(admin, topics),
            _in_time(_zookeeper(admin, brokers)),
        )
    disks = [disk_space_of(found) for found in log_dirs]
    silent = {b.node_id for b in brokers if not b.is_fenced} - {found.node_id for found in log_dirs}
    partitions = [(topic.name, p) for topic in topics for p in topic.partitions.values()]
    behind = [(name, p) for name, p in partitions if p.leader >= 0 and len(p.isr) < len(p.replicas)]
    offline = [(name, p) for name, p in partitions if p.leader < 0]
    return {
        "cluster_id": admin.cluster.cluster_id,
        "controller": quorum.leader_id if isinstance(quorum, Quorum) else None,
        "brokers": _broker_rows(brokers, silent, partitions, sizes_in(log_dirs), disks),
        "partitions": len(partitions),
        "under_replicated": [_partition_row(name, p) for name, p in behind],
        "below_min_in_sync": [_partition_row(name, p) for name, p in behind if len(p.isr) < least.get(name, 1)],
        "offline": [_partition_row(name, p) for name, p in offline],
        "moving": len(moves) if isinstance(moves, list) else None,
        "disks": [_disk_row(disk) for disk in disks],
        "quorum": {
            **(quorum_facts(quorum) if isinstance(quorum, Quorum) else {"error": str(quorum)}),
            "zookeeper": place if isinstance(place, str) else None,
        },
        "healthy": (
            not behind
            and not offline
            and not silent
            and isinstance(quorum, Quorum)
            and not any(b.is_fenced for b in brokers)
            and not any(disk.fill in (Fill.FULL, Fill.OFFLINE) for disk in disks)
        ),
    }


async def _in_time(question: Awaitable[T]) -> T | ClientError:
    """The answer, or why there is none."""
    try:
        async with asyncio.timeout(ANSWER_LIMIT_S):
            return await question
    except TimeoutError:
        return ClientError(f"no answer within {ANSWER_LIMIT_S:g} s")
    except ClientError as error:
        return error


async def _zookeeper(admin: Admin, brokers: Iterable[ClusterBroker]) -> str | None:
    """Where the metadata is, if that is in ZooKeeper: as a broker that answers is configured."""
    for broker in brokers:
        if not broker.is_fenced:
            found = await admin.describe_configs(Resource.BROKER, str(broker.node_id), ["zookeeper.connect"])
            return next((entry.value for entry in found if entry.name == "zookeeper.connect"), None)
    return None


async def _least_in_sync(admin: Admin, topics: Iterable[Topic]) -> dict[str, int]:
    """min.insync.replicas of the topics for which it matters now, as far as brokers answer."""
    names = [topic.name for topic in topics if any(len(p.isr) < len(p.replicas) for p in topic.partitions.values())]
    wanted = ["min.insync.replicas"]
    answers = await asyncio.gather(*(_in_time(admin.describe_configs(Resource.TOPIC, name, wanted)) for name in names))
    return {
        name: int(answer[0].value or 1) for name, answer in zip(names, answers) if isinstance(answer, list) and answer
    }


def _broker_rows(
    brokers: list[ClusterBroker],
    silent: set[int],
    partitions: list[tuple[str, Partition]],
    sizes: dict[tuple[int, str, int], int],
    disks: list[DiskSpace],
) -> list[dict[str, Any]]:
    free = {
        disk.node_id: disk.usable_bytes
        for disk in sorted(disks, key=lambda disk: -disk.usable_bytes)
        if disk.usable_bytes >= 0
    }
    leads, holds, lacks = Counter[int](), Counter[int](), Counter[int]()
    for _, p in partitions:
        leads[p.leader] += 1
        holds.update(p.replicas)
        lacks.update(set(p.replicas) - set(p.isr))
    space = Counter[int]()
    for (node, _, _), size in sizes.items():
        space[node] += size
    known = {broker.node_id for broker in brokers}
    rows: list[dict[str, Any]] = [
        {
            "id": b.node_id,
            "address": b.address if b.port > 0 else None,
            "rack": b.rack,
            "state": "fenced" if b.is_fenced else "no answer" if b.node_id in silent else "up",
            "leads": leads[b.node_id],
            "replicas": holds[b.node_id],
            "not_in_sync": lacks[b.node_id],
            "size_bytes": None if b.is_fenced or b.node_id in silent else space[b.node_id],
            "free_bytes": free.get(b.node_id),
        }
        for b in brokers
    ]
    for node in sorted(set(holds) - known):
        # Clusters that do not tell of fenced brokers still name them as replicas.
        gone = {"id": node, "address": None, "rack": None, "state": "down", "leads": 0}
        rows.append(
            {**gone, "replicas": holds[node], "not_in_sync": lacks[node], "size_bytes": None, "free_bytes": None}
        )
    return rows


def _disk_row(disk: DiskSpace) -> dict[str, Any]:
    row = disk._asdict()
    return {"broker": row.pop("node_id"), "path": row.pop("path"), "state": row.pop("fill").value, **row}


def disk_line(disk: dict[str, Any]) -> str:
    """What is said of one that is not as it should be."""
    where = f"{disk['state']}: broker {disk['broker']}, {disk['path']}"
    if disk["state"] == Fill.OFFLINE:
        return where
    left = (
        f"{size_text(disk['usable_bytes'])} of {size_text(disk['total_bytes'])} free,"
        f" {size_text(disk['reserve_bytes'])} reserved"
    )
    soon = (
        "" if disk["full_in_s"] is None or disk["state"] == Fill.FULL else f", full in {time_text(disk['full_in_s'])}"
    )
    return f"{where}  {left}{soon}"


def _partition_row(name: str, p: Partition) -> dict[str, Any]:
    return {
        "topic": name,
        "partition": p.index,
        "leader": p.leader,
        "replicas": list(p.replicas),
        "in_sync": list(p.isr),
    }


def _print_status(facts: dict[str, Any]) -> None:
    controller = "no controller" if facts["controller"] is None else f"controller {facts['controller']}"
    print(f"cluster {facts['cluster_id']}  {controller}")
    rows = [
        (
            b["id"],
            b["address"] or "-",
            b["rack"] or "-",
            b["state"],
            b["leads"],
            b["replicas"],
            b["not_in_sync"],
            "-" if b["size_bytes"] is None else size_text(b["size_bytes"]),
            "-" if b["free_bytes"] is None else size_text(b["free_bytes"]),
        )
        for b in facts["brokers"]
    ]
    numbers = ("BROKER", "LEADS", "REPLICAS", "NOT IN SYNC", "SIZE", "FREE")
    print_table(
        ("BROKER", "ADDRESS", "RACK", "STATE", "LEADS", "REPLICAS", "NOT IN SYNC", "SIZE", "FREE"),
        rows,
        numbers=numbers,
    )
    print(
        f"{counted(facts['partitions'], 'partition')}: {len(facts['under_replicated'])} under-replicated,"
        f" {len(facts['below_min_in_sync'])} below min.insync.replicas, {len(facts['offline'])} offline,"
        f" {'-' if facts['moving'] is None else facts['moving']} moving"
    )
    for disk in facts["disks"]:
        if disk["state"] in (Fill.LOW, Fill.FULL, Fill.OFFLINE):
            print(f"  disk {disk_line(disk)}")
    _print_partitions("offline", facts["offline"])
    _print_partitions("not writable with acks=all", facts["below_min_in_sync"])
    _print_partitions("under-replicated", facts["under_replicated"])
    quorum = facts["quorum"]
    place = f"ZooKeeper at {quorum['zookeeper']}" if quorum["zookeeper"] else None
    if "error" in quorum:
        print(f"quorum: {f'{place}: ' if place else ''}{quorum['error']}")
        return
    if place:
        print(f"quorum: {place}; node {quorum['leader']} is the controller in epoch {quorum['epoch']}")
        return
    lags = ", ".join(f"{v['id']}{cluster_quorum.lag_text(v)}" for v in quorum["voters"])
    print(
        f"quorum: node {quorum['leader']} leads epoch {quorum['epoch']}; voters {lags};"
        f" {counted(len(quorum['observers']), 'observer')}"
    )


def _print_partitions(what: str, rows: list[dict[str, Any]]) -> None:
    for row in rows[:SHOWN_MAX]:
        leader = "none" if row["leader"] < 0 else row["leader"]
        print(
            f"  {what}: {row['topic']}-{row['partition']}  leader {leader}, "
            f"replicas {_nodes(row['replicas'])}, in sync {_nodes(row['in_sync']) or 'none'}"
        )
    if len(rows) > SHOWN_MAX:
        print(f"  ... and {len(rows) - SHOWN_MAX} more {what}")


def _nodes(nodes: Iterable[int]) -> str:
    return ",".join(map(str, nodes))


# -- elect


@app.command("elect")
def elect(
    partitions: list[str] = typer.Argument(
        None,
        metavar="TOPIC[:PARTITION]",
        help="What to elect leaders for; everything if not given.",
        show_default=False,
    ),
    unclean: bool = typer.Option(
        False,
        "--unclean",
        help="Elect a replica that is not in sync where there is no other. Acknowledged records may be lost.",
    ),
    yes: bool = YES,
    bootstrap: str = BOOTSTRAP,
    as_json: bool = JSON,
) -> None:
    """Give the lead back to preferred replicas.

    With --unclean, where all in-sync ones are lost, to any that is left.
    """

    async def find(admin: Admin) -> list[TopicPartition] | None:
        return await _chosen(admin, partitions or [], only_leaderless=unclean)

    chosen = with_admin(bootstrap, find)
    if unclean:
        if not chosen:
            print_json([]) if as_json else print("every partition has a leader: there is nothing to elect")
            return
        names = ", ".join(f"{topic}-{index}" for topic, index in chosen[:SHOWN_MAX])
        more = f" and {len(chosen) - SHOWN_MAX} more" if len(chosen) > SHOWN_MAX else ""
        print(f"An unclean election of {names}{more} may lose records that were acknowledged.", file=sys.stderr)
        if not yes and not typer.confirm("Go on?", err=True):
            raise typer.Exit(1)
    results = with_admin(bootstrap, lambda admin: Operations(admin).elect(chosen, unclean=unclean))
    if as_json:
        print_json(
            [
                {
                    "topic": topic,
                    "partition": index,
                    "elected": failed is None,
                    "error": None if failed is None else failed.error.name,
                }
                for (topic, index), failed in sorted(results.items())
            ]
        )
    else:
        elected = sum(failed is None for failed in results.values())
        print(f"{elected} new leader{'s' if elected != 1 else ''}")
        for failed in results.values():
            if failed is not None:
                print(f"  {failed}")
    if any(failed is not None for failed in results.values()):
        raise typer.Exit(1)


async def _chosen(admin: Admin, words: list[str], *, only_leaderless: bool) -> list[TopicPartition] | None:
    """What the user named; None for everything."""
    if not words and not only_leaderless:
        return None
    topics = {topic.name: topic for topic in await Operations(admin).topics()}
    found: dict[TopicPartition, None] = {}
    for word in words or list(topics):
        name, index = split_partition(word)
        topic = topics.get(name)
        if topic is None or (index is not None and index not in topic.partitions):
            raise ClientError(f"there is no {'topic' if topic is None else 'partition'} {word!r}")
        found.update(((name, i), None) for i in (topic.partitions if index is None else [index]))
    return [(t, i) for t, i in found if not only_leaderless or topics[t].partitions[i].leader < 0]


def split_partition(word: str) -> tuple[str, int | None]:
    """`orders:3` or `orders`."""
    name, colon, index = word.rpartition(":")
    if not colon:
        return word, None
    if not index.isdecimal():
        raise ClientError(f"{word!r}: write TOPIC or TOPIC:PARTITION, such as orders:3")
    return name, int(index)


# -- forget


@app.command("forget")
def forget(
    node: int = typer.Argument(..., metavar="BROKER", help="The broker's number.", show_default=False),
    bootstrap: str = BOOTSTRAP,
    as_json: bool = JSON,
) -> None:
    """Unregister a broker that will not come back. Drain it first."""

    async def work(admin: Admin) -> None:
        operations = Operations(admin)
        holding = [t.name for t in await operations.topics() for p in t.partitions.values() if node in p.replicas]
        if holding:
            raise ClientError(f"broker {node} holds {len(holding)} replicas: run `headrace cluster drain {node}` first")
        if any(b.node_id == node and not b.is_fenced for b in await operations.brokers()):
            raise ClientError(f"broker {node} is up and would register again: stop it first")
        await operations.unregister(node)

    with_admin(bootstrap, work)
    print_json({"broker": node, "forgotten": True}) if as_json else print(f"broker {node} is forgotten")
