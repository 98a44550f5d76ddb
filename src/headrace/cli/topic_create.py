"""`headrace topic create`: by number, by hand (`--assignment`), or only drawn (`--dry-run`)."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

import typer

from headrace.cli.dump.report import counted
from headrace.cli.output import BOOTSTRAP, JSON, pairs, print_json, with_admin
from headrace.client.admin.admin import Admin, Resource
from headrace.client.admin.operations import ClusterBroker, Operations
from headrace.client.errors import ClientError, RequestFailed
from headrace.errors import Err
from headrace.metadata.placement import PLACERS, UsableBroker, place
from headrace.storage.checkpoints import encode_uuid
from headrace.terminal import print_table, shown

INT16_MAX, INT32_MAX = 2**15 - 1, 2**31 - 1
NEW_NAMES = typer.Argument(..., metavar="TOPIC", help="One or more topics.", show_default=False)
DRAWN_PARTITIONS = 24
DRAWN_BROKERS = 12

Assignment = list[list[int]]
"""The brokers of each partition, the preferred leader first."""


def create(
    names: list[str] = NEW_NAMES,
    partitions: int = typer.Option(
        -1,
        "--partitions",
        "-p",
        metavar="N",
        max=INT32_MAX,
        help="Number of partitions; -1: the broker's default.",
        show_default=False,
    ),
    replication_factor: int = typer.Option(
        -1,
        "--replication-factor",
        "-r",
        metavar="N",
        max=INT16_MAX,
        help="Copies of each partition; -1: the broker's default.",
        show_default=False,
    ),
    assignment: str = typer.Option(
        None,
        "--assignment",
        metavar="B:B,...",
        help="Place replicas by hand: brokers of each partition, leader first, such as 1:2,2:3.",
    ),
    settings: list[str] = typer.Option(
        [], "--set", metavar="NAME=VALUE", help="A topic option, such as retention.ms=3600000."
    ),
    if_not_exists: bool = typer.Option(False, "--if-not-exists", help="Succeed if the topic exists already."),
    dry: bool = typer.Option(False, "--dry-run", help="Create nothing; draw where replicas would go."),
    bootstrap: str = BOOTSTRAP,
    as_json: bool = JSON,
) -> None:
    """Create topics."""
    configs = pairs(settings)
    by_hand = parse_assignment(assignment) if assignment is not None else None
    if by_hand is not None and (partitions != -1 or replication_factor != -1):
        raise ClientError("--assignment says how many partitions and replicas there are: leave out -p and -r")
    if dry:
        return _dry_run(bootstrap, names, partitions, replication_factor, configs, by_hand, as_json)
    assignments = dict(enumerate(by_hand)) if by_hand is not None else None
    refused: list[RequestFailed] = []

    async def work(admin: Admin) -> list[dict[str, Any]]:
        rows = []
        for name in names:
            try:
                made = await admin.create_topic(name, partitions, replication_factor, configs, assignments=assignments)
            except RequestFailed as error:
                if if_not_exists and error.error is Err.TOPIC_ALREADY_EXISTS:
                    rows.append({"name": name, "created": False})
                else:
                    refused.append(error)  # the others are made all the same, and told of
                continue
            rows.append(
                {
                    "name": name,
                    "created": True,
                    "topic_id": encode_uuid(made.topic_id),
                    "partitions": made.partitions,
                    "replication_factor": made.replication_factor,
                }
            )
        return rows

    rows = with_admin(bootstrap, work)
    if as_json and (rows or not refused):
        print_json(rows)
    elif not as_json:
        for row in rows:
            if row["created"]:
                print(
                    f"created {row['name']}: {counted(row['partitions'], 'partition')}, replication factor"
                    f" {row['replication_factor']}"
                )
            else:
                print(f"{row['name']} exists already")
    if refused:
        raise ClientError("; ".join(map(str, refused)))


def parse_assignment(text: str) -> Assignment:
    """`1:2,2:3`, as Kafka's own tool writes it: partition 0 on brokers 1 and 2, partition 1 on 2 and 3."""
    try:
        found = [[int(broker) for broker in partition.split(":")] for partition in text.split(",")]
    except ValueError:
        raise ClientError(
            f"--assignment {shown(text)}: write the brokers of each partition, such as 1:2,2:3 for two partitions"
        ) from None
    for number, brokers in enumerate(found):
        if len(set(brokers)) < len(brokers):
            raise ClientError(f"--assignment {text}: partition {number} names a broker twice")
        if len(brokers) != len(found[0]):
            raise ClientError(f"--assignment {text}: every partition needs as many brokers as partition 0")
    return found


def assignment_text(placed: Assignment) -> str:
    """What `--assignment` takes."""
    return ",".join(":".join(map(str, replicas)) for replicas in placed)


