"""The broker's options as they are now: dynamic ones follow the metadata while the broker runs."""

import logging
from collections.abc import Callable
from typing import Any

from headrace.config import BrokerConfig
from headrace.metadata.image import BROKER_CONFIG, Image

logger = logging.getLogger("headrace.server")


class DynamicBrokerConfig:
    """Whoever keeps this, rather than the configuration itself, sees every change."""

    __slots__ = ("_listeners", "current")

    def __init__(self, config: BrokerConfig) -> None:
        self.current = config
        self._listeners: list[Callable[[BrokerConfig], None]] = []

    def __getitem__(self, name: str) -> Any:
        return self.current[name]

    def listen(self, listener: Callable[[BrokerConfig], None]) -> None:
        """Call `listener` with every new configuration."""
        self._listeners.append(listener)

    def load(self, image: Image) -> bool:
        """At start: take over what the last run knew. True if there was anything."""
        if image.config(BROKER_CONFIG, "") or image.config(BROKER_CONFIG, str(self.current.node_id)):
            self.follow(image)
            return True
        return False

    def follow(self, image: Image) -> None:
        """Go by the options that `image` has for all brokers and for this one."""
        config = self.current
        self.current = config.with_dynamic(
            image.config(BROKER_CONFIG, ""), image.config(BROKER_CONFIG, str(config.node_id))
        )
        for name, reason in self.current.ignored.items():
            logger.warning("dynamic option %s is ignored: %s", name, reason)
        for listener in self._listeners:
            listener(self.current)
