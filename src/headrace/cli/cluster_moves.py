"""`headrace cluster reassign, drain, balance`: a plan shown first, then moved under a throttle with its progress
shown."""

import asyncio
import json
import re
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import typer

from headrace.cli.dump.report import counted
from headrace.cli.following import follow_moves
from headrace.cli.output import BOOTSTRAP, JSON, YES, print_json, with_admin
from headrace.client.admin.admin import Admin, Resource
from headrace.client.admin.operations import Move, Operations, TopicPartition
from headrace.client.errors import ClientError, RequestFailed
from headrace.errors import Err, KafkaError
from headrace.metadata.balance import plans
from headrace.terminal import console, print_table, size_text

Replicas = tuple[int, ...]
Changes = dict[TopicPartition, Replicas]

POLL_S = 0.5
DRAINED = "auto.balance.drained.brokers"
SHOWN_MAX = 40
_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*([kKmMgG]?)[bB]?(?:/s)?")
_UNITS = {"": 1, "k": 1_000, "m": 1_000_000, "g": 1_000_000_000}

DRY = typer.Option(False, "--dry-run", help="Only show the plan.")
NO_WAIT = typer.Option(
    False, "--no-wait", help="Begin and return; `headrace cluster reassign --list` shows how far it is."
)
THROTTLE = typer.Option(
    None, "--throttle", metavar="RATE", help="Bytes per second and broker for the copying, such as 50MB."
)
SAVE = typer.Option(None, "--save", metavar="FILE", help="Write the plan in the format of Kafka's reassignment tool.")


class View(msgspec.Struct):
    """The cluster before anything moves."""

    placement: dict[TopicPartition, Replicas]
    racks: dict[int, str | None]
    sizes: dict[TopicPartition, int]


class Request(msgspec.Struct):
    """How a plan is to be carried out."""

    yes: bool
    dry: bool
    wait: bool
    throttle: int | None
    save: Path | None
    as_json: bool
    drained: tuple[int, ...] = ()
    """Brokers that `auto.balance` must not fill again."""
    elect_all: bool = False
    """Have every preferred replica lead at the end, and not only those of partitions that have moved."""


# -- commands


def reassign(
    topics: list[str] = typer.Argument(None, metavar="TOPIC", help="Only these topics.", show_default=False),
    plan: Path = typer.Option(None, "--plan", metavar="FILE", help="Move to what this file says (Kafka's format)."),
    replication_factor: int = typer.Option(
        None, "--replication-factor", "-r", metavar="N", help="Give each partition so many replicas."
    ),
    list_moves: bool = typer.Option(False, "--list", help="Show what is moving now."),
    cancel: bool = typer.Option(False, "--cancel", help="Call off what is moving now."),
    follow: bool = typer.Option(
        False, "--follow", help="Show how far moves are, whoever began them, until nothing moves."
    ),
    yes: bool = YES,
    dry: bool = DRY,
    no_wait: bool = NO_WAIT,
    throttle: str = THROTTLE,
    save: Path = SAVE,
    bootstrap: str = BOOTSTRAP,
    as_json: bool = JSON,
) -> None:
    """Move replicas by a plan, or change how many there are.

    See also `drain` and `balance`.
    """
    ways = [plan is not None, replication_factor is not None, list_moves, cancel, follow]
    if sum(ways) != 1:
        raise ClientError(
            "say one of --plan, --replication-factor, --list, --follow, --cancel; or see `drain` and `balance`"
        )
    if list_moves:
        return _list(bootstrap, as_json)
    if follow:
        return follow_moves(bootstrap, as_json)
    if cancel:
        return _cancel(bootstrap, topics or [], as_json)

    def decide(view: View) -> Changes:
        if plan is not None:
            return {at: to for at, to in read_plan(plan).items() if view.placement.get(at) != to}
        return dict(plans.with_replication_factor(view.placement, view.racks, replication_factor))

    request = Request(yes, dry, not no_wait, parse_rate(throttle), save, as_json)
    run_plan(bootstrap, decide, request, topics=topics or [])


