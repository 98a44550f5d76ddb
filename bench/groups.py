"""Consumer groups side by side: a rebalance of fifty, commits, loading a coordinator, and Kafka's ConsumerPerformance.
Members are sockets of this process that speak the classic protocol, so that nearly all the work is the broker's."""

import re
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource
from tests.reference.apache import run_tool

from bench import load, wire
from bench.brokers import APACHE, Broker, started
from bench.clients import RECORD_BYTES, figures
from bench.measure import cpu_s, median, memory_mb, percentile
from bench.report import Part
from headrace.metadata.names import OFFSETS_TOPIC
from headrace.protocol import messages as m
from headrace.protocol.api import API, ApiKey
from headrace.protocol.frames import encode_request

if TYPE_CHECKING:
    from bench.parts import Bench, Measures

MEMBERS = 50
GROUPS, GROUP_MEMBERS = 1000, 5
FORMED_AT_ONCE = 100
SESSION_MS = 300_000
"""Longer than a thousand groups take to form, which send no heartbeats meanwhile."""
HEARTBEAT_S = 3.0
"""What clients do by default."""
COMMITTERS = (1, 16, 64)
LOADED = (200_000, 1_000_000)
"""Offsets to load: both brokers, then Headrace alone."""
COMMIT_PARTITIONS = 100
REQUEST_PARTITIONS = 1000
LOADING, NOT_COORDINATOR, UNKNOWN_MEMBER, MEMBER_ID_REQUIRED = 14, 16, 25, 79
JOIN_VERSION, SYNC_VERSION, COMMIT_VERSION, LIST_VERSION, FIND_VERSION = 5, 3, 7, 2, 1
BUFFER = bytearray(1 << 20)
PROBE_S = 0.002


def send(sock: socket.socket, key: ApiKey, version: int, message: Any) -> None:
    sock.sendall(b"".join(encode_request(API[key], version, 0, "bench", message)))


def receive(sock: socket.socket, key: ApiKey, version: int) -> Any:
    answer = bytes(load.receive_frame(sock, BUFFER))
    begin = 4 + API[key].response_header_version(version)  # newer headers end with a count of tags, which is 0
    return API[key].response.decoder(version)(answer, begin, len(answer))[0]


def ask(sock: socket.socket, key: ApiKey, version: int, message: Any) -> Any:
    send(sock, key, version, message)
    return receive(sock, key, version)


def find_coordinator(sock: socket.socket, group: str) -> None:
    """Has the offsets topic created, and waits until the group's shard is served."""
    while ask(sock, ApiKey.FIND_COORDINATOR, FIND_VERSION, m.FindCoordinatorRequest(key=group)).error_code:
        time.sleep(0.1)
    while ask(sock, ApiKey.HEARTBEAT, 0, m.HeartbeatRequest(group_id=group, member_id="x")).error_code in (
        LOADING,
        NOT_COORDINATOR,
    ):
        time.sleep(0.1)


# A rebalance


class Member:
    def __init__(self, port: int, group: str) -> None:
        self.sock = load.connect(port)
        self.group = group
        self.member_id = ""
        self.generation = -1

    def join(self) -> None:
        kind = m.JoinGroupRequest
        protocol = kind.JoinGroupRequestProtocol(name="range", metadata=bytes(40))
        request = kind(
            group_id=self.group, session_timeout_ms=SESSION_MS, rebalance_timeout_ms=60_000, member_id=self.member_id,
            protocol_type="consumer", protocols=[protocol],
        )  # fmt: skip
        send(self.sock, ApiKey.JOIN_GROUP, JOIN_VERSION, request)

    def joined(self) -> Any:
        answer = receive(self.sock, ApiKey.JOIN_GROUP, JOIN_VERSION)
        # One that the group has given up, since it came too late to a round, begins anew.
        self.member_id = "" if answer.error_code == UNKNOWN_MEMBER else answer.member_id or self.member_id
        self.generation = answer.generation_id
        return answer

    def sync(self, members: Sequence[str]) -> None:
        kind = m.SyncGroupRequest
        rows = [kind.SyncGroupRequestAssignment(member_id=member, assignment=bytes(60)) for member in members]
        request = kind(group_id=self.group, generation_id=self.generation, member_id=self.member_id, assignments=rows)
        send(self.sock, ApiKey.SYNC_GROUP, SYNC_VERSION, request)

    def heartbeat(self) -> bytes:
        kind = m.HeartbeatRequest
        request = kind(group_id=self.group, generation_id=self.generation, member_id=self.member_id)
        return b"".join(encode_request(API[ApiKey.HEARTBEAT], 0, 0, "bench", request))

    def synced(self) -> int:
        return int(receive(self.sock, ApiKey.SYNC_GROUP, SYNC_VERSION).error_code)


