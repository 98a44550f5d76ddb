"""A model of a ZooKeeper ensemble: znodes with versions, sessions, ephemeral nodes, watches and multis, with delays and
lost connections. It keeps ZooKeeper's promises and no others: one order of all writes, each session's requests in
order, watches that fire once and not beyond a connection, and no word on what a lost connection has carried."""

from asyncio import AbstractEventLoop, Future
from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, NamedTuple

from headrace.quorum.zookeeper.client import Disconnected, Refused, Stat
from headrace.quorum.zookeeper.operations import ANY_VERSION, Check, Create, Delete, Operation, Set

Request = Callable[[], Any]


class ZNode(NamedTuple):
    data: bytes
    stat: Stat


class ZooKeeperModel:
    """The ensemble. `delay_s` bounds how long a request, and an answer, may be on its way."""

    def __init__(self, loop: AbstractEventLoop, random: Random, delay_s: float = 0.005) -> None:
        self.loop = loop
        self.random = random
        self.delay_s = delay_s
        self.nodes: dict[str, ZNode] = {"/": ZNode(b"", Stat(0, 0, 0))}
        self.zxid = 0
        self.history: list[tuple[int, list[Operation]]] = []
        """Every multi that took effect, and whose session it was."""
        self._sessions: dict[int, ModelSession] = {}
        self._next_session = 0
        self._sequence = 0
        self._children: dict[str, dict[str, None]] = {}

    def session(self) -> "ModelSession":
        return ModelSession(self)

    def begin(self, session: "ModelSession") -> int:
        self._next_session += 1
        self._sessions[self._next_session] = session
        return self._next_session

    def expire(self, session_id: int) -> None:
        """A session has been silent for too long: what was ephemeral goes with it."""
        self._sessions.pop(session_id, None)
        for path in [path for path, node in self.nodes.items() if node.stat.owner == session_id and session_id]:
            self.zxid += 1
            self._put(path, None)
            self._fire(path)

    def is_alive(self, session_id: int) -> bool:
        return session_id in self._sessions

    def children(self, path: str) -> list[str]:
        return list(self._children.get(path, ()))

    def ensure(self, path: str, data: bytes = b"") -> None:
        """For a world to begin with: a node and all above it."""
        parts = path.strip("/").split("/")
        for count in range(1, len(parts) + 1):
            one = "/" + "/".join(parts[:count])
            if one not in self.nodes:
                self._put(one, ZNode(data if one == path else b"", Stat(0, 0, self.zxid)))

    # ---- what is done, all or nothing

    def multi(self, session_id: int, operations: Sequence[Operation]) -> None:
        """Raises Refused; then nothing has changed."""
        self.zxid += 1
        operations = [self._numbered(operation) for operation in operations]
        before: list[tuple[str, ZNode | None]] = []
        try:
            for operation in operations:
                was = self.nodes.get(operation.path)
                self._apply(session_id, operation)
                before.append((operation.path, was))
        except Refused:
            for path, node in reversed(before):
                self._put(path, node)
            raise
        self.history.append((session_id, list(operations)))
        for operation in operations:
            if not isinstance(operation, Check):
                self._fire(operation.path)

    def _numbered(self, operation: Operation) -> Operation:
        if not isinstance(operation, Create) or not operation.sequence:
            return operation
        self._sequence += 1
        return Create(f"{operation.path}{self._sequence:010d}", operation.data, operation.ephemeral)

    def _apply(self, session_id: int, operation: Operation) -> None:
        node = self.nodes.get(operation.path)
        if isinstance(operation, Create):
            parent = operation.path.rpartition("/")[0] or "/"
            if node is not None:
                raise Refused(operation, "NodeExists")
            if parent not in self.nodes:
                raise Refused(operation, "NoNode")
            owner = session_id if operation.ephemeral else 0
            self._put(operation.path, ZNode(operation.data, Stat(0, owner, self.zxid)))
            return
        if node is None:
            raise Refused(operation, "NoNode")
        if operation.version not in (ANY_VERSION, node.stat.version):
            raise Refused(operation, "BadVersion")
        if isinstance(operation, Set):
            self.nodes[operation.path] = ZNode(operation.data, node.stat._replace(version=node.stat.version + 1))
        elif isinstance(operation, Delete):
            if self.children(operation.path):
                raise Refused(operation, "NotEmpty")
            self._put(operation.path, None)

    def _put(self, path: str, node: ZNode | None) -> None:
        parent, _, name = path.rpartition("/")
        if node is None:
            del self.nodes[path]
            del self._children[parent or "/"][name]
        else:
            self.nodes[path] = node
            self._children.setdefault(parent or "/", {})[name] = None

    def _fire(self, path: str) -> None:
        parent = path.rpartition("/")[0] or "/"
        for session in list(self._sessions.values()):
            session.fire(path, parent)