def drain(
    nodes: list[int] = typer.Argument(..., metavar="BROKER", help="Brokers to empty.", show_default=False),
    yes: bool = YES,
    dry: bool = DRY,
    no_wait: bool = NO_WAIT,
    throttle: str = THROTTLE,
    save: Path = SAVE,
    bootstrap: str = BOOTSTRAP,
    as_json: bool = JSON,
) -> None:
    """Move every replica off brokers that are to be shut down.

    Works for ones that are down already.
    """

    def decide(view: View) -> Changes:
        holding = {node for replicas in view.placement.values() for node in replicas}
        for node in nodes:
            if node not in view.racks and node not in holding:
                raise ClientError(f"there is no broker {node}; there are {', '.join(map(str, sorted(view.racks)))}")
        staying = {node: rack for node, rack in view.racks.items() if node not in nodes}
        return dict(plans.drain(view.placement, staying, set(nodes)))

    request = Request(yes, dry, not no_wait, parse_rate(throttle), save, as_json, drained=tuple(nodes))
    run_plan(bootstrap, decide, request)


def balance(
    topics: list[str] = typer.Argument(None, metavar="TOPIC", help="Only these topics.", show_default=False),
    yes: bool = YES,
    dry: bool = DRY,
    no_wait: bool = NO_WAIT,
    throttle: str = THROTTLE,
    save: Path = SAVE,
    bootstrap: str = BOOTSTRAP,
    as_json: bool = JSON,
) -> None:
    """Even out replicas and leaders over the brokers that are up.

    For brokers that were added. At the end every preferred replica is elected, so that leaders are even, too.
    """

    def decide(view: View) -> Changes:
        return dict(plans.balance(view.placement, view.racks, view.sizes))

    request = Request(yes, dry, not no_wait, parse_rate(throttle), save, as_json, elect_all=True)
    run_plan(bootstrap, decide, request, topics=topics or [])


def _list(bootstrap: str, as_json: bool) -> None:
    moves = with_admin(bootstrap, lambda admin: Operations(admin).moves())
    if as_json:
        print_json([msgspec.to_builtins(move) for move in moves])
    elif not moves:
        print("nothing is moving")
    else:
        rows = [
            (f"{m.topic}-{m.partition}", _nodes(m.replicas), _nodes(m.adding) or "-", _nodes(m.removing) or "-")
            for m in moves
        ]
        print_table(("PARTITION", "REPLICAS", "COMING", "GOING"), rows)


def _cancel(bootstrap: str, topics: list[str], as_json: bool) -> None:
    async def work(admin: Admin) -> list[Move]:
        operations = Operations(admin)
        moves = [move for move in await operations.moves() if not topics or move.topic in topics]
        if moves:
            await operations.reassign({(move.topic, move.partition): None for move in moves})
        await operations.lift_throttle(dict.fromkeys(move.topic for move in moves))
        return moves

    moves = with_admin(bootstrap, work)
    if as_json:
        print_json([{"topic": move.topic, "partition": move.partition} for move in moves])
    else:
        print(f"{counted(len(moves), 'move')} called off")


# -- plans


def read_plan(path: Path) -> Changes:
    """Kafka's format: {"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [1, 2]}]}."""
    try:
        document = json.loads(path.read_text())
        rows = document["partitions"]
        found = {(str(row["topic"]), int(row["partition"])): tuple(map(int, row["replicas"])) for row in rows}
    except OSError as error:
        raise ClientError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, TypeError, KeyError) as error:
        raise ClientError(f"{path} is no reassignment plan: {error}") from None
    for (topic, index), replicas in found.items():
        if not replicas or len(set(replicas)) != len(replicas):
            raise ClientError(f"{path}: {topic}-{index} names a broker twice, or none")
    return found


def plan_document(changes: Changes) -> dict[str, Any]:
    rows = [
        {"topic": topic, "partition": index, "replicas": list(to)} for (topic, index), to in sorted(changes.items())
    ]
    return {"version": 1, "partitions": rows}


def parse_rate(text: str | None) -> int | None:
    """`50MB`, `1.5g`, `200000` as bytes per second."""
    if text is None:
        return None
    found = _RATE.fullmatch(text.strip())
    rate = int(float(found[1]) * _UNITS[found[2].lower()]) if found else 0
    if rate < 1:
        raise ClientError(f"--throttle {text}: write bytes per second, such as 50MB")
    return rate