def rebalance(members: Sequence[Member]) -> bool:
    """All join and get their assignment. False: a late member began another one."""
    for member in members:
        member.join()
    return synced(members, joined(members))


def synced(members: Sequence[Member], answers: Sequence[Any]) -> bool:
    """All who have joined get their assignment."""
    if any(answer.error_code for answer in answers) or len({answer.generation_id for answer in answers}) > 1:
        return False
    for member, answer in zip(members, answers):
        member.sync([row.member_id for row in answer.members])
    errors = [member.synced() for member in members]  # all of them: each has its answer to read
    return not any(errors)


def joined(members: Sequence[Member]) -> list[Any]:
    """The answers of all. While a group forms, those who were answered join again, since the others wait for them."""
    answers: dict[Member, Any] = {}
    by_socket = {member.sock.fileno(): member for member in members}
    while len(answers) < len(members):
        poll = select.poll()
        for descriptor, member in by_socket.items():
            if member not in answers:
                poll.register(descriptor, select.POLLIN)
        ready = poll.poll(200)
        for descriptor, _ in ready:
            answers[by_socket[descriptor]] = by_socket[descriptor].joined()
        if not ready:
            for member in answers:
                member.join()
            answers.clear()
    return [answers[member] for member in members]


def rebalances(broker: Broker, seconds: float) -> "Measures":
    with ExitStack() as stack:
        group = f"rebalance-{time.time_ns()}"
        members = [Member(broker.port, group) for _ in range(MEMBERS)]
        for member in members:
            stack.enter_context(member.sock)
        find_coordinator(members[0].sock, group)
        for member in members:
            member.join()
            assert member.joined().error_code == MEMBER_ID_REQUIRED
        while not rebalance(members):
            pass
        taken: list[float] = []
        cpu, end = cpu_s(broker.pid), time.perf_counter() + seconds
        while time.perf_counter() < end or len(taken) < 3:
            begin = time.perf_counter()
            if rebalance(members):
                taken.append(time.perf_counter() - begin)
        spent = cpu_s(broker.pid) - cpu
    return {"rebalance ms": median(taken) * 1000, "CPU ms/rebalance": spent / len(taken) * 1000}


def group_rebalance(bench: "Bench") -> Part:
    part = Part("group-rebalance", f"A rebalance of {MEMBERS} members of the classic protocol, all joining anew")
    part.rows = bench.in_turns(("headrace", APACHE), rebalances)
    part.goal(f"rebalance of {MEMBERS} members: time", "rebalance ms", at_most=1)
    part.goal(f"rebalance of {MEMBERS} members: CPU", "CPU ms/rebalance", at_most=1)
    return part


# Many groups


def heartbeats(broker: Broker, seconds: float) -> "Measures":
    """A thousand groups of five, each member with a connection of its own, once they are stable."""
    with ExitStack() as stack:
        run = time.time_ns()
        groups = [[Member(broker.port, f"scale-{run}-{n}") for _ in range(GROUP_MEMBERS)] for n in range(GROUPS)]
        everybody = [member for group in groups for member in group]
        for member in everybody:
            stack.enter_context(member.sock)
        for group in groups:
            find_coordinator(group[0].sock, group[0].group)
        begin = time.perf_counter()
        for first in range(0, GROUPS, FORMED_AT_ONCE):
            form(groups[first : first + FORMED_AT_ONCE])
        formed_s = time.perf_counter() - begin
        beats = [member.heartbeat() for member in everybody]
        spent = load.measured(broker.pid, lambda: _beat(everybody, beats, max(seconds, HEARTBEAT_S)))
    return {
        "formed s": formed_s, "heartbeats/s": spent.requests_per_s, "CPU µs/heartbeat": spent.cpu_us_per_request,
        "share of a core %": 100 * spent.broker_cpu_s / spent.seconds, **memory_mb(broker.pid),
    }  # fmt: skip


