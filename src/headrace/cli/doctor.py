"""`headrace doctor`: can a client on this machine use the cluster, and is this machine fit to run a broker?

Every check prints one line: what was looked at, what was found and, where it matters, what to do about it.
"""

import asyncio
import ipaddress
import os
import resource
import time
from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

import typer

from headrace.cli.dump.report import counted
from headrace.cli.output import ANSWER_LIMIT_S, BOOTSTRAP, JSON, SECURITY, print_json
from headrace.cli.up import DATA
from headrace.client.admin.admin import Admin, LogDir
from headrace.client.admin.disk_space import Fill, disk_space_of, time_text
from headrace.client.admin.operations import Operations
from headrace.client.errors import ClientError, SecurityFailed
from headrace.client.net.address import Address, format_address, parse_bootstrap
from headrace.client.net.cluster import Broker, Cluster
from headrace.client.net.connection import Connection
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey
from headrace.storage.checkpoints import META_PROPERTIES, CorruptCheckpoint, MetaProperties
from headrace.terminal import can_show, console, size_text

CONNECT_TIMEOUT_S = 3.0
DESCRIPTORS_WANTED = 4096
FREE_BYTES_WANTED = 1 << 30
FREE_SHARE_WANTED = 0.05
CLOCK_FLOOR_S = 1_735_689_600  # 2025-01-01: no machine that runs this has an earlier date
FUTURE_S_ALLOWED = 60
ROOM_ADVICE = "Free some space, lower retention.ms or retention.bytes, or move replicas away."


class Verdict(StrEnum):
    GOOD = "ok"
    NOTE = "note"
    BAD = "bad"


MARKS = {Verdict.GOOD: "[green]✓[/]", Verdict.NOTE: "[yellow]![/]", Verdict.BAD: "[red]✗[/]"}
ASCII_MARKS = {Verdict.GOOD: "[green]+[/]", Verdict.NOTE: "[yellow]![/]", Verdict.BAD: "[red]x[/]"}


class Finding(NamedTuple):
    verdict: Verdict
    text: str
    advice: str = ""


def doctor(
    bootstrap: str = BOOTSTRAP,
    data: Path = typer.Option(Path(DATA), "--data", metavar="DIR", help="Data folder of a broker on this machine."),
    as_json: bool = JSON,
) -> None:
    """Check that clients can reach the cluster, and this machine.

    Tries every address that the cluster advertises, and looks at data folder, disk space, file limits and the clock.
    """
    cluster, machine = asyncio.run(check_cluster(bootstrap)), list(check_machine(data))
    bad, noted = (sum(one.verdict is kind for one in (*cluster, *machine)) for kind in (Verdict.BAD, Verdict.NOTE))
    if as_json:
        facts = {"cluster": [one._asdict() for one in cluster], "machine": [one._asdict() for one in machine]}
        print_json({"healthy": not bad, "bootstrap": bootstrap, "data": str(data.absolute()), **facts})
    else:
        _print_findings(f"Cluster at {bootstrap}", cluster)
        _print_findings(f"This machine, data in {data.absolute()}", machine)
        well = f"[yellow]nothing to mend, {counted(noted, 'thing')} to know[/]" if noted else "[green]all is well[/]"
        console().print(f"[red]{counted(bad, 'thing')} to mend[/]" if bad else well)
    if bad:
        raise typer.Exit(1)


def _print_findings(title: str, findings: Iterable[Finding]) -> None:
    from rich.markup import escape  # an IPv6 address in brackets must not be taken for a style

    out = console()
    marks = MARKS if can_show("✓✗") else ASCII_MARKS
    out.print(f"[bold]{escape(title)}[/]")
    for finding in findings:
        out.print(f"  {marks[finding.verdict]} {escape(finding.text)}")
        if finding.advice:
            out.print(f"      {escape(finding.advice)}")


# -- the cluster


async def check_cluster(bootstrap: str) -> list[Finding]:
    """From the bootstrap address to every broker's own."""
    findings: list[Finding] = []
    reached: Connection | None = None
    for host, port in parse_bootstrap(bootstrap):
        connection, finding = await _try_address(host, port)
        findings.append(finding)
        if connection is None:
            continue
        if reached is None:
            reached = connection
        else:
            connection.close()
    if reached is None:
        return findings
    reached.close()
    address = format_address(reached.host, reached.port)
    async with Cluster(address, connect_timeout_s=CONNECT_TIMEOUT_S, security=SECURITY.get()) as cluster:
        answer = await cluster.metadata(None)
        findings.append(_describe_cluster(cluster))
        for _, broker in sorted(cluster.brokers.items()):
            findings.append(await check_advertised(broker, (reached.host, reached.port), cluster.cluster_id))
        findings.append(_check_partitions(answer))
        nodes = sorted(cluster.brokers)
        log_dirs = await Operations(Admin(cluster=cluster)).log_dirs(nodes, ANSWER_LIMIT_S)
        findings += check_disks(log_dirs)
        told = {log_dir.node_id for log_dir in log_dirs}
        for node in nodes:
            if node not in told:
                findings.append(Finding(Verdict.NOTE, f"broker {node} does not say how full its disks are"))
    return findings