# -- drawing


def _dry_run(
    bootstrap: str,
    names: Sequence[str],
    partitions: int,
    replication_factor: int,
    configs: Mapping[str, str],
    by_hand: Assignment | None,
    as_json: bool,
) -> None:
    """The broker says whether it would create each topic, and how large; where replicas go is worked out here."""
    by_partition = dict(enumerate(by_hand)) if by_hand is not None else None

    async def work(admin: Admin) -> tuple[list[Any], list[ClusterBroker], str]:
        made = [
            await admin.create_topic(
                name, partitions, replication_factor, configs, assignments=by_partition, validate_only=True
            )
            for name in names
        ]
        brokers = await Operations(admin).brokers()
        return made, brokers, await _placer(admin, brokers)

    made, brokers, used = with_admin(bootstrap, work)
    usable = [UsableBroker(broker.node_id, broker.rack, broker.is_fenced) for broker in brokers]
    dice = random.SystemRandom().randrange
    found: list[dict[str, Any]] = []
    for topic in made:
        drawn: dict[str, Assignment] = (
            {"by hand": by_hand}
            if by_hand is not None
            else {how: place(usable, topic.partitions, topic.replication_factor, dice, how) for how in sorted(PLACERS)}
        )
        found.append({"name": topic.name, "replica.placement": used, "placed": drawn})
        if not as_json:
            _print_topic(topic.name, usable, drawn, used)
    if as_json:
        print_json(found)


async def _placer(admin: Admin, brokers: Sequence[ClusterBroker]) -> str:
    """How the cluster places, as a broker that is up tells; Kafka has no such option, and stripes."""
    up = next((broker.node_id for broker in brokers if not broker.is_fenced), -1)
    entries = await admin.describe_configs(Resource.BROKER, str(up))
    return next((entry.value for entry in entries if entry.name == "replica.placement" and entry.value), "striped")


def _print_topic(name: str, brokers: Sequence[UsableBroker], drawn: Mapping[str, Assignment], used: str) -> None:
    first = next(iter(drawn.values()))
    print(f"{name} would be created: {sizes_text(len(first), len(first[0]))}")
    for how, placed in drawn.items():
        mark = " (this cluster's)" if how == used else ""
        print(f"\n{how if how == 'by hand' else f'replica.placement={how}{mark}'}")
        draw(brokers, placed)
    if used in drawn:
        print("\nThe start is random. To create exactly this one:")
        print(
            f"  headrace topic create {shown(name)} --assignment {assignment_text(drawn[used][:DRAWN_PARTITIONS])}",
            end="",
        )
        print(",..." if len(drawn[used]) > DRAWN_PARTITIONS else "")


def sizes_text(partitions: int, replication_factor: int) -> str:
    """`15 replicas = 5 partitions x 3`."""
    replicas = counted(partitions * replication_factor, "replica")
    return f"{replicas} = {counted(partitions, 'partition')} x {replication_factor}"


def draw(brokers: Sequence[UsableBroker], placed: Assignment) -> None:
    """A row for each partition, a column for each broker; racks stand side by side."""
    if len(brokers) > DRAWN_BROKERS:
        rows: list[tuple[object, ...]] = [(f"p{n}", ", ".join(map(str, r))) for n, r in enumerate(placed)]
        print_table(("", "REPLICAS"), rows[:DRAWN_PARTITIONS])
    else:
        ordered = sorted(brokers, key=lambda broker: (broker.rack or "", broker.id))
        columns = [f"b{broker.id}" + (f" ({shown(broker.rack)})" if broker.rack else "") for broker in ordered]
        rows = [
            (f"p{number}", *(_cell(replicas, broker.id) for broker in ordered))
            for number, replicas in enumerate(placed[:DRAWN_PARTITIONS])
        ]
        leads, holds = _totals(placed)
        rows.append(("leads", *(leads.get(broker.id, 0) for broker in ordered)))
        rows.append(("replicas", *(holds.get(broker.id, 0) for broker in ordered)))
        print_table(("", *columns), rows)
    if len(placed) > DRAWN_PARTITIONS:
        print(f"... and {len(placed) - DRAWN_PARTITIONS} more partitions")


def _cell(replicas: Sequence[int], broker: int) -> str:
    if broker not in replicas:
        return "."
    return "LEADER" if replicas[0] == broker else f"follower {replicas.index(broker)}"


def _totals(placed: Assignment) -> tuple[dict[int, int], dict[int, int]]:
    leads: dict[int, int] = {}
    holds: dict[int, int] = {}
    for replicas in placed:
        leads[replicas[0]] = leads.get(replicas[0], 0) + 1
        for broker in replicas:
            holds[broker] = holds.get(broker, 0) + 1
    return leads, holds