def form(groups: Sequence[Sequence[Member]]) -> None:
    """Groups wait seconds for late members of their first round, so several form at once; too many would be late."""
    everybody = [member for group in groups for member in group]
    for member in everybody:
        member.join()
        assert member.joined().error_code == MEMBER_ID_REQUIRED
    for member in everybody:
        member.join()
    for group in groups:
        if not synced(group, joined(group)):
            while not rebalance(group):
                pass


def _beat(members: Sequence[Member], requests: Sequence[bytes], seconds: float) -> tuple[int, int]:
    """Every member in its turn, once per interval."""
    begin, count = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - begin) < seconds:
        due = int(elapsed / HEARTBEAT_S * len(members))
        if count >= due:
            time.sleep(PROBE_S)
        for number in range(count, due):
            members[number % len(members)].sock.sendall(requests[number % len(members)])
        for number in range(count, due):
            error = receive(members[number % len(members)].sock, ApiKey.HEARTBEAT, 0).error_code
            assert not error, f"Heartbeat: error {error}"
        count = max(count, due)
    return count, 0


def group_members(bench: "Bench") -> Part:
    part = Part(
        "group-members", f"{GROUPS:,} groups of {GROUP_MEMBERS} members, each with a heartbeat every {HEARTBEAT_S:g} s"
    )
    part.rows = bench.in_turns(("headrace", APACHE), heartbeats)
    part.goal("heartbeats of 5,000 members: CPU", "share of a core %", at_most=1)
    return part


# Commits


def commit_request(group: str, topic: str, partitions: Sequence[int], offset: int) -> bytes:
    kind = m.OffsetCommitRequest
    rows = [
        kind.OffsetCommitRequestPartition(partition_index=index, committed_offset=offset, committed_metadata="")
        for index in partitions
    ]
    topics = [kind.OffsetCommitRequestTopic(name=topic, partitions=rows)]
    request = kind(group_id=group, generation_id_or_member_epoch=-1, topics=topics)
    return b"".join(encode_request(API[ApiKey.OFFSET_COMMIT], COMMIT_VERSION, 0, "bench", request))


def check_commit(answer: bytes) -> None:
    found = API[ApiKey.OFFSET_COMMIT].response.decoder(COMMIT_VERSION)(answer, 4, len(answer))[0]
    errors = {row.error_code for topic in found.topics for row in topic.partitions}
    if errors != {0}:
        raise RuntimeError(f"OffsetCommit: errors {errors}")


def commits_run(connections: int) -> Callable[[Broker, float], "Measures"]:
    def run(broker: Broker, seconds: float) -> "Measures":
        with ExitStack() as stack:
            topic = stack.enter_context(broker.topic("bench-commits", 10))
            socks = [stack.enter_context(load.connect(broker.port)) for _ in range(connections)]
            find_coordinator(socks[0], "commits")
            requests = {s.fileno(): (s, commit_request("commits", topic, [n % 10], 5)) for n, s in enumerate(socks)}
            done = load.measured(broker.pid, lambda: pump(requests, seconds, check_commit))
        return {"commits/s": done.requests_per_s, "CPU µs/commit": done.cpu_us_per_request}

    return run


def pump(
    requests: dict[int, tuple[socket.socket, bytes]], seconds: float, check: Callable[[bytes], None]
) -> tuple[int, int]:
    """One request in flight per connection: a consumer waits for its commit."""
    poll, buffer, count = select.epoll(), bytearray(1 << 16), 0
    for fd, (sock, request) in requests.items():
        poll.register(fd, select.EPOLLIN)
        sock.sendall(request)
    end, waiting = time.perf_counter() + seconds, len(requests)
    while waiting:
        for fd, _ in poll.poll():
            sock, request = requests[fd]
            answer = load.receive_frame(sock, buffer)
            if count % 1000 == 0:
                check(bytes(answer))
            count += 1
            if time.perf_counter() < end:
                sock.sendall(request)
            else:
                poll.unregister(fd)
                waiting -= 1
    poll.close()
    return count, 0


def flushed_commits_run(connections: int) -> Callable[[Broker, float], "Measures"]:
    """Apache Kafka made to sync its commits, as Headrace always does."""

    def run(broker: Broker, seconds: float) -> "Measures":
        with load.connect(broker.port) as sock:
            find_coordinator(sock, "commits")
        flush_every(broker, "1")
        try:
            return commits_run(connections)(broker, seconds)
        finally:
            flush_every(broker, str((1 << 63) - 1))

    return run


