"""The order of work and the committed prefix, held against a model that only remembers lists."""

from dataclasses import dataclass, field

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.listeners.core.schedule import At, Order, Schedule, Unit

AT: list[At] = [("orders", 0), ("orders", 1)]
KEYS = [b"a", b"b", None]


@dataclass
class Row:
    at: At
    offset: int
    key: bytes | None
    due: float
    state: str = "waiting"
    tries: int = 0


@dataclass
class Model:
    rows: list[Row] = field(default_factory=list)

    def lane(self, order: Order, row: Row) -> tuple[object, ...]:
        return {
            Order.KEY: (row.at, row.key),
            Order.PARTITION: (row.at,),
            Order.NONE: (row.at, row.offset),
        }[order]

    def may_run(self, order: Order, now: float) -> list[Row]:
        """The first record of each lane that is not done with, unless it runs or has to wait."""
        first: dict[tuple[object, ...], Row] = {}
        for row in self.rows:
            if row.state not in ("finished", "passed on"):
                first.setdefault(self.lane(order, row), row)
        return [row for row in first.values() if row.state == "waiting" and row.due <= now]

    def prefix(self, at: At) -> int | None:
        """The end of the finished records at the beginning of a partition."""
        end = None
        for row in self.rows:
            if row.at == at:
                if row.state != "finished":
                    break
                end = row.offset + 1
        return end


class ScheduleMachine(RuleBasedStateMachine):
    @initialize(order=st.sampled_from(list(Order)), batch=st.sampled_from([1, 3]))
    def begin(self, order: Order, batch: int) -> None:
        self.order, self.now = order, 0.0
        self.schedule: Schedule[Row] = Schedule(order, batch_records=batch, partition_records_max=6)
        self.batch = batch
        self.model = Model()
        self.next_offset = dict.fromkeys(AT, 0)
        self.running: list[Unit[Row]] = []
        self.committed: dict[At, int] = {}
        self.paused: set[At] = set()

    @rule(
        at=st.sampled_from(AT), key=st.sampled_from(KEYS), gap=st.integers(1, 3), wait=st.sampled_from([0.0, 0.0, 5.0])
    )
    def read(self, at: At, key: bytes | None, gap: int, wait: float) -> None:
        offset = self.next_offset[at] + gap - 1
        self.next_offset[at] = offset + 1
        row = Row(at, offset, key, self.now + wait if wait else 0.0)
        self.model.rows.append(row)
        self.schedule.add(at, offset, key, row, 10, due=row.due)

    @rule()
    def start(self) -> None:
        allowed = self.model.may_run(self.order, self.now)
        unit = self.schedule.take(self.now)
        if unit is None:
            assert allowed == []
            return
        rows = [entry.record for entry in unit.entries]
        assert any(row is rows[0] for row in allowed)
        assert len(rows) <= self.batch
        lane = self.model.lane(self.order, rows[0])
        same = [row for row in self.model.rows if self.model.lane(self.order, row) == lane and row.state == "waiting"]
        assert rows == same[: len(rows)], "what is behind goes before"
        for row in rows:
            row.state = "running"
            row.tries += 1
        assert unit.attempt >= 1
        self.running.append(unit)

    def pick(self, data: st.DataObject) -> Unit[Row]:
        return self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        unit = self.pick(data)
        for entry in unit.entries:
            if entry.record.state == "running":
                entry.record.state = "finished"
        self.schedule.finish(unit)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), delay=st.sampled_from([0.0, 2.0, 7.0]))
    def fail(self, data: st.DataObject, delay: float) -> None:
        unit = self.pick(data)
        rows = [entry.record for entry in unit.entries]
        finished = 0 if unit.is_dropped else data.draw(st.integers(0, len(rows) - 1))
        for i, row in enumerate(rows):
            if row.state == "running":
                row.state = "finished" if i < finished else "waiting"
                row.due = self.now + delay
        self.schedule.retry(unit, self.now + delay, finished=finished)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def return_without_ack(self, data: st.DataObject) -> None:
        unit = self.pick(data)
        for entry in unit.entries:
            if entry.record.state == "running":
                entry.record.state = "passed on"
        entries = list(unit.entries)
        self.schedule.pass_on(unit)
        if data.draw(st.booleans()):
            self.schedule.acknowledge(entries)
            for entry in entries:
                if entry.record.state == "passed on":
                    entry.record.state = "finished"

    @rule(passed=st.floats(0.5, 4.0))
    def time_passes(self, passed: float) -> None:
        self.now += passed

    @rule()
    def commit(self) -> None:
        found = self.schedule.committable()
        self.schedule.committed(found.items())
        for at, prefix in found.items():
            assert prefix.next_offset > self.committed.get(at, -1), "a commit goes back"
            self.committed[at] = prefix.next_offset
        for at in AT:
            assert self.committed.get(at) == self.model.prefix(at)

    @rule(at=st.sampled_from(AT))
    def lose(self, at: At) -> None:
        """The partition is given away and comes back: it is read again from what was committed."""
        begin = self.committed.get(at, 0)
        ours = [unit for unit in self.running if unit.at == at and not unit.is_dropped]
        dropped = self.schedule.drop([at])
        assert {id(unit) for unit in dropped} == {id(unit) for unit in ours}
        self.model.rows = [
            row if row.at != at else Row(at, row.offset, row.key, 0.0, "finished")
            for row in self.model.rows
            if row.at != at or row.offset < begin
        ]
        self.next_offset[at] = begin
        self.paused.discard(at)

    @invariant()
    def limits_hold(self) -> None:
        if not hasattr(self, "schedule"):
            return
        waiting = [row for row in self.model.rows if row.state != "finished"]
        assert self.schedule.records == len(waiting)
        assert self.schedule.bytes == 10 * len(waiting)
        assert self.schedule.running == len(self.running)
        flow = self.schedule.flow()
        self.paused = (self.paused | set(flow.pause)) - set(flow.resume)
        for at in AT:
            rows = [row for row in self.model.rows if row.at == at]
            while rows and rows[0].state == "finished":
                rows.pop(0)
            if len(rows) >= 6:
                assert at in self.paused
            if len(rows) <= 3:
                assert at not in self.paused


ScheduleMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestSchedule = ScheduleMachine.TestCase


def test_a_failed_record_blocks_its_key_only() -> None:
    schedule: Schedule[str] = Schedule(Order.KEY)
    for offset, key in enumerate([b"a", b"a", b"b"]):
        schedule.add(("orders", 0), offset, key, f"{key!r} {offset}", 1)
    failed = schedule.take(0.0)
    assert failed is not None and failed.entries[0].offset == 0
    schedule.retry(failed, due=10.0)
    other = schedule.take(1.0)
    assert other is not None and other.entries[0].offset == 2
    schedule.finish(other)
    assert schedule.take(9.9) is None, "the second record of the key overtook the first"
    assert schedule.committable() == {}, "committed past a record that failed"
    assert schedule.next_due() == 10.0
    again = schedule.take(10.0)
    assert again is failed and again.attempt == 2
    schedule.finish(again)
    assert schedule.committable()["orders", 0].next_offset == 1


def test_outputs_wait_for_the_commit_of_their_record() -> None:
    schedule: Schedule[str] = Schedule(Order.NONE)
    for offset in range(3):
        schedule.add(("orders", 0), offset, None, str(offset), 1)
    units = [schedule.take(0.0) for _ in range(3)]
    assert units[0] is not None and units[1] is not None
    schedule.finish(units[1], ["of 1"])
    assert schedule.committable() == {}
    schedule.finish(units[0], ["of 0"])
    prefixes = schedule.committable()
    assert prefixes["orders", 0] == (2, ("of 0", "of 1"))
    assert units[2] is not None
    schedule.finish(units[2], ["of 2"])
    schedule.committed(prefixes.items())
    assert schedule.committable()["orders", 0] == (3, ("of 2",))


def test_bytes_pause_every_partition_until_half_is_left() -> None:
    schedule: Schedule[str] = Schedule(Order.NONE, bytes_max=100)
    schedule.add(("orders", 0), 0, None, "", 60)
    schedule.add(("orders", 1), 0, None, "", 50)
    assert sorted(schedule.flow().pause) == [("orders", 0), ("orders", 1)]
    first = schedule.take(0.0)
    assert first is not None
    assert schedule.flow() == ([], [])
    schedule.finish(first)
    assert sorted(schedule.flow().resume) == [("orders", 0), ("orders", 1)]
