"""The disk of a simulated host: what survives its processes, what fails, how long it takes."""

from __future__ import annotations

import asyncio
from errno import EIO, ENOSPC

import pytest
from hailbus_broker.log.errors import StorageError
from hailbus_broker.testing.simulation import DiskFault, SimulatedCrashError, World
from hailbus_broker.testing.simulation.machine import machine_of


def test_a_kill_keeps_what_was_written_and_a_power_cut_what_was_synced() -> None:
    async def main(world: World) -> tuple[bytes | None, bytes | None]:
        disk = world.disk("broker")

        def write(data: bytes, *, is_synced: bool) -> None:
            file = disk.open("log", create=True)
            file.append(data)
            if is_synced:
                file.sync()
                disk.sync_directory("")

        first = world.process("broker")
        first.call(write, b"synced", is_synced=True)
        first.call(write, b" written", is_synced=False)
        first.kill()
        after_kill = disk.read_bytes("log")
        world.network.power_off(world.host("broker"))
        return after_kill, disk.read_bytes("log")

    found = {World(seed).run(main) for seed in range(12)}
    assert {kept for kept, _ in found} == {b"synced written"}
    left = [content for _, content in found if content is not None]
    assert len(set(left)) > 2
    assert all(content.startswith(b"synced") and len(content) <= len(b"synced written") for content in left)


def test_a_dead_process_reaches_its_disk_no_more() -> None:
    async def main(world: World) -> None:
        disk = world.disk("broker")
        process = world.process("broker")
        file = process.call(disk.open, "log", create=True)
        process.kill()
        for operation in (lambda: file.append(b"late"), file.sync, lambda: disk.read_bytes("log")):
            with pytest.raises(SimulatedCrashError):
                process.call(operation)
        assert disk.read_bytes("log") == b""

    World(1).run(main)


def test_a_crash_waits_for_the_change_it_is_meant_for() -> None:
    async def main(world: World) -> tuple[list[str], bool]:
        disk = world.disk("broker")
        disk.crash_is_power_cut = False
        process = world.process("broker")
        for name in ("one", "two", "three"):
            process.call(disk.open, name, create=True)
        disk.crash_when = lambda path, operation: operation == "remove" and path != "one"
        disk.crash_on_after = 1
        for name in ("one", "two"):
            process.call(disk.remove, name)
        with pytest.raises(SimulatedCrashError):
            process.call(disk.remove, "three")
        successor = world.process("broker")
        successor.call(disk.remove, "three")  # it has crashed once, and does not again
        return sorted(disk.paths()), process.is_alive

    assert World(1).run(main) == ([], False)


@pytest.mark.parametrize("is_power_cut", [False, True])
def test_a_crash_in_the_middle_of_an_operation_ends_the_process(is_power_cut: bool) -> None:
    async def main(world: World) -> None:
        disk = world.disk("broker")
        disk.crash_is_power_cut = is_power_cut
        process = world.process("broker")
        seen: list[str] = []

        async def work() -> None:
            try:
                file = disk.open("log", create=True)
                disk.crash_at_step = disk.step_count + 1
                file.append(b"one")
                file.append(b"two")
            finally:
                seen.append("finally")
                asyncio.get_running_loop().call_soon(seen.append, "callback")

        process.start(work())
        await world.sleep(1)
        assert not process.is_alive
        assert world.host("broker").is_up is not is_power_cut
        assert "callback" not in seen
        assert world.notes["crash in append"] == 1
        next_life = world.process("broker")
        assert next_life.call(disk.exists, "log") is not None

    World(1).run(main)


def test_operations_fail_on_request() -> None:
    async def main(world: World) -> None:
        disk = world.disk("broker")
        file = disk.open("data/log", create=True)
        disk.faults.append(DiskFault(operation="append", times=2, errno=ENOSPC, path="log"))
        for _ in range(2):
            with pytest.raises(StorageError) as caught:
                file.append(b"x")
            assert caught.value.errno == ENOSPC
        file.append(b"x")
        assert world.notes["failed append"] == 2

    World(1).run(main)


