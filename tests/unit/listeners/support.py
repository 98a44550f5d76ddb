"""What tests of apps share."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

LIMIT_S = 60


@dataclass
class Order:
    id: int
    item: str = ""


def run(test: Coroutine[Any, Any, None]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(LIMIT_S):
            await test

    asyncio.run(limited())
