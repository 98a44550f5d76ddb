"""A request that a broker has handed on to the active controller in an envelope (KIP-590): opened, decided, and closed
again."""

from struct import Struct
from typing import Any

from headrace.broker.controller.active import ActiveController, Caller
from headrace.broker.controller.refusals import is_from_inactive
from headrace.broker.controller.registry import FORWARDED
from headrace.broker.net.connection import Connection
from headrace.broker.net.router import encode_answer
from headrace.errors import Err, KafkaError
from headrace.protocol import messages as m
from headrace.protocol.api import API, Api
from headrace.protocol.headers import decode_request_header
from headrace.protocol.primitives import ProtocolError

_head = Struct(">i")


async def answer_envelope(
    controller: ActiveController, message: m.EnvelopeRequest, connection: Connection | None = None
) -> m.EnvelopeResponse:
    """Envelope v0. `connection` is None where it comes from this node itself."""
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