def test_after_a_failed_sync_the_next_one_succeeds_and_keeps_nothing() -> None:
    async def main(world: World) -> bytes | None:
        disk = world.disk("broker")
        file = disk.open("log", create=True)
        disk.sync_directory("")
        file.append(b"dirty")
        disk.faults.append(DiskFault(operation="sync"))
        with pytest.raises(StorageError) as caught:
            file.sync()
        assert caught.value.errno == EIO
        file.sync()
        disk.chance.seed(0)  # a power cut that loses all that was not synced
        world.network.power_off(world.host("broker"))
        return disk.read_bytes("log")

    assert any(World(seed).run(main) != b"dirty" for seed in range(3))


def test_a_disk_that_lies_about_syncs_loses_what_a_power_cut_finds_unwritten() -> None:
    async def main(world: World) -> tuple[bytes | None, bool]:
        disk = world.disk("broker")
        process = world.process("broker")
        file = process.call(disk.open, "log", create=True)
        process.call(file.append, b"kept")
        process.call(file.sync)
        process.call(disk.sync_directory, "")
        disk.is_lying = True
        process.call(file.append, b" lost")
        process.call(file.sync)
        process.call(disk.write_whole, "checkpoint", b"whole")
        world.network.power_off(world.host("broker"))
        return disk.read_bytes("log"), disk.read_bytes("checkpoint") == b"whole"

    found = [World(seed).run(main) for seed in range(20)]
    assert all(content is not None and content.startswith(b"kept") for content, _ in found)
    assert any(content == b"kept" for content, _ in found)
    assert not all(has_checkpoint for _, has_checkpoint in found)


def test_a_wiped_disk_is_empty_also_after_a_power_cut() -> None:
    async def main(world: World) -> list[str]:
        disk = world.disk("broker")
        process = world.process("broker")
        process.call(disk.write_whole, "checkpoint", b"whole")
        process.kill()
        disk.wipe()
        assert not disk.paths()
        world.network.power_off(world.host("broker"))
        return list(disk.paths())

    assert World(1).run(main) == []


def test_a_flipped_bit_changes_one_byte() -> None:
    async def main(world: World) -> None:
        disk = world.disk("broker")
        assert disk.flip_bit() is None
        disk.write_whole("log", bytes(1_000))
        assert disk.flip_bit() == "log"
        content = disk.read_bytes("log")
        assert content is not None
        (changed,) = [byte for byte in content if byte]
        assert changed.bit_count() == 1

    World(1).run(main)


def test_locks_end_with_their_process() -> None:
    async def main(world: World) -> None:
        disk = world.disk("broker")
        first, second = world.process("broker"), world.process("other", host="broker")
        assert first.call(disk.lock, "data") is not None
        assert second.call(disk.lock, "data") is None
        first.kill()
        assert second.call(disk.lock, "data") is not None

    World(1).run(main)


def test_a_sync_in_a_thread_takes_time_and_the_pool_is_bounded() -> None:
    async def main(world: World) -> list[float]:
        disk = world.disk("broker")
        disk.sync_s = (1.0, 1.0)
        process = world.process("broker")
        ended_s: list[float] = []

        async def work() -> None:
            threads = machine_of(process, disk, world.loop).start_threads(2, "sync")
            file = disk.open("log", create=True)
            for _ in range(4):
                threads.submit(file.sync, lambda _result, _error: ended_s.append(round(world.loop.time())))
            with pytest.raises(ZeroDivisionError):
                await threads.run(lambda: 1 // 0)
            assert list(threads.map(str, [1, 2])) == ["1", "2"]
            threads.close()

        await process.start(work())
        return ended_s

    assert World(1).run(main) == [1, 1, 2, 2]


def test_a_sync_in_the_event_loop_blocks_the_process() -> None:
    async def main(world: World) -> float:
        disk = world.disk("broker")
        disk.sync_s = (2.0, 2.0)

        async def work() -> float:
            disk.open("log", create=True).sync()
            await asyncio.sleep(0)
            return world.loop.time()

        return await world.process("broker").start(work())

    assert World(1).run(main) == 2


def test_the_clocks_of_a_broker_are_those_of_its_host() -> None:
    async def main(world: World) -> None:
        process = world.process("broker")
        clock = machine_of(process, world.disk("broker"), world.loop).clock
        wall_ms, now_ms = clock.wall_ms(), clock.now_ms()
        assert wall_ms == now_ms
        await world.sleep(5)
        process.host.clock.jump(-60)
        assert clock.wall_ms() - wall_ms == pytest.approx(-55_000, abs=1)
        assert clock.now_ms() - now_ms == pytest.approx(5_000, abs=1)

    World(1).run(main)
