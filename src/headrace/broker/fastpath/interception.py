"""A port for those who play faults between clients and handlers: only the test kit has one, and no option leads to it.

Without one, nothing on the way of a request knows that there could be.
"""

from typing import Protocol

from headrace.broker.fastpath.fast_path import FastPath
from headrace.broker.net.connection import Routing


class Interception(Protocol):
    """Who stands between clients and handlers."""

    def router(self, router: Routing) -> Routing:
        """Whom clients' connections hand their requests to, instead of `router`."""
        ...

    def fast_path(self) -> FastPath:
        """For one connection: what is to be intercepted must not be recognised."""
        ...
