"""The load: produce, fetch and single-request latency over plain sockets, as fast as one Python process can. Answers
to equal requests are equally long, so they are counted by bytes and only looked into now and then."""

import os
import select
import socket
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from bench import wire
from bench.measure import cpu_s

IN_FLIGHT = 5
RECEIVE_BYTES = 1 << 18


@dataclass(frozen=True)
class Rate:
    """What a run did, and what the broker spent on it."""

    seconds: float
    requests: int
    payload_bytes: int
    broker_cpu_s: float
    own_cpu_s: float

    @property
    def mb_per_s(self) -> float:
        return self.payload_bytes / self.seconds / 1e6

    @property
    def requests_per_s(self) -> float:
        return self.requests / self.seconds

    @property
    def cpu_s_per_gb(self) -> float:
        return self.broker_cpu_s / (self.payload_bytes / 1e9) if self.payload_bytes else 0.0

    @property
    def cpu_us_per_request(self) -> float:
        return self.broker_cpu_s / self.requests * 1e6 if self.requests else 0.0

    @property
    def generator_share(self) -> float:
        """How busy the generator was: near 1, it is the generator that was measured."""
        return self.own_cpu_s / self.seconds


def connect(port: int) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), timeout=60)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def receive_exactly(sock: socket.socket, buffer: memoryview) -> None:
    got = 0
    while got < len(buffer):
        count = sock.recv_into(buffer[got:])
        if count == 0:
            raise EOFError("the broker closed the connection")
        got += count


def receive_frame(sock: socket.socket, buffer: bytearray) -> memoryview:
    """A frame into `buffer`, which must be large enough."""
    view = memoryview(buffer)
    receive_exactly(sock, view[:4])
    (length,) = struct.unpack_from(">i", view)
    receive_exactly(sock, view[:length])
    return view[:length]


def measured(pid: int | Sequence[int], run: Callable[[], tuple[int, int]]) -> Rate:
    """Runs it between two readings of the clocks; it returns requests and payload bytes. Several processes are added
    up."""
    pids = [pid] if isinstance(pid, int) else pid
    broker, own, start = sum(map(cpu_s, pids)), time.process_time(), time.perf_counter()
    requests, payload_bytes = run()
    seconds = time.perf_counter() - start
    return Rate(seconds, requests, payload_bytes, sum(map(cpu_s, pids)) - broker, time.process_time() - own)


def produce(
    port: int, pid: int | Sequence[int], topic: str, requests: Sequence[bytes], payload_bytes: int, *,
    seconds: float, connections: int = 1, in_flight: int = IN_FLIGHT,
) -> Rate:  # fmt: skip
    """Sends `requests` in turn, so many in flight on each connection; `payload_bytes` is what each carries."""
    with ExitStack() as stack:
        socks = [stack.enter_context(connect(port)) for _ in range(connections)]
        probe = bytearray(1 << 16)
        socks[0].sendall(requests[0])
        answer = receive_frame(socks[0], probe)
        if error := wire.produce_error(answer, topic):
            raise RuntimeError(f"produce to {topic} on port {port}: error {error}")
        answer_bytes = len(answer) + 4
        return measured(pid, lambda: _pump(socks, topic, requests, payload_bytes, answer_bytes, seconds, in_flight))


def _pump(
    socks: Sequence[socket.socket], topic: str, requests: Sequence[bytes], payload_bytes: int,
    answer_bytes: int, seconds: float, in_flight: int,
) -> tuple[int, int]:  # fmt: skip
    poll = select.epoll()
    by_fd = {sock.fileno(): sock for sock in socks}
    pending = dict.fromkeys(by_fd, 0)  # answers still owed per connection
    partial = dict.fromkeys(by_fd, 0)  # bytes of an answer that has not fully arrived
    many, turn, answered = len(requests), 0, 0
    end = time.perf_counter() + seconds
    for fd, sock in by_fd.items():
        poll.register(fd, select.EPOLLIN)
        for _ in range(in_flight):
            sock.sendall(requests[turn % many])
            turn += 1
        pending[fd] = in_flight
    while pending:
        is_over = time.perf_counter() >= end
        for fd, _ in poll.poll():
            sock = by_fd[fd]
            data = sock.recv(RECEIVE_BYTES)
            if not data:
                raise EOFError("the broker closed the connection")
            whole, partial[fd] = divmod(partial[fd] + len(data), answer_bytes)
            if len(data) == answer_bytes and (error := wire.produce_error(memoryview(data)[4:], topic)):
                raise RuntimeError(f"produce to {topic}: error {error}")
            answered += whole
            if is_over:
                pending[fd] -= whole
                if pending[fd] == 0:
                    del pending[fd]
                    poll.unregister(fd)
            elif whole == 1 or many == 1:
                sock.sendall(requests[turn % many] * whole if many == 1 else requests[turn % many])
                turn += whole
            else:
                for _ in range(whole):
                    sock.sendall(requests[turn % many])
                    turn += 1
    poll.close()
    return answered, answered * payload_bytes


