"""Committed offsets of the source's groups, as offsets of the target."""

import re
from collections.abc import Callable, Mapping

from headrace.client.admin.admin import Admin
from headrace.client.admin.groups import Groups
from headrace.client.errors import RequestFailed
from headrace.errors import Err
from headrace.tools.mirror.offsets import Translation

Place = tuple[str, int]
# The group is at work in the target: from there on its offsets are its own.
TAKEN_OVER = frozenset({Err.UNKNOWN_MEMBER_ID, Err.ILLEGAL_GENERATION, Err.STALE_MEMBER_EPOCH, Err.FENCED_MEMBER_EPOCH})


class GroupsAlong:
    """`move` does one round. A group's offset in the target never goes back, and one with members there is let be."""

    def __init__(self, source: Admin, target: Admin, pattern: str, prefix: str, tell: Callable[[str], None]) -> None:
        self._source_groups = Groups(source)
        self._target_groups = Groups(target)
        self._target = target
        self._pattern = re.compile(pattern)
        self._prefix = prefix
        self._tell = tell
        self._told: set[str] = set()
        self.moved: dict[str, int] = {}
        """Of each group, how many partitions have an offset in the target by us."""

    async def move(self, translations: Mapping[Place, Translation]) -> None:
        """`translations` are by the source's topics."""
        starts = await self._target.offsets_of([(self._prefix + topic, index) for topic, index in translations], -2)
        for listed in await self._source_groups.list_groups():
            if self._pattern.fullmatch(listed.group_id) and not listed.group_id.startswith("headrace-"):
                await self._move_one(listed.group_id, translations, starts)

    async def _move_one(
        self, group: str, translations: Mapping[Place, Translation], starts: Mapping[Place, int]
    ) -> None:
        there = await self._source_groups.committed(group)
        here = await self._target_groups.committed(group)
        wanted: dict[Place, int] = {}
        known = 0
        for (topic, index), committed in there.items():
            translation = translations.get((topic, index))
            if translation is None or committed.offset < 0:
                continue
            at = (self._prefix + topic, index)
            offset = translation.target_of(committed.offset, starts.get(at, 0))
            known += 1
            current = here.get(at)
            if current is None or current.offset < offset:
                wanted[at] = offset
        if wanted:
            try:
                await self._target_groups.commit(group, wanted)
            except RequestFailed as error:
                if error.error not in TAKEN_OVER:
                    raise
                if group not in self._told:
                    self._told.add(group)
                    self._tell(f"group {group} has members in the target: its offsets are left to them")
                return
        if known:
            self.moved[group] = known