async def _try_address(host: str, port: int) -> tuple[Connection | None, Finding]:
    address = format_address(host, port)
    started = time.perf_counter()
    try:
        connection = await Connection.open(host, port, timeout_s=CONNECT_TIMEOUT_S, security=SECURITY.get())
    except SecurityFailed as error:
        return None, Finding(Verdict.BAD, str(error), "Clients' settings for this are given by --command-config FILE.")
    except ClientError as error:
        return None, Finding(Verdict.BAD, str(error), "Is a broker running there? Start one with: headrace up")
    took_ms = (time.perf_counter() - started) * 1000
    text = f"{address} answers in {took_ms:.1f} ms and serves {len(connection.versions)} kinds of request"
    return connection, Finding(Verdict.GOOD, text)


def _describe_cluster(cluster: Cluster) -> Finding:
    count = len(cluster.brokers)
    text = f"cluster {cluster.cluster_id}: {count} broker{'s' if count != 1 else ''}"
    if cluster.controller_id < 0:
        return Finding(
            Verdict.BAD, f"{text}, no controller", "Without a controller no topic can be made and no leader elected."
        )
    return Finding(Verdict.GOOD, f"{text}, controller {cluster.controller_id}")


async def check_advertised(broker: Broker, bootstrap: Address, cluster_id: str | None) -> Finding:
    """Clients use the bootstrap address once; then they go where each broker says it is."""
    what = f"broker {broker.node_id} advertises {broker.address}"
    try:
        connection = await Connection.open(
            broker.host, broker.port, timeout_s=CONNECT_TIMEOUT_S, security=SECURITY.get()
        )
    except SecurityFailed as error:
        return Finding(Verdict.BAD, f"{what}, and there: {error}")
    except ClientError as error:
        return Finding(Verdict.BAD, f"{what}, and there: {error}", explain_unreachable(broker, bootstrap))
    try:
        answer: m.MetadataResponse = await connection.request(
            ApiKey.METADATA, m.MetadataRequest(topics=[], allow_auto_topic_creation=False), timeout_s=CONNECT_TIMEOUT_S
        )
    except ClientError as error:
        return Finding(Verdict.BAD, f"{what}, and there: {error}")
    finally:
        connection.close()
    if answer.cluster_id != cluster_id:
        return Finding(
            Verdict.BAD,
            f"{what}, but there another cluster answers ({answer.cluster_id})",
            "A mapped port or an old address leads elsewhere: correct advertised.listeners.",
        )
    return Finding(Verdict.GOOD, f"{what}: reachable from here")


def explain_unreachable(broker: Broker, bootstrap: Address) -> str:
    """Why an advertised address may fail where the bootstrap address works."""
    mine = format_address(*bootstrap)
    setting = f"advertised.listeners=PLAINTEXT://{mine}"
    if broker.address == mine:
        return "It answered a moment ago: it may just have stopped."
    if is_loopback(broker.host) and not is_loopback(bootstrap[0]):
        return f"That is the broker's own loopback, which is another machine's here. Start it with {setting}"
    if broker.port != bootstrap[1]:
        return (
            f"You reached it on port {bootstrap[1]} but it advertises {broker.port}: a mapped port (container, NAT,"
            f" tunnel) must be advertised as clients see it. Start it with {setting}"
        )
    return (
        f"The name or address means nothing from here. Start the broker with {setting}, or make {broker.host} resolve."
    )


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _check_partitions(answer: m.MetadataResponse) -> Finding:
    partitions = [partition for topic in answer.topics for partition in topic.partitions]
    leaderless = sum(partition.leader_id < 0 for partition in partitions)
    lagging = sum(len(partition.isr_nodes) < len(partition.replica_nodes) for partition in partitions)
    text = f"{counted(len(answer.topics), 'topic')}, {counted(len(partitions), 'partition')}"
    if leaderless:
        return Finding(Verdict.BAD, f"{text}, {leaderless} without a leader", "See: headrace topic describe TOPIC")
    if lagging:
        return Finding(Verdict.NOTE, f"{text}, {lagging} with replicas that lag behind")
    return Finding(Verdict.GOOD, f"{text}, all with a leader and all replicas in sync")