async def view_of(operations: Operations, topics: list[str]) -> View:
    brokers = await operations.brokers()
    racks = {b.node_id: b.rack for b in brokers if not b.is_fenced}
    found = [t for t in await operations.topics() if not topics or t.name in topics]
    if missing := sorted(set(topics) - {t.name for t in found}):
        raise ClientError(f"there is no topic {missing[0]!r}")
    placement = {(t.name, p.index): p.replicas for t in found for p in t.partitions.values()}
    sizes: dict[TopicPartition, int] = {}
    for (_, topic, index), size in (await operations.replica_bytes(racks)).items():
        sizes[topic, index] = max(size, sizes.get((topic, index), 0))
    return View(placement, racks, sizes)


# -- carrying out


def run_plan(
    bootstrap: str, decide: Callable[[View], Changes], request: Request, topics: list[str] | None = None
) -> None:
    """Look, plan, show, ask, move, watch."""
    view = with_admin(bootstrap, lambda admin: view_of(Operations(admin), topics or []))
    try:
        changes = decide(view)
    except KafkaError as error:
        raise ClientError(error.message or str(error)) from None
    if request.save is not None:
        request.save.write_text(json.dumps(plan_document(changes)) + "\n")
    if not changes:
        print_json(plan_document({})) if request.as_json else print("nothing has to move")
        if request.elect_all and not request.dry:
            with_admin(bootstrap, lambda admin: _elect(Operations(admin), list(view.placement), request))
        return
    if request.as_json:
        print_json(plan_document(changes))
    else:
        show_plan(view, changes)
    if request.dry:
        return
    if not request.yes and not request.as_json and not typer.confirm("Go on?"):
        raise typer.Exit(1)

    async def work(admin: Admin) -> None:
        if request.drained:
            await keep_empty(admin, min(view.racks), request.drained)
        await carry_out(Operations(admin), view, changes, request)

    with_admin(bootstrap, work)


async def keep_empty(admin: Admin, asked: int, nodes: Sequence[int]) -> None:
    """Tell `auto.balance`, if it is on, that these brokers are to stay empty."""
    options = {entry.name: entry.value or "" for entry in await admin.describe_configs(Resource.BROKER, str(asked))}
    if options.get("auto.balance") == "true":
        known = [node for node in options.get(DRAINED, "").split(",") if node]
        listed = ",".join(dict.fromkeys([*known, *map(str, nodes)]))
        await admin.alter_configs(Resource.BROKER, "", set={DRAINED: listed})


def copies_of(view: View, changes: Changes) -> dict[TopicPartition, list[int]]:
    """The replicas that have to be copied to a broker that has none yet."""
    found = {at: [node for node in to if node not in view.placement.get(at, ())] for at, to in changes.items()}
    return {at: nodes for at, nodes in found.items() if nodes}


def show_plan(view: View, changes: Changes) -> None:
    copies = copies_of(view, changes)
    rows = []
    for at, to in sorted(changes.items())[:SHOWN_MAX]:
        size = size_text(_bytes_of(view, {at: copies[at]})) if at in copies else "-"
        rows.append((f"{at[0]}-{at[1]}", _nodes(view.placement.get(at, ())), _nodes(to), size))
    print_table(("PARTITION", "FROM", "TO", "TO COPY"), rows, numbers=("TO COPY",))
    if len(changes) > SHOWN_MAX:
        print(f"... and {len(changes) - SHOWN_MAX} more")
    total = size_text(_bytes_of(view, copies))
    print(f"{len(changes)} partitions change, {sum(map(len, copies.values()))} replicas are copied, {total}")


