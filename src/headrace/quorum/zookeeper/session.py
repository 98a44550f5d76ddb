"""A session with a ZooKeeper ensemble by kazoo, whose threads are kept on this side: answers arrive on the loop."""

import asyncio
import logging
from asyncio import AbstractEventLoop, Future
from collections.abc import Callable, Sequence
from ssl import SSLContext
from typing import Any, NamedTuple

from headrace.quorum import QuorumError
from headrace.quorum.zookeeper import paths
from headrace.quorum.zookeeper.client import Disconnected, Refused, Stat, ZooKeeperError
from headrace.quorum.zookeeper.operations import Check, Create, Delete, Operation, Set

logger = logging.getLogger("headrace.zookeeper")

RETRY_S_MIN, RETRY_S_MAX = 0.05, 1.0
CLOSE_S = 5.0
INSTALL = "ZooKeeper needs kazoo: pip install 'headrace[zookeeper]'"


class Login(NamedTuple):
    scheme: str
    """`digest`, which is ZooKeeper's own, or `sasl`: DIGEST-MD5."""
    user: str
    password: str


class ZooKeeperOptions(NamedTuple):
    """The zookeeper.* options."""

    connect: str
    """host:port,.../chroot."""
    session_timeout_ms: int = 6_000
    connection_timeout_ms: int = 6_000
    tls: Callable[[], SSLContext] | None = None
    login: Login | None = None
    set_acl: bool = False
    """Whether what is made belongs to `login`, or to the certificate that `tls` shows."""


