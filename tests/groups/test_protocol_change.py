"""A live group goes from the classic protocol to the new one and back, member by member, under load (KIP-848)."""

import asyncio
from pathlib import Path

from tests.compat.process import HeadraceProcess
from tests.groups.harness import QUICK, Crew, commits_in_log, describe, wait_until


def members_of(crew: Crew, kind: str, count: int) -> bool:
    group = asyncio.run(describe(crew.bootstrap, crew.group))
    assigned = sum(len(member.assignment) for member in group.members)
    return group.type == kind and len(group.members) == count and assigned == crew.partitions


def test_a_live_group_changes_its_protocol_and_back(broker: HeadraceProcess, tmp_path: Path) -> None:
    crew = Crew(broker.bootstrap, tmp_path, "confluent-eager", "migrating", partitions=6)
    try:
        old = [crew.join(), crew.join()]
        crew.feed()
        for member in old:
            member.wait_busy()
        assert asyncio.run(describe(crew.bootstrap, crew.group)).type == "classic"

        new = [crew.join(protocol="consumer")]
        wait_until(
            lambda: members_of(crew, "consumer", 3), "one new member made it a consumer group, all of it assigned"
        )
        new[0].wait_busy()
        for member in old:
            before = len(member.processed())
            member.wait_busy(before + 1)  # a classic member goes on in the new group
            member.end()
            new.append(crew.join(protocol="consumer"))
        wait_until(lambda: members_of(crew, "consumer", 3), "only new members")

        back = crew.join()
        wait_until(lambda: members_of(crew, "consumer", 4), "a classic member joined a consumer group")
        back.wait_busy()
        for member in new:
            member.end()
        wait_until(lambda: members_of(crew, "classic", 1), "the last consumer member left, and it is classic again")
        before = len(back.processed())
        back.wait_busy(before + 1)
        crew.stop_feeding()
        crew.finish()
        assert not crew.skipped()
        commits = asyncio.run(
            commits_in_log(broker.bootstrap, crew.group, crew.topic, int(QUICK["offsets.topic.num.partitions"]))
        )
        for partition, offsets in commits.items():
            assert offsets == sorted(offsets), f"partition {partition} went back"
    finally:
        crew.close()
