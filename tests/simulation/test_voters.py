"""Quorum nodes on simulated machines whose voters change: added, removed, moved, and described."""

import asyncio
import json

import pytest

from headrace.errors import Err, KafkaError
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey
from headrace.quorum.snapshots import Voter
from headrace.testing.simulator.world import World
from tests.simulation.quorum_nodes import CLUSTER, QuorumCluster, ask, voter


def test_a_wiped_disk_has_no_vote_until_it_is_added_again() -> None:
    with World(10) as world:
        cluster = QuorumCluster(world, [1, 2, 3])

        async def main() -> None:
            await cluster.start()
            leader = await cluster.leader()
            await cluster.write(leader, "a")
            wiped, other = [n for n in (1, 2, 3) if n != leader]
            cluster.node(wiped).kill()
            cluster.node(wiped).disk = type(cluster.node(wiped).disk)(now_ms=cluster.node(wiped).clock.wall_ms)
            cluster.disks[wiped] = 1
            await cluster.node(wiped).start()
            await cluster.wait_for([wiped], ["a"])
            quorum = cluster.quorums[wiped]
            assert not quorum.is_voter
            # With the other voter gone, it must not help to commit, nor to elect.
            cluster.node(other).kill()
            with pytest.raises(KafkaError):
                await cluster.write(leader, "b")
            await asyncio.sleep(10)
            assert not any(cluster.quorums[n].is_active for n in cluster.running())
            await cluster.start(other)
            leader = await cluster.leader()
            assert leader != wiped

        world.run(main())


def add(node_id: int) -> m.AddRaftVoterRequest:
    added = voter(node_id)
    kind = m.AddRaftVoterRequest
    return kind(
        cluster_id=CLUSTER,
        timeout_ms=1000,
        voter_id=node_id,
        voter_directory_id=added.directory_id,
        listeners=[kind.Listener(name=n, host=h, port=p) for n, h, p in added.endpoints],
    )


def remove(node_id: int) -> m.RemoveRaftVoterRequest:
    return m.RemoveRaftVoterRequest(
        cluster_id=CLUSTER, voter_id=node_id, voter_directory_id=voter(node_id).directory_id
    )


def test_voters_are_added_and_removed_one_by_one() -> None:
    with World(11) as world:
        cluster = QuorumCluster(world, [1])

        async def main() -> None:
            await cluster.start()
            await cluster.write(1, "a")
            for node_id in (2, 3):
                answer = await ask(cluster, 1, ApiKey.ADD_RAFT_VOTER, add(node_id))
                assert answer.error_code == Err.REQUEST_TIMED_OUT, "nobody is there"
                await cluster.node(node_id).start(cluster.factory(node_id))
                await cluster.wait_for([node_id], ["a"])
                await asyncio.sleep(1)
                answer = await ask(cluster, 1, ApiKey.ADD_RAFT_VOTER, add(node_id))
                assert answer.error_code == Err.NONE, answer
            answer = await ask(cluster, 1, ApiKey.ADD_RAFT_VOTER, add(3))
            assert answer.error_code == Err.DUPLICATE_VOTER
            await cluster.write(1, "b")
            await cluster.wait_for([2, 3], ["b"])
            assert all([v.id for v in cluster.quorums[n].voters] == [1, 2, 3] for n in (1, 2, 3))
            answer = await ask(cluster, 2, ApiKey.REMOVE_RAFT_VOTER, remove(1))
            assert answer.error_code == Err.NOT_LEADER_OR_FOLLOWER
            answer = await ask(cluster, 1, ApiKey.REMOVE_RAFT_VOTER, remove(1))
            assert answer.error_code == Err.NONE
            while (leader := await cluster.leader()) == 1:
                await asyncio.sleep(0.05)
            await cluster.write(leader, "c")
            await cluster.wait_for([1, 2, 3], ["c"])
            assert not cluster.quorums[1].is_voter
            answer = await ask(cluster, leader, ApiKey.REMOVE_RAFT_VOTER, remove(1))
            assert answer.error_code == Err.VOTER_NOT_FOUND
            assert not cluster.failures

        world.run(main())


def test_a_controller_that_may_join_by_itself_does() -> None:
    with World(12) as world:
        cluster = QuorumCluster(world, [1])

        async def main() -> None:
            await cluster.start()
            await cluster.write(1, "a")
            await cluster.node(2).start(cluster.factory(2, auto_join=True))
            async with asyncio.timeout(20):
                while [v.id for v in cluster.quorums[1].voters] != [1, 2]:
                    await asyncio.sleep(0.1)

        world.run(main())


def test_a_voter_that_moved_tells_the_leader() -> None:
    with World(13) as world:
        cluster = QuorumCluster(world, [1, 2, 3])
        cluster.first = [
            Voter(v.id, v.directory_id, v.endpoints, (0, 0) if v.id == 3 else (0, 1)) for v in cluster.first
        ]

        async def main() -> None:
            await cluster.start()
            async with asyncio.timeout(30):
                await cluster.leader()
                while any(v.kraft_versions != (0, 1) for v in cluster.quorums[1].voters):
                    await asyncio.sleep(0.1)

        world.run(main())


def test_another_cluster_is_refused() -> None:
    with World(14) as world:
        cluster = QuorumCluster(world, [1, 2, 3])

        async def main() -> None:
            await cluster.start()
            await cluster.leader()
            answer = await ask(cluster, 1, ApiKey.VOTE, m.VoteRequest(cluster_id="other"))
            assert answer.error_code == Err.INCONSISTENT_CLUSTER_ID
            answer = await ask(cluster, 1, ApiKey.ADD_RAFT_VOTER, m.AddRaftVoterRequest(cluster_id="other"))
            assert answer.error_code == Err.INCONSISTENT_CLUSTER_ID and CLUSTER in answer.error_message

        world.run(main())