async def carry_out(operations: Operations, view: View, changes: Changes, request: Request) -> None:
    """Begin everything, watch until it is done, make the preferred replicas leaders, lift the throttle."""
    if request.throttle is not None:
        await operations.throttle(changes, view.placement, request.throttle)
    topics = dict.fromkeys(topic for topic, _ in changes)
    try:
        await operations.reassign(changes)
    except ClientError:
        if request.throttle is not None:
            await operations.lift_throttle(topics)
        raise
    if not request.wait:
        print("begun; see `headrace cluster reassign --list`", file=sys.stderr)
        return
    await watch(operations, view, changes, show=None if request.as_json else Progress(len(changes)))
    if request.throttle is not None:
        await operations.lift_throttle(topics)
    moved = [at for at, to in changes.items() if to[0] != view.placement.get(at, (-1,))[0]]
    if not request.as_json:
        print(f"done: {len(changes)} partitions are where they should be")
    await _elect(operations, list(view.placement) if request.elect_all else moved, request)


async def _elect(operations: Operations, partitions: list[TopicPartition], request: Request) -> None:
    elected = await elect_preferred(operations, partitions) if partitions else 0
    if elected and not request.as_json:
        print(f"elected {counted(elected, 'preferred leader')}")


async def elect_preferred(operations: Operations, partitions: list[TopicPartition]) -> int:
    """Have preferred replicas lead where they do not; returns how many leaders are new."""
    results = await operations.elect(partitions)
    for (topic, index), failed in results.items():
        if failed is not None and failed.error is not Err.PREFERRED_LEADER_NOT_AVAILABLE:
            raise RequestFailed(
                f"{topic}-{index} is in place, but its preferred replica does not lead", failed.error, failed.message
            )
    return sum(failed is None for failed in results.values())


class Progress:
    """A bar on a terminal, a line now and then elsewhere."""

    def __init__(self, total: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.total = total
        self._clock = clock
        self._began: tuple[float, int] | None = None
        self._bar: Any = None
        self._last = -1
        if sys.stdout.isatty():
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

            self._bar = Progress(
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.description}"),
                TimeElapsedColumn(),
                console=console(),
            )
            self._task = self._bar.add_task("", total=total)
            self._bar.start()

    def update(self, done: int, copied: int, to_copy: int) -> None:
        text = f"{size_text(copied)} of {size_text(max(copied, to_copy))} copied{self._left(copied, to_copy)}"
        if self._bar is not None:
            self._bar.update(self._task, completed=done, description=f"partitions, {text}")
        elif done != self._last:
            self._last = done
            print(f"{done} of {self.total} partitions, {text}", flush=True)

    def _left(self, copied: int, to_copy: int) -> str:
        """How long it takes at the speed so far, once there is one."""
        now = self._clock()
        if self._began is None:
            self._began = now, copied
        began, before = self._began
        if copied <= before or copied >= to_copy or now <= began:
            return ""
        return f", about {int((to_copy - copied) * (now - began) / (copied - before)) + 1} s left"

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()


async def watch(
    operations: Operations,
    view: View,
    changes: Changes,
    show: Progress | None,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Until none of `changes` is under way. Raises if one was called off meanwhile."""
    copies = copies_of(view, changes)
    try:
        while True:
            moving = {(move.topic, move.partition) for move in await operations.moves()} & set(changes)
            if show is not None:
                to_copy = _bytes_of(view, copies)
                copied = await _copied(operations, copies) if moving else to_copy
                show.update(len(changes) - len(moving), copied, to_copy)
            if not moving:
                break
            await sleep(POLL_S)
    finally:
        if show is not None:
            show.close()
    after = {(t.name, p.index): p.replicas for t in await operations.topics() for p in t.partitions.values()}
    lost = [at for at, to in changes.items() if at in after and set(after[at]) != set(to)]
    if lost:
        topic, index = lost[0]
        raise ClientError(
            f"{len(lost)} moves were called off or replaced by others meanwhile, {topic}-{index} among them"
        )


def _bytes_of(view: View, copies: dict[TopicPartition, list[int]]) -> int:
    return sum(view.sizes.get(at, 0) * len(nodes) for at, nodes in copies.items())


async def _copied(operations: Operations, copies: dict[TopicPartition, list[int]]) -> int:
    sizes = await operations.replica_bytes({node for nodes in copies.values() for node in nodes})
    return sum(sizes.get((node, *at), 0) for at, nodes in copies.items() for node in nodes)


def _nodes(nodes: Any) -> str:
    return ",".join(map(str, nodes))