def check_disks(log_dirs: Iterable[LogDir]) -> Iterator[Finding]:
    """Of all brokers, wherever they are: a broker that is full leads nothing."""
    enough = 0
    for disk in map(disk_space_of, log_dirs):
        text = (
            f"broker {disk.node_id}, {disk.path}: {size_text(disk.usable_bytes)} of {size_text(disk.total_bytes)} free"
        )
        if disk.full_in_s is not None:
            text += f", full in {time_text(disk.full_in_s)} if it goes on so"
        if disk.fill is Fill.OFFLINE:
            yield Finding(
                Verdict.BAD, f"broker {disk.node_id}, {disk.path}: offline", "Its disk failed: see the broker's log."
            )
        elif disk.fill is Fill.FULL:
            yield Finding(Verdict.BAD, f"{text}: full, and takes no records", ROOM_ADVICE)
        elif disk.fill is Fill.LOW:
            yield Finding(Verdict.NOTE, text, ROOM_ADVICE)
        else:
            enough += disk.fill is Fill.ENOUGH
    if enough:
        yield Finding(Verdict.GOOD, f"{counted(enough, 'log dir')} with enough room")


# -- this machine


def check_machine(data: Path) -> Iterator[Finding]:
    yield from check_folder(data)
    yield check_disk(data)
    yield check_descriptors(*resource.getrlimit(resource.RLIMIT_NOFILE))
    yield check_clock(time.time(), newest_file_s(data))


def check_folder(data: Path) -> Iterator[Finding]:
    """Whether a broker could use the folder, and whose it is."""
    if not data.exists():
        parent = next(folder for folder in data.absolute().parents if folder.exists())
        if os.access(parent, os.W_OK | os.X_OK):
            yield Finding(Verdict.GOOD, "the data folder does not exist yet and can be made")
        else:
            yield Finding(Verdict.BAD, f"the data folder cannot be made: no right to write in {parent}")
        return
    if not data.is_dir():
        yield Finding(Verdict.BAD, f"{data} is not a folder")
        return
    if os.statvfs(data).f_flag & os.ST_RDONLY:
        yield Finding(Verdict.BAD, f"{data} is on a file system that is mounted read-only")
        return
    if not os.access(data, os.R_OK | os.W_OK | os.X_OK):
        yield Finding(
            Verdict.BAD,
            f"no right to read and write {data}",
            f"It belongs to user {data.stat().st_uid}; you are {os.getuid()}.",
        )
        return
    foreign = next((path for path in data.rglob("*") if path.stat().st_uid != os.getuid()), None)
    if foreign is not None:
        yield Finding(Verdict.NOTE, f"{foreign} belongs to another user (id {foreign.stat().st_uid})")
    else:
        yield Finding(Verdict.GOOD, "the data folder can be read and written")
    identity = data / META_PROPERTIES
    if identity.exists():
        try:
            meta = MetaProperties.decode(identity.read_bytes())
        except (CorruptCheckpoint, OSError) as error:
            yield Finding(Verdict.BAD, f"{identity}: {error}")
            return
        yield Finding(Verdict.GOOD, f"it belongs to node {meta.node_id} of cluster {meta.cluster_id}")


def check_disk(data: Path) -> Finding:
    folder = next(path for path in (data.absolute(), *data.absolute().parents) if path.exists())
    stats = os.statvfs(folder)
    total, free = stats.f_blocks * stats.f_frsize, stats.f_bavail * stats.f_frsize
    text = f"{size_text(free)} of {size_text(total)} free on the disk"
    if free < FREE_BYTES_WANTED or free < total * FREE_SHARE_WANTED:
        return Finding(Verdict.BAD if free < FREE_BYTES_WANTED else Verdict.NOTE, text, ROOM_ADVICE)
    return Finding(Verdict.GOOD, text)


def check_descriptors(soft: int, hard: int) -> Finding:
    """A broker raises its soft limit to the hard one by itself, so the hard one counts."""
    limit = "no limit on" if hard == resource.RLIM_INFINITY else f"{hard:,}"
    text = f"{limit} open files (ulimit -n; {soft:,} now, raised by the broker itself)"
    if hard != resource.RLIM_INFINITY and hard < DESCRIPTORS_WANTED:
        return Finding(
            Verdict.NOTE,
            text,
            f"Each connection and each open segment takes one: raise the hard limit to {DESCRIPTORS_WANTED:,} or more.",
        )
    return Finding(Verdict.GOOD, text)


def newest_file_s(data: Path) -> float:
    """When the youngest log file was last written; 0 without one."""
    return max((path.stat().st_mtime for path in data.glob("*/*.log")), default=0.0)


def check_clock(now_s: float, newest_s: float) -> Finding:
    """Retention and timestamps go by the wall clock."""
    text = f"the clock says {time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(now_s))} UTC"
    if now_s < CLOCK_FLOOR_S:
        return Finding(
            Verdict.BAD,
            text,
            "That is too early to be true: set the clock before any record gets its timestamp from it.",
        )
    if newest_s > now_s + FUTURE_S_ALLOWED:
        return Finding(
            Verdict.BAD,
            f"{text}, but data was written {newest_s - now_s:.0f} s later than that",
            "The clock went back.",
        )
    return Finding(Verdict.GOOD, text)
