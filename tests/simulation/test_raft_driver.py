"""Several quorum nodes on simulated machines: elections, failover, catching up, snapshots, changes of the voters."""

import asyncio
import errno
import json
from contextlib import suppress
from typing import Any

import pytest

from headrace.errors import Err, KafkaError
from headrace.protocol import messages as m
from headrace.protocol.api import API, ApiKey
from headrace.quorum.cleaning import SnapshotLimits
from headrace.quorum.snapshots import Voter
from headrace.raft.messages import Vote
from headrace.raft.types import OffsetEpoch, ReplicaKey
from headrace.raft.wire import encode_request
from headrace.testing.simulator.world import World
from tests.simulation.quorum_nodes import CLUSTER, QuorumCluster, directory, host, voter, written


def test_three_nodes_elect_a_leader_and_agree() -> None:
    with World(1) as world:
        cluster = QuorumCluster(world, [1, 2, 3])

        async def main() -> None:
            await cluster.start()
            leader = await cluster.leader(5)
            assert world.loop.time() < 1.0, "a new cluster need not wait for a timeout"
            await cluster.write(leader, "a")
            await cluster.wait_for([1, 2, 3], ["a"])
            assert not cluster.failures

        world.run(main())


def test_a_killed_leader_is_replaced_at_once() -> None:
    with World(2) as world:
        cluster = QuorumCluster(world, [1, 2, 3])

        async def main() -> None:
            await cluster.start()
            leader = await cluster.leader()
            await cluster.write(leader, "a")
            cluster.node(leader).kill()
            started = world.loop.time()
            after = await cluster.leader()
            assert world.loop.time() - started < 0.5
            await cluster.write(after, "b")
            await cluster.node(leader).start()
            await cluster.wait_for([1, 2, 3], ["a", "b"])

        world.run(main())


def test_a_paused_leader_is_replaced_and_steps_down_when_it_wakes() -> None:
    with World(3) as world:
        cluster = QuorumCluster(world, [1, 2, 3])

        async def main() -> None:
            await cluster.start()
            leader = await cluster.leader()
            await cluster.write(leader, "a")
            cluster.node(leader).pause()
            started = world.loop.time()
            others = [n for n in (1, 2, 3) if n != leader]
            after = -1
            while after < 0:
                await asyncio.sleep(0.01)
                after = next((n for n in others if cluster.quorums[n].is_active), -1)
            assert world.loop.time() - started < 4.0
            await cluster.write(after, "b")
            cluster.node(leader).resume()
            await cluster.wait_for([1, 2, 3], ["a", "b"])
            assert not cluster.quorums[leader].is_active
            assert cluster.quorums[leader].leader_id == after

        world.run(main())


def test_a_leader_that_stops_hands_over_before_it_goes() -> None:
    with World(4) as world:
        cluster = QuorumCluster(world, [1, 2, 3])

        async def main() -> None:
            await cluster.start()
            leader = await cluster.leader()
            await cluster.write(leader, "a")
            started = world.loop.time()
            await cluster.node(leader).stop()
            after = await cluster.leader()
            assert world.loop.time() - started < 0.3
            assert cluster.quorums[after].leader_epoch == cluster.quorums[leader].leader_epoch
            assert {"a"} <= written(cluster.quorums[after].image)

        world.run(main())


def test_a_broker_follows_without_a_vote_and_finds_the_next_leader() -> None:
    with World(5) as world:
        cluster = QuorumCluster(world, [1, 2, 3])

        async def main() -> None:
            await cluster.start()
            await cluster.node(9).start(cluster.factory(9, is_controller=False))
            leader = await cluster.leader()
            await cluster.write(leader, "a")
            await cluster.wait_for([9], ["a"])
            broker = cluster.quorums[9]
            await cluster.node(9).run(broker.caught_up())
            assert not broker.is_voter and not broker.is_active and broker.leader_id == leader
            address = broker.controller_address()
            assert address == (leader, f"c{leader}", 9093)
            cluster.node(leader).kill()
            after = await cluster.leader()
            await cluster.write(after, "b")
            await cluster.wait_for([9], ["b"], 2.0)
            with pytest.raises(KafkaError) as refused:
                await cluster.write(9, "c")
            assert refused.value.error is Err.NOT_CONTROLLER

        world.run(main())


def test_news_reaches_a_broker_in_milliseconds() -> None:
    """Records when they are written, that they are committed when they are: no waiting for a poll to end."""
    with World(6) as world:
        cluster = QuorumCluster(world, [1, 2, 3])

        async def main() -> None:
            await cluster.start()
            await cluster.node(9).start(cluster.factory(9, is_controller=False))
            leader = await cluster.leader()
            await cluster.write(leader, "a")
            await cluster.wait_for([1, 2, 3, 9], ["a"])
            await asyncio.sleep(0.2)
            started = world.loop.time()
            await cluster.write(leader, "b")
            await cluster.wait_for([1, 2, 3, 9], ["b"])
            assert world.loop.time() - started < 0.1

        world.run(main())


