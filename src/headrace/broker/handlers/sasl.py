"""SaslHandshake v0-1, SaslAuthenticate v0-2, where no login is asked for: a client that is set to log in learns so."""

from headrace.broker.net.request import Request
from headrace.errors import Err
from headrace.protocol import messages as m


def sasl_handshake(request: Request, message: m.SaslHandshakeRequest) -> m.SaslHandshakeResponse:
    return m.SaslHandshakeResponse(error_code=Err.ILLEGAL_SASL_STATE)


def sasl_authenticate(request: Request, message: m.SaslAuthenticateRequest) -> m.SaslAuthenticateResponse:
    return m.SaslAuthenticateResponse(
        error_code=Err.ILLEGAL_SASL_STATE,
        error_message="nobody has to log in at this listener: set security.protocol to PLAINTEXT",
    )
