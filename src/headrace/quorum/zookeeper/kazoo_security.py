"""Kazoo with TLS by a context of ours, a login, and ACLs on what it makes. Imported where kazoo is there."""

import socket
from collections.abc import Callable
from ssl import SSLContext, SSLError
from typing import TYPE_CHECKING, Any

from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.security import CREATOR_ALL_ACL, READ_ACL_UNSAFE

from headrace.quorum import QuorumError
from headrace.quorum.zookeeper import paths

if TYPE_CHECKING:
    from headrace.quorum.zookeeper.session import Login

SECRET = (paths.SCRAM, paths.TOKENS, paths.CHANGES, "/config/brokers", "/config/users")
"""What others may not even read: users, tokens, passwords among options, and changes of any of these."""


class TlsHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """Kazoo's own context takes keys from files alone, and hides why a server is not spoken to."""

    def __init__(self, tls: Callable[[], SSLContext] | None) -> None:
        super().__init__()
        self._tls = tls
        self.failure: str | None = None
        """Why the last connection was given up, if TLS was the reason."""

    def create_connection(self, *arguments: Any, **options: Any) -> Any:
        if self._tls is None:
            return super().create_connection(*arguments, **options)
        address, host, timeout = options["address"], options["hostname"], options["timeout"]
        plain = socket.create_connection(address, timeout)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            wrapped = self._tls().wrap_socket(plain, server_hostname=host)
            self.failure = None
            return wrapped
        except (SSLError, OSError) as error:
            plain.close()
            reason = getattr(error, "verify_message", None) or getattr(error, "reason", None) or str(error)
            self.failure = f"TLS with {host} failed: {reason}"
            raise


def login_options(login: "Login | None") -> dict[str, Any]:
    """What a KazooClient is told. Raises QuorumError."""
    if login is None:
        return {}
    if login.scheme == "digest":
        return {"auth_data": [("digest", f"{login.user}:{login.password}")]}
    try:
        import puresasl  # type: ignore[import-untyped]  # noqa: F401
    except ImportError:
        raise QuorumError("a login to ZooKeeper by SASL needs pure-sasl: pip install 'headrace[zookeeper]'") from None
    options = {"mechanism": "DIGEST-MD5", "username": login.user, "password": login.password}
    return {"sasl_options": options}


class Acls:
    """As Kafka's `zookeeper.set.acl`: whoever is logged in owns what it makes."""

    def __init__(self, enabled: bool) -> None:
        self._open = [*CREATOR_ALL_ACL, *READ_ACL_UNSAFE] if enabled else None
        self._secret = list(CREATOR_ALL_ACL) if enabled else None

    def of(self, path: str) -> Any:
        return self._secret if path.startswith(SECRET) else self._open