def test_everybody_dies_and_comes_back() -> None:
    with World(7) as world:
        cluster = QuorumCluster(world, [1, 2, 3])

        async def main() -> None:
            await cluster.start()
            for n in range(5):
                leader = await cluster.leader()
                epoch = cluster.quorums[leader].leader_epoch
                await cluster.write(leader, f"t{n}")
                for node_id in (1, 2, 3):
                    cluster.node(node_id).crash()
                await cluster.start()
                leader = await cluster.leader()
                assert cluster.quorums[leader].leader_epoch > epoch
                await cluster.wait_for([1, 2, 3], [f"t{i}" for i in range(n + 1)])

        world.run(main())


def test_a_minority_commits_nothing() -> None:
    with World(8) as world:
        cluster = QuorumCluster(world, [1, 2, 3])

        async def main() -> None:
            await cluster.start()
            leader = await cluster.leader()
            await cluster.write(leader, "a")
            others = [n for n in (1, 2, 3) if n != leader]
            for node_id in others:
                cluster.node(node_id).kill()
            with pytest.raises(KafkaError) as refused:
                await cluster.write(leader, "b")
            assert refused.value.error is Err.NOT_CONTROLLER
            assert "b" not in written(cluster.quorums[leader].image)
            assert not cluster.quorums[leader].is_active
            await cluster.start(others[0])
            leader = await cluster.leader()
            await cluster.write(leader, "c")

        world.run(main())


def test_a_follower_far_behind_loads_a_snapshot() -> None:
    limits = SnapshotLimits(bytes_between=2000, retention_bytes=3000)
    with World(9) as world:
        cluster = QuorumCluster(world, [1, 2, 3], limits=limits, segment_bytes=1500)

        async def main() -> None:
            await cluster.start()
            leader = await cluster.leader()
            behind = next(n for n in (1, 2, 3) if n != leader)
            await cluster.write(leader, "first")
            await cluster.wait_for([behind], ["first"])
            changes: list[tuple[set[str], int]] = []
            cluster.node(behind).kill()
            names = [f"t{n}" for n in range(60)]
            for name in names:
                await cluster.write(leader, name)
                await cluster.node(leader).run(cluster.quorums[leader].maintain())
            assert cluster.quorums[leader].log.log_start_offset > 20
            await cluster.node(behind).start()
            quorum = cluster.quorums[behind]
            quorum.listen(lambda delta, image: changes.append(({n for _, n in delta.configs}, image.offset)))
            await cluster.wait_for([behind], ["first", *names])
            assert quorum.log.log_start_offset > 20
            assert set(names) <= set().union(*(names for names, _ in changes)), "whoever follows deltas was told of all"
            assert quorum.image.same_content(cluster.quorums[leader].image)
            await cluster.write(leader, "last")
            await cluster.wait_for([behind], ["last"])
            # And it starts again from what it stored.
            cluster.node(behind).crash()
            await cluster.node(behind).start()
            await cluster.wait_for([behind], ["last", *names])
            assert not cluster.failures

        world.run(main())


@pytest.mark.parametrize("skip", [0, 1, 3, 6])
def test_a_follower_whose_disk_was_full_for_a_moment_goes_on(skip: int) -> None:
    """Whichever batch of an answer there was no room for: in a new segment, or behind another one in it."""
    with World(9) as world:
        cluster = QuorumCluster(world, [1, 2, 3], segment_bytes=600)

        async def main() -> None:
            await cluster.start()
            leader = await cluster.leader()
            behind = next(n for n in (1, 2, 3) if n != leader)
            await cluster.write(leader, "first")
            await cluster.wait_for([behind], ["first"])
            cluster.node(behind).kill()
            names = [f"t{n}" for n in range(20)]
            for name in names:
                await cluster.write(leader, name)
            cluster.node(behind).disk.fail("append", errno.ENOSPC, path="*/__cluster_metadata-0/*.log", skip=skip)
            await cluster.node(behind).start()
            await cluster.wait_for([behind], names)
            assert not cluster.failures

        world.run(main())


@pytest.mark.parametrize("path", ["*/quorum-state*", "*/__cluster_metadata-0/*.log"])
@pytest.mark.parametrize("voters", [[1], [1, 2, 3]])
def test_a_full_disk_ends_no_controller_that_is_being_elected(voters: list[int], path: str) -> None:
    """No room for the vote, or for the first record of an epoch: it says nothing, or resigns, until there is some."""
    with World(10) as world:
        cluster = QuorumCluster(world, voters)

        async def main() -> None:
            await cluster.start()
            old = await cluster.leader()
            await cluster.write(old, "first")
            cluster.node(old).kill()
            for number in voters:
                cluster.node(number).disk.fail("append", errno.ENOSPC, path=path, times=None)
            starting = asyncio.ensure_future(cluster.start(old))
            await asyncio.sleep(10)
            assert not cluster.failures
            assert not any(cluster.quorums[n].is_active for n in cluster.running())
            for number in voters:
                cluster.node(number).disk.faults.clear()
            await starting
            leader = await cluster.leader()
            await cluster.write(leader, "last")
            await cluster.wait_for(voters, ["first", "last"])
            assert not cluster.failures

        world.run(main())


