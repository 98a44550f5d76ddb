"""A simulated network: hosts, listeners and links that delay, chop, stall, drop and reset.

Connections behave as TCP does for a program: a stream in order, bounded buffers, refusal, reset, and silence when
the other host or the way to it is gone. Times are virtual seconds, sizes bytes.
"""

import asyncio
import errno
import os
from collections.abc import Callable, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from headrace.testing.simulator.process import CURRENT, Process

if TYPE_CHECKING:
    from headrace.testing.simulator.transport import Endpoint, Pipe

CONNECT_TIMEOUT_SECONDS = 127.0
"""How long Linux repeats a SYN that nobody answers."""
OUTSIDE = "outside"
"""The host of code that belongs to no simulated process: the test itself."""
EVERYWHERE = frozenset({"", "0.0.0.0", "::"})
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
FIRST_EPHEMERAL_PORT = 32768

# Kernels and packets belong to no process: they go on when the one they serve is frozen or dead.
NOBODY = Context()

ProtocolFactory = Callable[[], asyncio.BaseProtocol]


@dataclass(slots=True)
class Conditions:
    """How a link treats what it carries."""

    delay_s: tuple[float, float] = (0.00005, 0.001)
    spike_chance: float = 0.01
    """A segment that is lost and sent again: it and all behind it are late by up to `spike_s`."""
    spike_s: float = 0.2
    chunk_bytes: tuple[int, int] | None = None
    """A write arrives in pieces of random sizes in this range; None: as large as the buffers allow."""
    reset_chance: float = 0.0
    """Per arriving piece: the connection is reset after a random part of it."""
    window_bytes: int = 262_144
    """What the two kernels hold between a writer and a reader that does not read."""


CALM = Conditions(delay_s=(0.0001, 0.0001), spike_chance=0.0)


class Link:
    """One direction between two hosts. Blocked, it keeps what it is given and delivers once it is open again."""

    __slots__ = ("_parked", "blocked", "conditions", "network")

    def __init__(self, network: "Network", conditions: Conditions) -> None:
        self.network = network
        self.conditions = conditions
        self.blocked = False
        self._parked: list[tuple[Callable[..., object], tuple[object, ...]]] = []

    def delay_s(self) -> float:
        random, conditions = self.network.random, self.conditions
        delay_s = random.uniform(*conditions.delay_s)
        if conditions.spike_chance and random.random() < conditions.spike_chance:
            delay_s += random.random() * conditions.spike_s
        return delay_s

    def carry(self, callback: Callable[..., object], *arguments: object) -> None:
        """Call at the far end once the link's delay has passed and it is not blocked."""
        self.network.loop.call_later(self.delay_s(), self.arrive, callback, *arguments, context=NOBODY)

    def arrive(self, callback: Callable[..., object], *arguments: object) -> None:
        if self.blocked:
            self._parked.append((callback, arguments))
        else:
            callback(*arguments)

    def unblock(self) -> None:
        self.blocked = False
        parked, self._parked = self._parked, []
        for callback, arguments in parked:
            self.carry(callback, *arguments)


class Listener(asyncio.AbstractServer):
    """What create_server returns."""

    def __init__(self, network: "Network", factory: ProtocolFactory, host: str, port: int) -> None:
        self.network = network
        self.factory = factory
        self.host = host
        self.port = port
        self.context = copy_context()
        self.owner = CURRENT.get()
        self.serving = True
        """Bound already, but refusing until then: what `Runtime.listen` promises."""
        self._closed: asyncio.Future[None] = network.loop.create_future()

    @property
    def sockets(self) -> tuple[()]:
        return ()

    @property
    def sockname(self) -> tuple[str, int]:
        return self.host, self.port

    def close(self) -> None:
        self.network.unlisten(self)
        if not self._closed.done():
            self._closed.set_result(None)

    def is_serving(self) -> bool:
        return self.serving and not self._closed.done()

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self.network.loop

    async def start_serving(self) -> None:
        self.serving = True

    async def serve_forever(self) -> None:
        try:
            await asyncio.shield(self._closed)
        finally:
            self.close()

    async def wait_closed(self) -> None:
        await asyncio.shield(self._closed)


