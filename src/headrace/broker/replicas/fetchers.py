"""Which of this node's fetchers copies which partition: `num.replica.fetchers` for each leader that it follows."""

from zlib import crc32

from headrace.broker.replicas.partition import Partition
from headrace.broker.replicas.replica_copy import Key
from headrace.broker.replicas.replica_fetcher import FetcherParts, LeaderFetcher, Limits


class Fetchers:
    """All of them; made when a leader is first followed, and gone with the last partition copied from there."""

    def __init__(self, parts: FetcherParts) -> None:
        self._parts = parts
        self._config = parts.config
        self._limits = Limits.of(parts.config)
        self._fetchers: dict[tuple[int, int], LeaderFetcher] = {}
        self._where: dict[Key, LeaderFetcher] = {}

    def follow(self, partition: Partition) -> None:
        """Copy `partition` from the leader it has now."""
        key = partition.topic_id, partition.index
        # Not by the index alone: topics with one partition would all share one fetcher.
        number = (crc32(partition.topic_id) + partition.index) % self._config["num.replica.fetchers"]
        where = partition.leader_id, number
        fetcher = self._fetchers.get(where)
        self._leave(key, fetcher)
        if fetcher is None:
            fetcher = self._fetchers[where] = LeaderFetcher(self._parts, partition.leader_id, self._limits)
        self._where[key] = fetcher
        fetcher.add(partition)
        fetcher.retry_now()

    def follow_log_starts(self) -> None:
        """What leaders have deleted goes here too, where nothing is copied for want of room."""
        for fetcher in self._fetchers.values():
            fetcher.follow_log_starts()

    def unfollow(self, partition: Partition) -> None:
        self._leave((partition.topic_id, partition.index), None)

    def _leave(self, key: Key, unless: LeaderFetcher | None) -> None:
        fetcher = self._where.get(key)
        if fetcher is None or fetcher is unless:
            return
        del self._where[key]
        fetcher.remove(key)
        if not fetcher.copies:
            # Not later: to a leader that is gone the connection would be tried for ever.
            fetcher.close()
            self._fetchers = {where: one for where, one in self._fetchers.items() if one is not fetcher}

    def brokers_changed(self, brokers: list[int]) -> None:
        """These have registered anew or come back: whoever waits to try again need not wait."""
        for (leader_id, _), fetcher in self._fetchers.items():
            if leader_id in brokers:
                fetcher.retry_now()

    def close(self) -> None:
        for fetcher in self._fetchers.values():
            fetcher.close()
        self._fetchers.clear()
        self._where.clear()

    def __len__(self) -> int:
        return len(self._fetchers)