class ModelSession:
    """One client's side; see `headrace.quorum.zookeeper.client.Session`."""

    renew_watches = True
    """False plants a fault: watches are lost, and nobody is told."""

    def __init__(self, model: ZooKeeperModel) -> None:
        self._model = model
        self._changed: Callable[[], None] = lambda: None
        self._watches: set[tuple[str, str]] = set()
        self._requests: deque[tuple[Request, Future[Any]]] = deque()
        self._answers: deque[tuple[Future[Any], Any, bool]] = deque()
        self.late_s = 0.0
        """How much later than usual this client hears anything; what it asks for arrives as usual."""
        self._linked = True
        self._id = model.begin(self)

    # ---- faults

    def cut(self) -> None:
        """The connection breaks. What was on its way there may have arrived."""
        if not self._linked:
            return
        self._linked = False
        arrived = self._model.random.randint(0, len(self._requests))
        for _ in range(arrived):
            self._execute()
        for _, answer in self._requests:
            self._answers.append((answer, Disconnected("ConnectionLoss"), True))
        self._requests.clear()
        answers, self._answers = self._answers, deque()
        for answer, _, _ in answers:
            if not answer.done():
                answer.set_exception(Disconnected("ConnectionLoss"))
        self._watches.clear()
        if self.renew_watches:
            self._soon(self._changed)

    def heal(self) -> None:
        """Connected again: with the old session, or with a new one if that has expired."""
        if not self._model.is_alive(self._id):
            self._id = self._model.begin(self)
        self._linked = True
        if self.renew_watches:
            self._soon(self._changed)

    # ---- the port

    @property
    def id(self) -> int:
        return self._id

    @property
    def connected(self) -> bool:
        return self._linked

    def listen(self, changed: Callable[[], None]) -> None:
        self._changed = changed

    def get(self, path: str, *, watch: bool = False) -> "Future[tuple[bytes, Stat] | None]":
        def read() -> Any:
            if watch:
                self._watches.add(("node", path))
            return tuple(self._model.nodes[path]) if path in self._model.nodes else None

        return self._ask(read)

    def children(self, path: str, *, watch: bool = False) -> "Future[list[str] | None]":
        def read() -> Any:
            if watch:
                self._watches.add(("children", path))
            return self._model.children(path) if path in self._model.nodes else None

        return self._ask(read)

    def multi(self, operations: Sequence[Operation]) -> "Future[None]":
        return self._ask(lambda: self._model.multi(self._id, operations))

    async def close(self) -> None:
        self._changed = lambda: None
        self.cut()
        self._model.expire(self._id)

    # ---- on its way

    def _ask(self, request: Request) -> "Future[Any]":
        answer: Future[Any] = self._model.loop.create_future()
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())
        if not self._linked:
            answer.set_exception(Disconnected("ConnectionLoss"))
            return answer
        self._requests.append((request, answer))
        self._soon(self._arrive)
        return answer

    def _soon(self, call: Callable[[], None], late_s: float = 0.0) -> None:
        model = self._model
        model.loop.call_later(late_s + model.random.random() * model.delay_s, call)

    def _arrive(self) -> None:
        if self._requests and self._linked:
            self._execute()
            self._soon(self._deliver, self.late_s)

    def _execute(self) -> None:
        request, answer = self._requests.popleft()
        if not self._model.is_alive(self._id):
            self._answers.append((answer, Disconnected("SessionExpired"), True))
            return
        try:
            self._answers.append((answer, request(), False))
        except Refused as refused:
            self._answers.append((answer, refused, True))

    def _deliver(self) -> None:
        if self._answers:
            answer, value, failed = self._answers.popleft()
            if not answer.done():
                (answer.set_exception if failed else answer.set_result)(value)

    def fire(self, path: str, parent: str) -> None:
        found = self._watches & {("node", path), ("children", parent)}
        if found and self._linked:
            self._watches -= found
            self._soon(self._changed, self.late_s)