class Network:
    """All hosts and what connects them."""

    def __init__(self, loop: asyncio.AbstractEventLoop, random: Random) -> None:
        self.loop = loop
        self.random = random
        self.default_conditions = Conditions()
        self.down: set[str] = set()
        """Hosts without power: they answer nothing, not even with a reset."""
        self.endpoints: dict[int, Endpoint] = {}
        """Open ends of connections, by a number given in order of creation."""
        self._links: dict[tuple[str, str], Link] = {}
        self._listeners: dict[tuple[str, int], Listener] = {}
        self._unanswered: dict[str, list[Pipe]] = {}
        self._next_port: dict[str, int] = {}
        self._next_endpoint = 0

    # Links and faults

    def link(self, source: str, target: str) -> Link:
        key = (source, target)
        found = self._links.get(key)
        if found is None:
            found = self._links[key] = Link(self, CALM if source == target else self.default_conditions)
        return found

    def set_conditions(self, conditions: Conditions, source: str | None = None, target: str | None = None) -> None:
        """For one direction of one link, or, without hosts, for every link between different hosts."""
        if source is not None and target is not None:
            self.link(source, target).conditions = conditions
            return
        self.default_conditions = conditions
        for (one, other), link in self._links.items():
            if one != other:
                link.conditions = conditions

    def block(self, source: str, target: str) -> None:
        """One way only: nothing from `source` reaches `target`."""
        self.link(source, target).blocked = True

    def partition(self, group: Sequence[str], others: Sequence[str]) -> None:
        """Both ways between two groups of hosts."""
        for one in group:
            for other in others:
                self.block(one, other)
                self.block(other, one)

    def heal(self) -> None:
        """Open every link; what was on its way arrives."""
        for link in list(self._links.values()):
            if link.blocked:
                link.unblock()

    def stall(self, source: str, target: str, seconds: float) -> None:
        """Block one direction for a while."""
        self.block(source, target)
        self.loop.call_later(seconds, self.heal_link, source, target, context=NOBODY)

    def heal_link(self, source: str, target: str) -> None:
        self.link(source, target).unblock()

    def reset(self, host: str, other: str | None = None) -> int:
        """Reset the connections of a host, or those between two; returns how many."""
        ends = [end for end in self.connections(host) if other is None or end.peer.host == other]
        for end in ends:
            end.break_connection()
        return len(ends)

    def connections(self, host: str) -> "list[Endpoint]":
        return [end for end in self.endpoints.values() if end.host == host and end.outgoing is not None]

    # Processes and power

    def release(self, process: Process) -> None:
        """A process died: its kernel closes its sockets, and the others hear of it."""
        self._drop_listeners(process)
        for end in [end for end in self.endpoints.values() if end.owner is process]:
            end.process_died()

    def power_off(self, process: Process) -> None:
        """A machine died: its sockets are gone and nobody is told."""
        self.down.add(process.host)
        self._drop_listeners(process)
        for end in [end for end in self.endpoints.values() if end.owner is process]:
            end.vanish()

    def power_on(self, host: str) -> None:
        """The host answers again: segments repeated to it since it went down meet a kernel that knows nothing of
        them."""
        self.down.discard(host)
        for pipe in self._unanswered.pop(host, ()):
            pipe.back.carry(pipe.writer.reset_by_peer)

    def unanswered(self, pipe: "Pipe") -> None:
        self._unanswered.setdefault(pipe.reader.host, []).append(pipe)

    def _drop_listeners(self, process: Process) -> None:
        for key in [key for key, listener in self._listeners.items() if listener.owner is process]:
            del self._listeners[key]

    # Listening and connecting

    def listen(self, factory: ProtocolFactory, hosts: Sequence[str | None], port: int) -> Listener:
        here = self.here()
        for host in hosts:
            if host is not None and self.resolve(host) != here:
                raise OSError(errno.EADDRNOTAVAIL, f"{here} has no address {host}")
        if port == 0:
            port = self.free_port(here)
        if (here, port) in self._listeners:
            raise OSError(errno.EADDRINUSE, f"{here}:{port} is in use")
        listener = self._listeners[here, port] = Listener(self, factory, here, port)
        return listener

    def unlisten(self, listener: Listener) -> None:
        key = (listener.host, listener.port)
        if self._listeners.get(key) is listener:
            del self._listeners[key]

    async def connect(
        self, factory: ProtocolFactory, host: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        from headrace.testing.simulator.transport import Handshake

        here, there = self.here(), self.resolve(host)
        handshake = Handshake(self, here, there, port)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_SECONDS):
                end = await handshake.run()
        except TimeoutError:
            handshake.give_up()
            raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT), f"{there}:{port}") from None
        except BaseException:
            handshake.give_up()
            raise
        if end.gone:
            raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
        return end.start(factory)

    def listener(self, host: str, port: int) -> Listener | None:
        found = self._listeners.get((host, port))
        return found if found is not None and found.serving else None

    def here(self) -> str:
        process = CURRENT.get()
        return OUTSIDE if process is None else process.host

    def resolve(self, host: str) -> str:
        return self.here() if host in EVERYWHERE or host in LOOPBACK else host

    def free_port(self, host: str) -> int:
        port = self._next_port.get(host, FIRST_EPHEMERAL_PORT)
        while (host, port) in self._listeners:
            port += 1
        self._next_port[host] = port + 1
        return port

    def register(self, end: "Endpoint") -> int:
        self._next_endpoint += 1
        self.endpoints[self._next_endpoint] = end
        return self._next_endpoint