def test_a_node_without_room_for_its_vote_keeps_nobody_waiting() -> None:
    """A disk that stays full: whoever asks is told that this node takes no part, and nothing piles up."""
    static = tuple(Voter(v.id, bytes(16), v.endpoints) for v in map(voter, (1, 2, 3)))
    with World(11) as world:
        cluster = QuorumCluster(world, [1, 2, 3], static_voters=static)

        async def main() -> None:
            await cluster.start()
            leader = await cluster.leader()
            other = next(n for n in (1, 2, 3) if n != leader)
            await cluster.write(leader, "first")
            await asyncio.sleep(5)
            node, quorum = cluster.node(leader), cluster.quorums[leader]
            node.disk.fail("append", errno.ENOSPC, path="*/quorum-state*", times=None)
            world.network.partition([host(leader)], [host(n) for n in (1, 2, 3) if n != leader])
            raised = asyncio.ensure_future(node.run(quorum.raise_version(1)))  # cannot be committed
            await asyncio.sleep(0.1)
            vote = Vote(quorum.leader_epoch + 1, ReplicaKey(other, directory(other)), OffsetEpoch(0, 0), False)
            key, request = encode_request(vote, CLUSTER)
            async with asyncio.timeout(5):
                answers = await asyncio.gather(*(ask(cluster, leader, key, request) for _ in range(50)))
                with pytest.raises(KafkaError) as refused:
                    await raised
            assert {answer.error_code for answer in answers} == {Err.BROKER_NOT_AVAILABLE}
            assert refused.value.error is Err.NOT_CONTROLLER
            node.disk.faults.clear()
            world.network.heal()
            await asyncio.sleep(5)
            assert not cluster.failures
            after = await cluster.leader()
            await cluster.write(after, "last")
            await cluster.wait_for([1, 2, 3], ["first", "last"])

        world.run(main())


def test_a_leader_without_room_gives_way_to_one_that_has_some() -> None:
    """Nothing can be decided as long as it leads: no ISR shrinks and no leadership moves, least of all away from its
    disk."""
    with World(12) as world:
        cluster = QuorumCluster(world, [1, 2, 3])

        async def main() -> None:
            await cluster.start()
            full = await cluster.leader()
            await cluster.write(full, "first")
            cluster.node(full).disk.fail("append", errno.ENOSPC, path="*/__cluster_metadata-0/*.log", times=None)
            with pytest.raises(KafkaError) as refused:
                await cluster.write(full, "refused")
            assert refused.value.error is Err.NOT_CONTROLLER, "whoever asked looks for another"
            others = [n for n in (1, 2, 3) if n != full]
            while not any(cluster.quorums[n].is_active for n in others):
                assert world.loop.time() < 20
                await asyncio.sleep(0.05)
            leader = next(n for n in others if cluster.quorums[n].is_active)
            await cluster.write(leader, "second")
            await asyncio.sleep(10)
            assert cluster.quorums[leader].is_active, "the full one does not stand in the way"
            cluster.node(full).disk.faults.clear()
            await cluster.write(leader, "third")
            await cluster.wait_for([1, 2, 3], ["first", "second", "third"])
            assert not cluster.failures

        world.run(main())


def test_a_node_without_room_for_its_vote_stops_in_order() -> None:
    """What could not be saved was told to nobody: the next start goes on from what was."""
    with World(11) as world:
        cluster = QuorumCluster(world, [1, 2, 3])

        async def main() -> None:
            await cluster.start()
            leader = await cluster.leader()
            await cluster.write(leader, "first")
            await cluster.wait_for([1, 2, 3], ["first"])
            follower = next(n for n in (1, 2, 3) if n != leader)
            node = cluster.node(follower)
            node.disk.fail("append", errno.ENOSPC, path="*/quorum-state*", times=None)
            world.network.partition([host(follower)], [host(n) for n in (1, 2, 3) if n != follower])
            epoch = cluster.quorums[follower].leader_epoch + 1
            vote = Vote(epoch, ReplicaKey(leader, directory(leader)), OffsetEpoch(0, 0), False)
            with suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await ask(cluster, follower, *encode_request(vote, CLUSTER))
            await node.stop()
            assert not cluster.failures
            node.disk.faults.clear()
            world.network.heal()
            await node.start()
            await cluster.write(await cluster.leader(), "last")
            await cluster.wait_for([1, 2, 3], ["first", "last"])

        world.run(main())


def test_a_wiped_disk_has_no_vote_until_it_is_added_again() -> None:
    """FAULTS 10."""
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


async def ask(cluster: QuorumCluster, node_id: int, key: ApiKey, body: Any) -> Any:
    quorum = cluster.quorums[node_id]
    return await cluster.node(node_id).run(quorum.serve(key, body, API[key].latest_stable, "test"))


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