class KazooSession:
    """See `client.Session`. `open` first, which blocks; everything else on the loop given to it."""

    def __init__(self, options: ZooKeeperOptions, loop: AbstractEventLoop) -> None:
        try:
            from kazoo.client import KazooClient, KazooState
            from kazoo.retry import KazooRetry

            from headrace.quorum.zookeeper.kazoo_security import Acls, TlsHandler, login_options
        except ImportError:
            raise QuorumError(INSTALL) from None
        self._options = options
        self._loop = loop
        self._changed: Callable[[], None] | None = None
        self._connected_state = KazooState.CONNECTED
        servers, slash, chroot = options.connect.partition("/")
        self._chroot = slash + chroot
        self._handler = TlsHandler(options.tls)
        self._acls = Acls(options.set_acl)
        self._client: Any = KazooClient(
            hosts=servers,
            timeout=options.session_timeout_ms / 1000,
            connection_retry=KazooRetry(max_tries=-1, delay=RETRY_S_MIN, backoff=2, max_delay=RETRY_S_MAX),
            logger=_quiet_logger(),
            handler=self._handler,
            use_ssl=options.tls is not None,
            **login_options(options.login),
        )
        self._client.add_listener(self._state_changed)

    def open(self, *, prepare: bool = True) -> None:
        """Connect and, to `prepare`, make the nodes that everything else hangs from. Blocks; raises QuorumError."""
        from kazoo.exceptions import AuthFailedError, KazooException, NoAuthError
        from kazoo.handlers.threading import KazooTimeoutError

        at = self._options.connect
        try:
            self._client.start(timeout=self._options.connection_timeout_ms / 1000)
            self._client.chroot = self._chroot
            if prepare:
                self.prepare()
        except KazooTimeoutError:
            self._stop()
            why = self._handler.failure or "start one, or set zookeeper.connect"
            raise QuorumError(
                f"no ZooKeeper answers at {at} within {self._options.connection_timeout_ms} ms; {why}"
            ) from None
        except AuthFailedError:
            self._stop()
            raise QuorumError(
                f"ZooKeeper at {at} does not let this node log in: check zookeeper.sasl.jaas.config or zookeeper.digest"
            ) from None
        except NoAuthError:
            self._stop()
            raise QuorumError(
                f"ZooKeeper at {at} has znodes that belong to another login: use the same for all nodes"
                " (zookeeper.sasl.jaas.config, zookeeper.digest, or a certificate)"
            ) from None
        except (KazooException, OSError) as error:
            self._stop()
            raise QuorumError(f"ZooKeeper at {at} cannot be used: {error!r}") from None

    def prepare(self) -> None:
        """Blocks."""
        if self._chroot:
            # Kazoo takes a chroot for granted, and cannot make it once it has been told of it.
            self._client.chroot = ""
            self._client.ensure_path(self._chroot, acl=self._acls.of("/"))
            self._client.chroot = self._chroot
        for path in paths.PERSISTENT:
            self._client.ensure_path(path, acl=self._acls.of(path))

    def ensure(self, path: str, data: bytes) -> bytes:
        """What stands at `path`, after `data` was put there if nothing was. Blocks; raises QuorumError."""
        from kazoo.exceptions import KazooException, NodeExistsError

        try:
            try:
                self._client.create(path, data, acl=self._acls.of(path))
                return data
            except NodeExistsError:
                found: bytes = self._client.get(path)[0]
                return found
        except KazooException as error:
            raise QuorumError(f"ZooKeeper cannot be used: {error!r}") from None

    def read(self, path: str) -> bytes | None:
        """Blocks; raises QuorumError."""
        from kazoo.exceptions import KazooException, NoNodeError

        try:
            found: bytes = self._client.get(path)[0]
            return found
        except NoNodeError:
            return None
        except KazooException as error:
            raise QuorumError(f"ZooKeeper cannot be used: {error!r}") from None

    # ---- state

    @property
    def id(self) -> int:
        client_id = self._client.client_id
        return int(client_id[0] or 0) if client_id is not None else 0

    @property
    def connected(self) -> bool:
        return bool(self._client.state == self._connected_state)

    def listen(self, changed: Callable[[], None]) -> None:
        self._changed = changed

    def _state_changed(self, state: Any) -> None:
        self._to_loop(self._note, state)

    def _note(self, state: Any) -> None:
        from kazoo.client import KazooState

        if self._changed is not None:
            if state == KazooState.CONNECTED:
                logger.info("connected to ZooKeeper again, session %x", self.id)
            elif state == KazooState.LOST:
                logger.warning("the session with ZooKeeper has ended: others take this node for gone")
            else:
                logger.warning("no connection to ZooKeeper: changes of metadata wait, records go on")
        self._tell()

    def _watch_fired(self, event: Any) -> None:
        self._to_loop(self._tell)

    def _tell(self) -> None:
        if self._changed is not None:
            self._changed()

    def _to_loop(self, call: Callable[..., None], *arguments: Any) -> None:
        """From a thread of kazoo's."""
        try:
            self._loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError:
            pass  # the loop is closed: nobody waits any more

    # ---- requests

    def get(self, path: str, *, watch: bool = False) -> "Future[tuple[bytes, Stat] | None]":
        result = self._client.get_async(path, watch=self._watch_fired if watch else None)
        if watch:
            return self._answer(result, lambda: self._exists(path), _node)
        return self._answer(result, None, _node)

    def _exists(self, path: str) -> Any:
        """Watches a node that is not there; by the time of the answer it may be."""
        return self._client.exists_async(path, watch=self._watch_fired)

    def children(self, path: str, *, watch: bool = False) -> "Future[list[str] | None]":
        return self._answer(
            self._client.get_children_async(path, watch=self._watch_fired if watch else None), None, lambda found: found
        )

    def multi(self, operations: Sequence[Operation]) -> "Future[None]":
        transaction = self._client.transaction()
        for operation in operations:
            match operation:
                case Create(path, data, ephemeral, sequence):
                    transaction.create(path, data, self._acls.of(path), ephemeral=ephemeral, sequence=sequence)
                case Set(path, data, version):
                    transaction.set_data(path, data, version)
                case Delete(path, version):
                    transaction.delete(path, version)
                case Check(path, version):
                    transaction.check(path, version)
        return self._answer(transaction.commit_async(), None, lambda results: _check_all(operations, results))

    def _answer(
        self, result: Any, when_missing: Callable[[], Any] | None, value: Callable[[Any], Any]
    ) -> "Future[Any]":
        answer: Future[Any] = self._loop.create_future()
        # Many are sent without waiting for each: that one of them failed is told by the first.
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())
        result.rawlink(lambda done: self._to_loop(self._settle, answer, done, when_missing, value))
        return answer

    def _settle(
        self, answer: "Future[Any]", result: Any, when_missing: Callable[[], Any] | None, value: Callable[[Any], Any]
    ) -> None:
        from kazoo.exceptions import NoAuthError, NoNodeError

        if answer.done():
            return
        error = result.exception
        if error is None:
            try:
                answer.set_result(value(result.value))
            except Refused as refused:
                answer.set_exception(refused)
        elif isinstance(error, NoNodeError):
            if when_missing is None:
                answer.set_result(None)
            else:
                when_missing().rawlink(lambda done: self._to_loop(self._settle_missing, answer, done))
        elif isinstance(error, NoAuthError):
            answer.set_exception(ZooKeeperError("this login may not read or change what is there (NoAuth)"))
        else:
            answer.set_exception(Disconnected(f"{type(error).__name__}: {error}"))

    def _settle_missing(self, answer: "Future[Any]", result: Any) -> None:
        if answer.done():
            return
        if result.exception is not None:
            answer.set_exception(Disconnected(str(result.exception)))
        else:
            if result.value is not None:
                self._tell()  # it has come meanwhile: whoever was told that it is not there looks again
            answer.set_result(None)

    # ---- the end

    def abandon(self) -> None:
        """Before anything was built on it. Blocks."""
        self._stop()

    def _stop(self) -> None:
        self._client.stop()
        self._client.close()

    async def close(self) -> None:
        self._changed = None
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._loop.run_in_executor(None, self._stop)
        except TimeoutError:
            logger.warning("the ZooKeeper session was not closed in time: it ends by itself")


def _node(found: Any) -> tuple[bytes, Stat]:
    data, stat = found
    return data or b"", Stat(stat.version, stat.ephemeralOwner, stat.czxid)


def _check_all(operations: Sequence[Operation], results: Sequence[Any]) -> None:
    """Kazoo returns what refused an operation among the results, and raises nothing. Of those that were rolled back for
    it, only one says why."""
    errors = [(at, result) for at, result in enumerate(results) if isinstance(result, Exception)]
    if not errors and len(results) == len(operations):
        return
    from kazoo.exceptions import RolledBackError, RuntimeInconsistency

    why = [(at, error) for at, error in errors if not isinstance(error, RolledBackError | RuntimeInconsistency)]
    at, error = (why or errors or [(0, ValueError(f"{len(results)} results for {len(operations)} operations"))])[0]
    raise Refused(operations[min(at, len(operations) - 1)], type(error).__name__.removesuffix("Error"))


def _quiet_logger() -> logging.Logger:
    """Kazoo tells of each attempt to connect; what matters of that is told here."""
    found = logging.getLogger("headrace.zookeeper.kazoo")
    found.setLevel(logging.ERROR)
    return found
