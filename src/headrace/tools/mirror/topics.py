"""Keeps the target's topics like the source's: there, with as many partitions, with the same options."""

import re
from collections.abc import Callable

from headrace.client.admin.admin import Admin, ConfigSource, Resource
from headrace.client.errors import ClientError, RequestFailed
from headrace.client.net.cluster import Topic
from headrace.errors import Err
from headrace.tools.ranges import await_partitions, no_topic

# Of one cluster alone: who is throttled, what is stored elsewhere. And what would change or refuse records' own times.
NOT_COPIED = re.compile(r"(leader|follower)\.replication\.throttled\.replicas|remote\..*|message\.timestamp\..*")


class MirrorStopped(ClientError):
    """What trying again does not cure."""


class TopicsAlike:
    """`look` does one round. `tell` is told of what was changed."""

    def __init__(
        self,
        source: Admin,
        target: Admin,
        names: list[str],
        pattern: str | None,
        prefix: str,
        *,
        configs: bool,
        tell: Callable[[str], None],
    ) -> None:
        self._source = source
        self._target = target
        self._names = names
        self._pattern = None if pattern is None else re.compile(pattern)
        self._prefix = prefix
        self._copies_configs = configs
        self._tell = tell

    async def look(self) -> dict[str, Topic]:
        """The source's topics by name, each of which the target has, with at least as many partitions."""
        there = {topic.name: topic for topic in await self._source.list_topics()}
        for name in self._names:
            if name not in there:
                raise MirrorStopped(f"at the source {no_topic(name, sorted(there))}")
        wanted = {name: topic for name, topic in there.items() if name in self._names or self._matches(name)}
        here = {topic.name: topic for topic in await self._target.list_topics()}
        for name, topic in wanted.items():
            await self._align(topic, here.get(self._prefix + name))
        return wanted

    def _matches(self, name: str) -> bool:
        """Not a mirror's own topics, nor copies: in one cluster they would be copied again and again."""
        if self._pattern is None or name.startswith("headrace-mirror."):
            return False
        is_copy = bool(self._prefix) and name.startswith(self._prefix)
        return not is_copy and self._pattern.fullmatch(name) is not None

    async def _align(self, topic: Topic, twin: Topic | None) -> None:
        name, count = self._prefix + topic.name, len(topic.partitions)
        configs = await self._configs(self._source, topic.name) if self._copies_configs else {}
        if twin is None:
            try:
                await self._target.create_topic(name, count, configs=configs)
                self._tell(f"created {name} with {count} partition{'' if count == 1 else 's'}")
            except RequestFailed as error:
                if error.error is not Err.TOPIC_ALREADY_EXISTS:
                    raise
            await await_partitions(self._target, name, count)
            return
        if len(twin.partitions) < count:
            await self._target.create_partitions(name, count)
            await await_partitions(self._target, name, count)
            self._tell(f"{name} has {count} partitions now")
        if self._copies_configs:
            await self._align_configs(name, configs)

    async def _align_configs(self, name: str, wanted: dict[str, str]) -> None:
        there = await self._configs(self._target, name)
        changes = {key: value for key, value in wanted.items() if there.get(key) != value}
        unset = sorted(there.keys() - wanted.keys())
        if changes or unset:
            await self._target.alter_configs(Resource.TOPIC, name, set=changes, unset=unset)
            self._tell(
                f"{name}: {', '.join([*(f'{k}={v}' for k, v in changes.items()), *(f'{k} unset' for k in unset)])}"
            )

    async def _configs(self, admin: Admin, topic: str) -> dict[str, str]:
        """What was set for the topic itself."""
        rows = await admin.describe_configs(Resource.TOPIC, topic)
        return {
            row.name: row.value
            for row in rows
            if row.source == ConfigSource.TOPIC and row.value is not None and not NOT_COPIED.fullmatch(row.name)
        }
