"""What can go wrong between a client and its brokers, in words for the person who reads them.

Every message says what failed and, where there is something to do about it, what to do.
"""

from collections.abc import Callable

from headrace.errors import Err


class NotReady(Exception):
    """No failure: a serializer has to ask somebody first. `learn` does that, and waits; then the same call works."""

    def __init__(self, learn: Callable[[], object]) -> None:
        super().__init__("a serializer has to ask for a schema first: call learn() where waiting is allowed")
        self.learn = learn


class ClientError(Exception):
    """Anything a client may raise on purpose."""


class BrokerUnreachable(ClientError):
    """No connection could be made at all."""


class ConnectionRefused(BrokerUnreachable):
    """Nobody listens at the address."""


class HostUnknown(BrokerUnreachable):
    """The name of the host cannot be resolved on this machine."""


class ConnectionLost(ClientError):
    """The connection closed before the answer came: the request may or may not have taken effect."""


class NotKafka(ClientError):
    """Something answered, but not in Kafka's protocol."""


class RequestTimedOut(ClientError):
    """No answer in time: the request may or may not have taken effect."""


class UnsupportedApi(ClientError):
    """The broker does not serve this request, or no version of it that both sides know."""


class SecurityFailed(ClientError):
    """TLS or a login did not come about: trying again with the same settings, or elsewhere, would not help."""


class SettingRefused(SecurityFailed):
    """A setting that cannot be used; `name` is the setting, as whoever gave it calls it."""

    def __init__(self, name: str, verdict: str, fix: str) -> None:
        super().__init__(name, verdict, fix)
        self.name = name

    def __str__(self) -> str:
        name, verdict, fix = self.args
        return f"option {name!r} {verdict}: {fix}"


class RequestFailed(ClientError):
    """A broker answered with an error. `error` is its code, `message` the broker's own words if it sent any."""

    error: Err
    message: str | None

    def __init__(self, what: str, error: Err, message: str | None = None) -> None:
        super().__init__(what, error, message)
        self.what = what
        self.error = error
        self.message = message

    def __str__(self) -> str:
        return f"{self.what}: {self.message or self.error.text} [{self.error.name}]"


_BY_CODE = {int(error): error for error in Err}


def err_of(code: int) -> Err:
    """The error of a code; one of the future counts as UNKNOWN_SERVER_ERROR."""
    return _BY_CODE.get(code, Err.UNKNOWN_SERVER_ERROR)


def check(code: int, what: str, message: str | None = None) -> None:
    """Raise RequestFailed unless `code` is 0."""
    if code == 0:
        return
    if code not in _BY_CODE and not message:
        message = f"error code {code}, which this version does not know"
    raise RequestFailed(what, err_of(code), message)