def flush_every(broker: Broker, messages: str) -> None:
    entry = ConfigEntry("flush.messages", messages, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, OFFSETS_TOPIC, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{broker.port}"})
    admin.incremental_alter_configs([resource])[resource].result(30)


def beside_produces_run(connections: int) -> Callable[[Broker, float], "Measures"]:
    """Commits, and what they are held against in the same turn: one record, synced, sent in the same way by the same
    client.

    How many share a sync, which is nearly all that either costs, depends on how soon the client goes on.
    """
    records = wire.random_batch(1, RECORD_BYTES)
    commits = commits_run(connections)

    def run(broker: Broker, seconds: float) -> "Measures":
        with ExitStack() as stack:
            topic = stack.enter_context(broker.topic("bench-small"))
            socks = [stack.enter_context(load.connect(broker.port)) for _ in range(connections)]
            requests = {sock.fileno(): (sock, wire.produce(topic, [0], records)) for sock in socks}

            def check(answer: bytes) -> None:
                if error := wire.produce_error(memoryview(answer), topic):
                    raise RuntimeError(f"produce to {topic}: error {error}")

            done = load.measured(broker.pid, lambda: pump(requests, seconds, check))
        measured = commits(broker, seconds)
        return measured | {
            "produces/s": done.requests_per_s, "CPU µs/produce": done.cpu_us_per_request,
            "commit / produce, CPU": measured["CPU µs/commit"] / done.cpu_us_per_request,
        }  # fmt: skip

    return run


def group_commits(bench: "Bench") -> Part:
    part = Part("group-commits", "OffsetCommit of one partition, one at a time on each connection")
    for connections in COMMITTERS:
        runs = {
            "": (("headrace", APACHE), commits_run(connections)),
            ", flush.messages=1": ((APACHE,), flushed_commits_run(connections)),
            ", beside produces": (("headrace-fsync",), beside_produces_run(connections)),
        }
        for kind, (names, run) in runs.items():
            for name, row in bench.in_turns(names, run).items():
                part.rows[f"{name}{kind}, {connections}"] = row
        on = f"on {connections} connection{'s' * (connections > 1)}"
        part.goal(
            f"synced commits {on}: commits/s", "commits/s", at_least=1,
            of=f"headrace, {connections}", against=f"{APACHE}, flush.messages=1, {connections}",
        )  # fmt: skip
        part.goal(
            f"synced commits {on}: CPU per commit", "CPU µs/commit", at_most=1,
            of=f"headrace, {connections}", against=f"{APACHE}, flush.messages=1, {connections}",
        )  # fmt: skip
    part.notes.append(
        "Headrace answers once the commit is on disk (fdatasync, shared by all that wait), Kafka by default once it is"
        " in memory, with `flush.messages=1` on disk too. `produce` is one synced record of 100 B, sent the same way in"
        " the same turn."
    )
    return part


# Loading


def write_offsets(port: int, count: int) -> None:
    wire.create_topic(port, "bench-load", COMMIT_PARTITIONS, {})
    with load.connect(port) as sock:
        find_coordinator(sock, "load-0")
        buffer = bytearray(1 << 20)
        for number in range(count // COMMIT_PARTITIONS):
            sock.sendall(commit_request(f"load-{number}", "bench-load", range(COMMIT_PARTITIONS), number))
            answer = bytes(load.receive_frame(sock, buffer))
            if number == 0:
                check_commit(answer)


def loaded_groups(port: int) -> int:
    """How many groups there are, -1 while some are still loading."""
    with load.connect(port) as sock:
        answer = ask_large(sock, ApiKey.LIST_GROUPS, LIST_VERSION, m.ListGroupsRequest())
    return -1 if answer.error_code else len(answer.groups)


def ask_large(sock: socket.socket, key: ApiKey, version: int, message: Any) -> Any:
    send(sock, key, version, message)
    head = memoryview(bytearray(4))
    load.receive_exactly(sock, head)
    body = memoryview(bytearray(struct.unpack(">i", head)[0]))
    load.receive_exactly(sock, body)
    return API[key].response.decoder(version)(bytes(body), 4, len(body))[0]


def load_time(bench: "Bench", name: str, count: int) -> "Measures":
    folder = bench.folder / f"load-{name}-{count}"
    broker = started(name, folder)
    assert broker.process is not None
    write_offsets(broker.port, count)
    broker.process.stop()
    broker = started(name, folder) if name == APACHE else _restarted(broker)
    begin, cpu = time.perf_counter(), cpu_s(broker.pid)
    with probed(broker.port) as taken:
        while loaded_groups(broker.port) < count // COMMIT_PARTITIONS:
            time.sleep(0.01)
        load_s = time.perf_counter() - begin
    taken.sort()
    result = {
        "load s": load_s, "CPU s": cpu_s(broker.pid) - cpu, "others wait, p99 ms": percentile(taken, 0.99) * 1000,
        "others wait, worst ms": taken[-1] * 1000, **memory_mb(broker.pid),
    }  # fmt: skip
    assert broker.process is not None
    broker.process.stop()
    return result


@contextmanager
def probed(port: int) -> Iterator[list[float]]:
    """How long somebody else's small requests take meanwhile: a loop that is kept busy answers late."""
    taken: list[float] = []
    ended = threading.Event()
    request = b"".join(
        encode_request(API[ApiKey.HEARTBEAT], 0, 0, "bench", m.HeartbeatRequest(group_id="probe", member_id="x"))
    )

    def probe() -> None:
        buffer = bytearray(1 << 10)
        with load.connect(port) as sock:
            while not ended.wait(PROBE_S):
                begin = time.perf_counter()
                sock.sendall(request)
                load.receive_frame(sock, buffer)
                taken.append(time.perf_counter() - begin)

    thread = threading.Thread(target=probe)
    thread.start()
    try:
        yield taken
    finally:
        ended.set()
        thread.join()


def _restarted(broker: Broker) -> Broker:
    assert broker.process is not None
    broker.process.start()
    return Broker(broker.name, broker.process.port, broker.process.pid, 0.0, broker.process)


def group_load(bench: "Bench") -> Part:
    part = Part(
        "group-load", "A coordinator loading committed offsets after a restart, 100 a group; from the first answer on"
    )
    both, alone = LOADED
    part.rows[f"headrace, {both:,}"] = load_time(bench, "headrace", both)
    if bench.brokers.with_apache:
        part.rows[f"{APACHE}, {both:,}"] = load_time(bench, APACHE, both)
    part.rows[f"headrace, {alone:,}"] = load_time(bench, "headrace", alone)
    part.goal(
        f"{alone:,} offsets against {both:,}: time to load", "load s", at_most=1.5 * alone / both,
        of=f"headrace, {alone:,}", against=f"headrace, {both:,}",
    )  # fmt: skip
    part.notes.append(
        "Others wait: a Heartbeat to another group every 2 ms while the load runs, from sending to answer."
    )
    return part


# Kafka's tool


def consumer_performance(broker: Broker, seconds: float) -> "Measures":
    count = max(int(seconds * 300_000), 300_000)
    with broker.topic("bench-consumer-performance") as topic:
        records = wire.random_batch(500, RECORD_BYTES)
        requests = [wire.produce(topic, [0], records)]
        with load.connect(broker.port) as sock:
            buffer = bytearray(1 << 16)
            for _ in range(count // 500):
                sock.sendall(requests[0])
                load.receive_frame(sock, buffer)
        cpu = cpu_s(broker.pid)
        out = run_tool(
            "org.apache.kafka.tools.ConsumerPerformance", "--bootstrap-server", f"127.0.0.1:{broker.port}",
            "--topic", topic, "--num-records", str(count // 500 * 500), "--group", f"perf-{time.time_ns()}",
            "--timeout", "30000", timeout_s=600,
        )  # fmt: skip
        row = re.findall(r"^[\d\-: ,]+?, [\d\-: ,]+?, ([\d., ]+)$", out, re.M)[-1]
        cells = [float(cell) for cell in row.split(",")]
        read, fetch_s = cells[2], cells[5] / 1000
        return figures(int(read), fetch_s, cpu_s(broker.pid) - cpu)


def group_consumer(bench: "Bench") -> Part:
    part = Part("group-consumer", "Kafka's ConsumerPerformance: one consumer in a group, records of 100 B")
    part.rows = bench.in_turns(("headrace", APACHE), consumer_performance)
    part.goal("ConsumerPerformance: records/s", "records/s", at_least=1)
    return part


PARTS = {
    "group-rebalance": group_rebalance,
    "group-members": group_members,
    "group-commits": group_commits,
    "group-load": group_load,
    "group-consumer": group_consumer,
}
