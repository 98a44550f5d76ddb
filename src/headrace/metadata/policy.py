"""What decides elections besides the partition itself: two topic options, found where they are set (topic, then
cluster, then the node's own file), and which brokers have room."""

import msgspec

from headrace.metadata.disk_space import DiskSpace
from headrace.metadata.image import BROKER_CONFIG, TOPIC_CONFIG, Image

UNCLEAN = "unclean.leader.election.enable"
MIN_ISR = "min.insync.replicas"


class ElectionPolicy(msgspec.Struct, frozen=True, gc=False):
    """What this controller's own configuration says."""

    node_id: int
    unclean_leader_election: bool = False
    min_insync_replicas: int = 1
    disk_space: DiskSpace = msgspec.field(default_factory=DiskSpace)
    """What brokers have told while this controller was active."""

    def _value(self, image: Image, topic: str, name: str) -> str | None:
        for resource, key in ((TOPIC_CONFIG, topic), (BROKER_CONFIG, str(self.node_id)), (BROKER_CONFIG, "")):
            value = image.config(resource, key).get(name)
            if value is not None:
                return value
        return None

    def unclean_election(self, image: Image, topic: str) -> bool:
        value = self._value(image, topic, UNCLEAN)
        return self.unclean_leader_election if value is None else value.strip().lower() == "true"

    def min_isr(self, image: Image, topic: str) -> int:
        """As configured: it may be more than there are replicas."""
        value = self._value(image, topic, MIN_ISR)
        return self.min_insync_replicas if value is None or not value.isdigit() else int(value)
