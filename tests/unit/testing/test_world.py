"""Nodes start, stop, freeze, die and come back; their disks remember what they should."""

import asyncio
import itertools

import pytest

from headrace.broker.runtime import Runtime
from headrace.testing.simulator.disk import CrashMode, PowerCut
from headrace.testing.simulator.world import NodeDied, SimRuntime, Stop, World


async def counter(runtime: SimRuntime) -> Stop:
    """A server that adds a durable byte per request and answers with how many there are."""
    disk = runtime.disk
    disk.make_dirs("/data")
    disk.sync_dir("/")
    file = disk.open("/data/log", create=True)
    disk.sync_dir("/data")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(1):
            file.append(b"x")
            count = file.size()
            await runtime.run_sync(file.sync)
            writer.write(count.to_bytes(4, "big"))
        writer.close()

    def protocol() -> asyncio.StreamReaderProtocol:
        return asyncio.StreamReaderProtocol(asyncio.StreamReader(), serve)

    server, port = await runtime.listen(protocol, "0.0.0.0", 9000)
    assert not server.is_serving()
    await server.start_serving()
    assert port == 9000

    async def stop() -> None:
        server.close()
        disk.replace_bytes("/data/clean", b"")

    return stop


async def ask(times: int) -> int:
    reader, writer = await asyncio.open_connection("n1", 9000)
    answer = b""
    for _ in range(times):
        writer.write(b"?")
        answer = await reader.readexactly(4)
    writer.close()
    return int.from_bytes(answer, "big")


def test_runtime_is_the_brokers_seam() -> None:
    with World(1) as world:
        node = world.node("n1")
        runtime: Runtime = SimRuntime(world.loop, node.clock, node.disk.session(), world.dice("x"))
        assert not runtime.can_sendfile
        assert runtime.perf_counter() == world.loop.time()


def test_orderly_stop_and_restart() -> None:
    async def main() -> None:
        node = world.node("n1")
        await node.start(counter)
        assert await ask(3) == 3
        await node.stop()
        assert not node.running
        with pytest.raises(ConnectionRefusedError):
            await ask(1)
        assert node.disk.exists("/data/clean")
        await node.start()
        assert await ask(1) == 4

    with World(1) as world:
        world.run(main())


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("mode", list(CrashMode))
def test_acknowledged_survives_every_power_cut(seed: int, mode: CrashMode) -> None:
    async def main() -> None:
        node = world.node("n1")
        await node.start(counter)
        acked = await ask(5)
        with pytest.raises((NodeDied, OSError, TimeoutError)):
            async with asyncio.timeout(10):
                asyncio.get_running_loop().call_later(0.002 * seed, node.crash, mode)
                while True:
                    acked = await ask(1)
        await node.start()
        assert await ask(1) > acked
        assert not node.disk.exists("/data/clean")

    with World(seed) as world:
        world.run(main())


def test_killed_node_keeps_its_unsynced_bytes_and_its_peers_notice() -> None:
    async def main() -> None:
        node = world.node("n1")
        await node.start(counter)
        reader, writer = await asyncio.open_connection("n1", 9000)
        writer.write(b"?")
        for _ in range(1000):
            if node.disk.size("/data/log"):
                break
            await asyncio.sleep(0.0001)
        node.kill()
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(4)
        writer.close()
        assert node.disk.size("/data/log") == 1

    with World(2) as world:
        world.run(main())


def test_power_cut_at_each_change_of_the_disk() -> None:
    """Placed by count, a cut strikes inside any call, and what waits for the node hears of its death."""

    async def main(world: World, operations: int) -> bool:
        node = world.node("n1")
        node.cut_after(operations)
        acked = 0
        try:
            await node.start(counter)
            async with asyncio.timeout(5):
                acked = await ask(3)
        except (NodeDied, OSError, TimeoutError, asyncio.IncompleteReadError):
            pass
        node.cut_after(None)
        died = not node.running
        if died:
            await node.died()
            await node.start()
        assert await ask(1) > acked
        return died

    operations = 0
    while True:
        with World(operations) as world:
            if not world.run(main(world, operations)):
                break
        operations += 1
    assert operations >= 10  # four to set up, a write and a sync for each of three requests


def test_dead_process_cannot_touch_the_disk_of_its_successor() -> None:
    async def zombie(runtime: SimRuntime) -> Stop:
        async def unwind() -> None:
            try:
                await asyncio.sleep(1000)
            finally:
                runtime.disk.replace_bytes("/marker", b"written by the dead")

        task = asyncio.create_task(unwind())
        await asyncio.sleep(0)

        async def stop() -> None:
            task.cancel()

        return stop

    async def main() -> None:
        node = world.node("n1")
        await node.start(zombie)
        node.crash(CrashMode.KEEP)
        assert not node.disk.exists("/marker")

    with World(3) as world:
        world.run(main())


def test_start_that_fails_reports_why_and_can_be_repeated() -> None:
    async def broken(runtime: SimRuntime) -> Stop:
        raise RuntimeError("refuses to start")

    async def main() -> None:
        node = world.node("n1")
        with pytest.raises(RuntimeError, match="refuses"):
            await node.start(broken)
        assert not node.running
        await node.start(counter)

    with World(4) as world:
        world.run(main())


def test_process_that_gives_up_ends_itself() -> None:
    async def quitter(runtime: SimRuntime) -> Stop:
        async def give_up() -> None:
            await asyncio.sleep(5)
            runtime.disk.replace_bytes("/note", b"gave up")
            runtime.exit()

        task = asyncio.create_task(give_up())

        async def stop() -> None:
            task.cancel()

        return stop

    async def main() -> None:
        node = world.node("n1")
        await node.start(quitter)
        await node.died()
        assert 5 <= world.loop.time() < 6
        assert not node.running
        assert node.disk.read_bytes("/note") == b"gave up"
        await node.start()

    with World(6) as world:
        world.run(main())


def test_paused_node_answers_after_it_is_resumed() -> None:
    async def main() -> None:
        node = world.node("n1")
        await node.start(counter)
        await ask(1)
        node.pause()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(60):
                await ask(1)
        node.resume()
        assert await ask(1) >= 2

    with World(5) as world:
        world.run(main())


def test_one_seed_is_one_history() -> None:
    def history(seed: int) -> tuple[float, bytes | None]:
        async def main() -> None:
            node = world.node("n1")
            await node.start(counter)
            await ask(20)
            asyncio.get_running_loop().call_later(0.01, node.crash)
            try:
                async with asyncio.timeout(5):
                    await ask(50)
            except (OSError, TimeoutError, asyncio.IncompleteReadError):
                pass

        with World(seed) as world:
            world.run(main())
            return world.loop.time(), world.node("n1").disk.tree().get("/data/log")

    assert history(7) == history(7)
    assert len({history(seed) for seed in range(5)}) > 1


def test_unhandled_error_in_a_node_fails_the_test() -> None:
    async def main() -> None:
        asyncio.get_running_loop().call_soon(lambda: 1 // 0)
        await asyncio.sleep(1)

    with pytest.raises(AssertionError, match="ZeroDivisionError"), World(8) as world:
        world.run(main())


def test_endless_test_ends_by_virtual_time() -> None:
    async def main() -> None:
        for _ in itertools.count():
            await asyncio.sleep(1)

    with pytest.raises(TimeoutError, match="seed 9"), World(9) as world:
        world.run(main(), timeout_s=100)


def test_power_cut_is_no_ordinary_exception() -> None:
    assert not issubclass(PowerCut, Exception)
