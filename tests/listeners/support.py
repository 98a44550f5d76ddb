"""Topics of numbered records for listeners, and what became of them."""

from headrace.client.admin.admin import Admin
from headrace.client.admin.groups import Groups
from headrace.client.api.producer import Producer

KEYS = 5


async def fill(bootstrap: str, topic: str, begin: int, end: int, *, partitions: int = 3) -> None:
    """Records `begin` to `end`, of a few keys in turn."""
    async with Admin(bootstrap) as admin:
        if topic not in {one.name for one in await admin.list_topics()}:
            await admin.create_topic(topic, partitions=partitions)
    async with Producer(bootstrap) as producer:
        numbers = range(begin, end)
        await producer.send_batch(topic, [str(i) for i in numbers], keys=[f"k{i % KEYS}" for i in numbers])


async def committed(bootstrap: str, topic: str, group: str = "billing") -> int:
    """How many records of a topic a group has behind it."""
    async with Admin(bootstrap) as admin:
        found = await Groups(admin).committed(group)
    return sum(one.offset for at, one in found.items() if at[0] == topic)


def check_order(seen: list[int], count: int) -> None:
    """Every record was handled, and of each key none for the first time before an earlier one."""
    assert set(seen) == set(range(count)), f"{len(set(seen))} of {count}"
    for key in range(KEYS):
        first = list(dict.fromkeys(number for number in seen if number % KEYS == key))
        assert first == sorted(first)
