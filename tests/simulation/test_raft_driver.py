"""Several quorum nodes on simulated machines: elections, failover, catching up, snapshots, changes of the voters."""

import asyncio
import errno
from contextlib import suppress

import pytest

from headrace.errors import Err, KafkaError
from headrace.quorum.cleaning import SnapshotLimits
from headrace.quorum.snapshots import Voter
from headrace.raft.messages import Vote
from headrace.raft.types import OffsetEpoch, ReplicaKey
from headrace.raft.wire import encode_request
from headrace.testing.simulator.world import World
from tests.simulation.quorum_nodes import CLUSTER, QuorumCluster, ask, directory, host, voter, written


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