def fetch(
    port: int,
    pid: int,
    topic: str,
    *,
    seconds: float,
    max_bytes: int = 1 << 20,
    connections: int = 1,
    isolation: int = 0,
) -> Rate:
    """Reads partition 0 from its beginning, again and again; `isolation` 1: committed records only."""

    def run() -> tuple[int, int]:
        with ExitStack() as stack:
            socks = {sock.fileno(): sock for sock in (stack.enter_context(connect(port)) for _ in range(connections))}
            offsets = dict.fromkeys(socks, 0)
            buffer = bytearray(max_bytes + (4 << 20))
            requests = total = 0
            poll = select.epoll()
            end = time.perf_counter() + seconds
            for fd, sock in socks.items():
                poll.register(fd, select.EPOLLIN)
                sock.sendall(wire.fetch(topic, 0, 0, max_bytes, isolation))
            waiting = set(socks)
            while waiting:
                for fd, _ in poll.poll():
                    error, high_watermark, records = wire.fetched(receive_frame(socks[fd], buffer), topic)
                    if error:
                        raise RuntimeError(f"fetch of {topic}: error {error}")
                    requests, total = requests + 1, total + len(records)
                    after = wire.next_offset(records)
                    offsets[fd] = 0 if after is None or after >= high_watermark else after
                    if time.perf_counter() < end:
                        socks[fd].sendall(wire.fetch(topic, 0, offsets[fd], max_bytes, isolation))
                    else:
                        waiting.discard(fd)
                        poll.unregister(fd)
            poll.close()
            return requests, total

    return measured(pid, run)


def latency(port: int, topic: str, request: bytes, *, seconds: float, pause_s: float = 0.0) -> list[float]:
    """Microseconds of each request, one at a time on one connection, sorted."""
    taken: list[float] = []
    buffer = bytearray(1 << 16)
    with connect(port) as sock:
        end = time.perf_counter() + seconds
        while (start := time.perf_counter()) < end:
            sock.sendall(request)
            answer = receive_frame(sock, buffer)
            taken.append((time.perf_counter() - start) * 1e6)
            if error := wire.produce_error(answer, topic):
                raise RuntimeError(f"produce to {topic}: error {error}")
            if pause_s:
                time.sleep(pause_s)
    return sorted(taken)


def kernel_cost(frame_bytes: int, folder: str, seconds: float) -> tuple[float, float]:
    """What no broker can go below: receive on loopback, CRC and write to a file. (MB/s, CPU seconds per GB)."""
    import crc32c

    server = socket.create_server(("127.0.0.1", 0))
    child = os.fork()
    if child == 0:
        try:
            out, data, end = (
                socket.create_connection(server.getsockname()),
                os.urandom(frame_bytes),
                time.time() + seconds,
            )
            while time.time() < end:
                out.sendall(data)
        finally:
            os._exit(0)
    conn, _ = server.accept()
    view, total = memoryview(bytearray(frame_bytes)), 0
    path = os.path.join(folder, "kernel-cost.bin")
    file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    start, cpu = time.perf_counter(), time.process_time()
    while count := conn.recv_into(view):
        crc32c.crc32c(view[:count])
        os.write(file, view[:count])
        total += count
    spent, cpu = time.perf_counter() - start, time.process_time() - cpu
    os.close(file)
    os.unlink(path)
    conn.close()
    server.close()
    os.waitpid(child, 0)
    return total / spent / 1e6, cpu / (total / 1e9)