def test_the_leader_describes_the_quorum() -> None:
    with World(15) as world:
        cluster = QuorumCluster(world, [1, 2, 3])

        async def main() -> None:
            await cluster.start()
            await cluster.node(9).start(cluster.factory(9, is_controller=False))
            leader = await cluster.leader()
            await cluster.write(leader, "a")
            await cluster.wait_for([1, 2, 3, 9], ["a"])
            kind = m.DescribeQuorumRequest
            asked = kind(
                topics=[
                    kind.TopicData(topic_name="__cluster_metadata", partitions=[kind.PartitionData(partition_index=0)])
                ]
            )
            for node_id in (1, 2, 3):
                answer = await ask(cluster, node_id, ApiKey.DESCRIBE_QUORUM, asked)
                partition = answer.topics[0].partitions[0]
                if node_id != leader:
                    assert partition.error_code == Err.NOT_LEADER_OR_FOLLOWER
                    continue
                assert partition.leader_id == leader
                end = cluster.quorums[leader].next_offset
                assert partition.high_watermark == end
                assert {(r.replica_id, r.log_end_offset) for r in partition.current_voters} == {
                    (n, end) for n in (1, 2, 3)
                }
                assert [r.replica_id for r in partition.observers] == [9]
                wall = cluster.node(leader).clock.wall_ms()
                assert all(0 <= wall - r.last_fetch_timestamp < 2000 for r in partition.current_voters)
                assert [n.node_id for n in answer.nodes] == [1, 2, 3]

        world.run(main())


def test_voters_may_be_in_the_configuration() -> None:
    """kraft.version 0: no disk is named, nothing can be changed, and quorum-state keeps its first version."""
    static = tuple(Voter(v.id, bytes(16), v.endpoints) for v in map(voter, (1, 2, 3)))
    with World(16) as world:
        cluster = QuorumCluster(world, [1, 2, 3], static_voters=static)

        async def main() -> None:
            await cluster.start()
            leader = await cluster.leader()
            await cluster.write(leader, "a")
            await cluster.wait_for([1, 2, 3], ["a"])
            assert cluster.quorums[leader].kraft_version == 0
            answer = await ask(cluster, leader, ApiKey.ADD_RAFT_VOTER, add(4))
            assert answer.error_code == Err.UNSUPPORTED_VERSION
            for node_id in (1, 2, 3):
                kept = json.loads(cluster.node(node_id).disk.read_bytes("/data/__cluster_metadata-0/quorum-state"))
                assert kept["data_version"] == 0 and [v["voterId"] for v in kept["currentVoters"]] == [1, 2, 3]
                cluster.node(node_id).crash()
            await cluster.start()
            leader = await cluster.leader()
            await cluster.write(leader, "b")
            await cluster.wait_for([1, 2, 3], ["a", "b"])
            assert not cluster.failures

        world.run(main())


@pytest.mark.parametrize("seed", range(17, 22))
def test_voters_move_from_the_configuration_into_the_log(seed: int) -> None:
    """kraft.version 0 to 1 while the quorum runs: each voter has told of its disk, and what one can do from then on."""
    static = tuple(Voter(v.id, bytes(16), v.endpoints) for v in map(voter, (1, 2, 3)))
    with World(seed) as world:
        cluster = QuorumCluster(world, [1, 2, 3], static_voters=static)

        async def main() -> None:
            await cluster.start(1, 2)
            leader = await cluster.leader()
            await cluster.write(leader, "a")
            with pytest.raises(KafkaError, match="3 have not told") as refused:
                await asyncio.sleep(3)
                await cluster.quorums[leader].raise_version(1)
            assert refused.value.error is Err.INVALID_UPDATE_VERSION
            await cluster.start(3)
            await cluster.wait_for([3], ["a"])
            await asyncio.sleep(3)
            await cluster.quorums[leader].raise_version(1, validate_only=True)
            assert cluster.quorums[leader].kraft_version == 0
            await cluster.quorums[leader].raise_version(1)
            await cluster.write(leader, "b")
            await cluster.wait_for([1, 2, 3], ["b"])
            quorums = cluster.quorums.values()
            assert all(quorum.kraft_version == 1 for quorum in quorums)
            directories = {tuple((v.id, v.directory_id) for v in quorum.voters) for quorum in quorums}
            assert len(directories) == 1 and all(directory != bytes(16) for _, directory in directories.pop())
            with pytest.raises(KafkaError, match="cannot be lowered"):
                await cluster.quorums[leader].raise_version(0)
            for node_id in (1, 2, 3):
                cluster.node(node_id).crash()
            await cluster.start()
            leader = await cluster.leader()
            other = next(n for n in (1, 2, 3) if n != leader)
            gone = next(v for v in cluster.quorums[leader].voters if v.id == other)
            request = m.RemoveRaftVoterRequest(cluster_id=CLUSTER, voter_id=other, voter_directory_id=gone.directory_id)
            answer = await ask(cluster, leader, ApiKey.REMOVE_RAFT_VOTER, request)
            assert answer.error_code == Err.NONE
            await cluster.write(leader, "c")
            await cluster.wait_for([1, 2, 3], ["c"])
            assert not cluster.quorums[other].is_voter
            kept = json.loads(cluster.node(leader).disk.read_bytes("/data/__cluster_metadata-0/quorum-state"))
            assert kept["data_version"] == 1
            assert not cluster.failures

        world.run(main())
