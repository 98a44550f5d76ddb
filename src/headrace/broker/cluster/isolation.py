"""Whether this node itself is the one that is gone: then what it knows is old, and its clients should ask others."""

import logging

from headrace.broker.cluster.lifecycle import Lifecycle
from headrace.broker.metadata_cache import MetadataCache
from headrace.broker.replicas.hosted import Replicas
from headrace.broker.replicas.replica_manager import ReplicaManager
from headrace.clock import Clock
from headrace.protocol.primitives import ProtocolError
from headrace.quorum import Quorum

logger = logging.getLogger("headrace.node")


class Isolation:
    """For one of three reasons: nobody is heard of any more; there is no room to write down what is heard; or the
    controller has fenced this node, which does not hear what that has changed."""

    def __init__(
        self,
        clock: Clock,
        session_ms: int,
        metadata: MetadataCache,
        quorum: Quorum,
        lifecycle: Lifecycle,
        replicas: Replicas,
        manager: ReplicaManager,
    ) -> None:
        self._clock = clock
        self._session_ms = session_ms
        self._metadata = metadata
        self._quorum = quorum
        self._lifecycle = lifecycle
        self._replicas = replicas
        self._manager = manager
        self.is_behind = False
        """What this node knows is out of date: others may lead what it takes itself to lead."""

    @property
    def cut_off(self) -> bool:
        """Whether no controller answers, and no follower asks for records.

        Then others lead what this node takes itself to lead, and its clients should look for them. With only the
        controllers gone, nothing is decided anywhere, and leaders go on with their followers.
        """
        if not self._lifecycle.out_of_touch:
            return False
        since_ms = self._clock.monotonic_ms() - self._session_ms
        led = [partition.leader for partition in self._replicas if partition.leader is not None]
        followers = [follower for leader in led for follower in leader.followers.values()]
        return bool(followers) and all(follower.fetched_ms < since_ms for follower in followers)

    def look_at_metadata(self) -> None:
        """A node that does not know who leads now must not have readers wait for what others are told."""
        why = None
        if self._quorum.is_starved:
            why = "there is no room for metadata"
        elif not self._quorum.hears_changes and self._lifecycle.running and self._lifecycle.is_fenced:
            why = "this node has been fenced, and does not hear who leads now"
        is_behind = why is not None and not self._metadata.alone
        if is_behind != self.is_behind:
            self.is_behind = is_behind
            if is_behind:
                logger.critical("%s: this node leads only what no other replica can", why)
                self._manager.lead_nothing()
            else:
                self._manager.lead_all(self._metadata.image)

    def check(self) -> None:
        """Hang up on whoever asks this node for what it has had no room to hear of: clients then ask another."""
        if self.is_behind:
            raise ProtocolError("what this node knows is out of date: others have to be asked who leads")
