"""Administration asked of any broker: handed on to the active controller as it came, in an envelope (KIP-590).

The envelope holds the client's own request, header and all, and comes back with the whole answer: so what a client is
told does not depend on which broker it asked. On the node of the active controller there is nothing to hand on.
"""

import ipaddress
from collections.abc import Awaitable
from struct import Struct
from typing import TYPE_CHECKING, Any

from headrace.broker.connection import Connection, Request
from headrace.broker.controller import ActiveController, Caller
from headrace.broker.handlers.controller_registry import FORWARDED
from headrace.broker.handlers.refusals import is_from_inactive, refusal
from headrace.broker.large_requests import RequestPart
from headrace.broker.router import encode_answer
from headrace.client.errors import err_of
from headrace.errors import Err, KafkaError
from headrace.protocol import messages as m
from headrace.protocol.api import API, DATA, Api, ApiKey
from headrace.protocol.frames import decode_response, encode_request
from headrace.protocol.headers import decode_request_header
from headrace.protocol.primitives import ProtocolError

if TYPE_CHECKING:
    from headrace.broker.server import Broker

FORWARD_LANE = "forward"
HEADER_BYTES = 10
"""Of a request in front of its client id."""
USER, ANONYMOUS = "User", "ANONYMOUS"

_int16 = Struct(">h")
_head = Struct(">i")


def forward(broker: "Broker", request: Request, message: Any) -> Awaitable[Any]:
    """Have a client's request answered by whoever is the active controller. Its bytes are copied before it first waits."""
    key = ApiKey(request.api_key)
    if broker.controller is not None and broker.node.quorum.is_active:
        return broker.controller.handle(key, message, Caller(request.version, request.connection))
    if isinstance(request, RequestPart):
        return forward_part(broker, request, message)
    data = bytes(request.view[request.pos - HEADER_BYTES : request.end])
    return _in_envelope(broker, key, request.version, data, message, request.connection.peer_host)


def forward_part(broker: "Broker", request: Request, message: Any) -> Awaitable[Any]:
    """Like `forward`, for a message that is no longer the one in the request's bytes."""
    key = ApiKey(request.api_key)
    if broker.controller is not None and broker.node.quorum.is_active:
        return broker.controller.handle(key, message, Caller(request.version, request.connection))
    frame = b"".join(encode_request(API[key], request.version, request.correlation_id, None, message))
    return _in_envelope(
        broker, key, request.version, frame[_head.size :], message, request.connection.peer_host
    )


async def _in_envelope(
    broker: "Broker", key: ApiKey, version: int, data: bytes, message: Any, peer_host: str
) -> Any:
    envelope = m.EnvelopeRequest(
        request_data=data, request_principal=_principal(), client_host_address=_address(peer_host)
    )
    try:
        answer = await broker.channel.request(
            ApiKey.ENVELOPE, envelope, timeout_ms=broker.config["request.timeout.ms"], lane=FORWARD_LANE
        )
        if answer.error_code:
            # What went wrong between broker and controller is no business of the client's.
            error = err_of(answer.error_code)
            raise KafkaError(error if error is Err.UNSUPPORTED_VERSION else Err.UNKNOWN_SERVER_ERROR)
        return decode_response(API[key], version, answer.response_data)[1]
    except ProtocolError as error:
        return refusal(key, message, KafkaError(Err.UNKNOWN_SERVER_ERROR, f"the controller's answer is unreadable: {error}"))
    except KafkaError as error:
        return refusal(key, message, error)


def _principal() -> bytes:
    data = m.DefaultPrincipalData(type=USER, name=ANONYMOUS, token_authenticated=False)
    return _int16.pack(0) + DATA["DefaultPrincipalData"].encode(data, 0)


def _address(host: str) -> bytes:
    try:
        return ipaddress.ip_address(host.partition("%")[0]).packed
    except ValueError:
        return bytes(4)  # a simulated network has names only


# ---- the other side


def envelope(broker: "Broker", request: Request, message: m.EnvelopeRequest) -> Awaitable[m.EnvelopeResponse]:
    """Envelope v0, on a controller's listener."""
    assert broker.controller is not None
    return answer_envelope(broker.controller, message, request.connection)


async def answer_envelope(
    controller: ActiveController, message: m.EnvelopeRequest, connection: Connection | None = None
) -> m.EnvelopeResponse:
    """Open, decide, and close again."""
    data = memoryview(bytes(message.request_data))
    try:
        api, version, correlation_id, body = _opened(data)
    except (ProtocolError, KafkaError) as error:
        code = error.error if isinstance(error, KafkaError) else Err.INVALID_REQUEST
        return m.EnvelopeResponse(error_code=code)
    answer = await controller.handle(api.key, body, Caller(version, connection))
    if is_from_inactive(answer):
        # The broker, not its client, has to look for another controller.
        return m.EnvelopeResponse(error_code=Err.NOT_CONTROLLER)
    frame = encode_answer(api, version, correlation_id, answer)
    return m.EnvelopeResponse(response_data=frame[_head.size :])


def _opened(data: memoryview) -> tuple[Api, int, int, Any]:
    api_key, version, correlation_id, _, pos = decode_request_header(data, 0, len(data))
    api = API.get(api_key)
    if api is None or api.key not in FORWARDED:
        raise KafkaError(Err.INVALID_REQUEST, f"API {api_key} cannot be forwarded")
    if not api.min_version <= version <= api.latest_stable:
        raise KafkaError(Err.UNSUPPORTED_VERSION)
    body, _ = api.request.decoder(version)(data, pos, len(data))
    return api, version, correlation_id, body
