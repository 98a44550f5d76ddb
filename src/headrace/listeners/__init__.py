"""Listeners: functions that are called with the records of topics, in order, again after failures, and put aside when
nothing helps. Decisions are in `core` (pure), one listener at work is `runner`, and `app` declares and runs them."""

from typing import TYPE_CHECKING

from headrace.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from headrace.listeners.app import App as App, Restart as Restart
    from headrace.listeners.core.retry import (
        BatchFailed as BatchFailed,
        Fatal as Fatal,
        ListenerRefused as ListenerRefused,
        Retry as Retry,
        Skip as Skip,
        Undecodable as Undecodable,
    )
    from headrace.listeners.handlers import Ack as Ack, Send as Send
    from headrace.listeners.idempotence import (
        MemoryStore as MemoryStore,
        SqliteStore as SqliteStore,
        TopicStore as TopicStore,
    )
    from headrace.listeners.runner import ListenerFailed as ListenerFailed
else:
    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        {
            "app": ["App", "Restart"],
            "core.retry": ["BatchFailed", "Fatal", "ListenerRefused", "Retry", "Skip", "Undecodable"],
            "handlers": ["Ack", "Send"],
            "idempotence": ["MemoryStore", "SqliteStore", "TopicStore"],
            "runner": ["ListenerFailed"],
        },
    )
