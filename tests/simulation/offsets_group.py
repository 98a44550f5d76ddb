"""A group that commits and reads its offsets while everything fails."""

import asyncio

from headrace.client.admin.admin import Admin
from headrace.client.admin.groups import Groups
from headrace.client.errors import ClientError

AT = ("t", 0)


class Group:
    """One that commits 1, 2, 3, ... and one that looks; both through whatever happens."""

    def __init__(self, bootstrap: str, name: str) -> None:
        self.bootstrap = bootstrap
        self.name = name
        self.acknowledged = 0
        self.seen = 0
        self.looks = 0

    async def commit(self) -> None:
        offset = 0
        while True:
            try:
                async with Admin(self.bootstrap) as admin:
                    groups = Groups(admin)
                    while True:
                        offset += 1
                        await groups.commit(self.name, {AT: offset})
                        self.acknowledged = offset
                        await asyncio.sleep(0.02)
            except ClientError:
                await asyncio.sleep(0.1)

    async def look(self) -> None:
        while True:
            try:
                async with Admin(self.bootstrap) as admin:
                    while True:
                        await self.look_once(Groups(admin))
                        await asyncio.sleep(0.03)
            except ClientError:
                await asyncio.sleep(0.1)

    async def look_once(self, groups: Groups) -> None:
        floor = max(self.acknowledged, self.seen)
        found = (await groups.committed(self.name)).get(AT)
        offset = 0 if found is None else found.offset
        assert offset >= floor, f"group {self.name} saw {offset} after {floor}"
        self.seen = max(self.seen, offset)
        self.looks += 1
