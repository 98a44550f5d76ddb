"""Administration asked of any broker: handed on to the active controller as it came, in an envelope (KIP-590).

The envelope holds the client's own request, header and all, and comes back with the whole answer: so what a client is
told does not depend on which broker it asked. On the node of the active controller there is nothing to hand on.
"""

import ipaddress
from collections.abc import Awaitable
from struct import Struct
from typing import Any

from headrace.broker.cluster.controller_channel import ControllerChannel
from headrace.broker.controller.active import Caller
from headrace.broker.controller.refusals import refusal
from headrace.broker.dynamic_config import DynamicBrokerConfig
from headrace.broker.net.request import Request
from headrace.client.errors import err_of
from headrace.errors import Err, KafkaError
from headrace.protocol import messages as m
from headrace.protocol.api import API, DATA, ApiKey
from headrace.protocol.frames import decode_response, encode_request
from headrace.protocol.primitives import ProtocolError

FORWARD_LANE = "forward"
HEADER_BYTES = 10
"""Of a request in front of its client id."""
USER, ANONYMOUS = "User", "ANONYMOUS"

_int16 = Struct(">h")
_head = Struct(">i")


class Forwarding:
    """Has clients' requests answered by whoever is the active controller."""

    def __init__(self, channel: ControllerChannel, config: DynamicBrokerConfig) -> None:
        self._channel = channel
        self._config = config

    def forward(self, request: Request, message: Any) -> Awaitable[Any]:
        """The answer to a client's request. Its bytes are copied before it first waits."""
        if not request.is_whole:
            return self.forward_part(request, message)
        key = ApiKey(request.api_key)
        local = self._channel.local
        if local is not None:
            return local.handle(key, message, Caller(request.version, request.connection))
        data = bytes(request.view[request.pos - HEADER_BYTES : request.end])
        return self._in_envelope(key, request.version, data, message, request.connection.peer_host)

    def forward_part(self, request: Request, message: Any) -> Awaitable[Any]:
        """Like `forward`, for a message that is no longer the one in the request's bytes."""
        key = ApiKey(request.api_key)
        local = self._channel.local
        if local is not None:
            return local.handle(key, message, Caller(request.version, request.connection))
        frame = b"".join(encode_request(API[key], request.version, request.correlation_id, None, message))
        return self._in_envelope(key, request.version, frame[_head.size :], message, request.connection.peer_host)

    async def _in_envelope(self, key: ApiKey, version: int, data: bytes, message: Any, peer_host: str) -> Any:
        envelope = m.EnvelopeRequest(
            request_data=data, request_principal=_principal(), client_host_address=_address(peer_host)
        )
        try:
            answer = await self._channel.request(
                ApiKey.ENVELOPE, envelope, timeout_ms=self._config["request.timeout.ms"], lane=FORWARD_LANE
            )
            if answer.error_code:
                # What went wrong between broker and controller is no business of the client's.
                error = err_of(answer.error_code)
                raise KafkaError(error if error is Err.UNSUPPORTED_VERSION else Err.UNKNOWN_SERVER_ERROR)
            return decode_response(API[key], version, answer.response_data)[1]
        except ProtocolError as error:
            return refusal(
                key, message, KafkaError(Err.UNKNOWN_SERVER_ERROR, f"the controller's answer is unreadable: {error}")
            )
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
