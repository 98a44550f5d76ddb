"""A log beside a list of records that does the obvious: they must agree whatever happens to the log."""

from typing import NamedTuple

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.config import LogConfig
from headrace.records.builder import build_batch
from headrace.records.compression import Codec
from headrace.records.layout import iter_headers
from headrace.records.reader import Record
from headrace.storage.log import Log
from headrace.testing.simulator.disk import MemoryDisk

from .helpers import open_log

CONFIG = LogConfig(segment_bytes=900, index_interval_bytes=200, segment_ms=400)


class Batch(NamedTuple):
    base_offset: int
    end_offset: int
    data: bytes
    timestamps: list[int]
    epoch: int


class LogAndList(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.disk = MemoryDisk()
        self.disk.make_dirs("/data")
        self.log: Log = open_log(self.disk, config=CONFIG)
        self.batches: list[Batch] = []
        self.start = 0
        self.end = 0
        self.epoch = 0

    def make(self, timestamps: list[int], codec: Codec, gap: int = 0) -> Batch:
        base = self.end + gap
        records = [Record(base + at, when, None, b"v" * 20) for at, when in enumerate(timestamps)]
        data = build_batch(records, base_offset=base, leader_epoch=self.epoch, compression=codec)
        return Batch(base, base + len(records), data, timestamps, self.epoch)

    @rule(
        timestamps=st.lists(st.integers(1000, 3000), min_size=1, max_size=5),
        codec=st.sampled_from([Codec.NONE, Codec.LZ4]),
    )
    def append(self, timestamps: list[int], codec: Codec) -> None:
        made = self.make(timestamps, codec)
        self.log.append(made.data, made.base_offset, made.end_offset - 1, self.epoch, max(timestamps), 1000)
        self.batches.append(made)
        self.end = made.end_offset

    @rule(
        many=st.lists(
            st.tuples(st.integers(0, 3), st.lists(st.integers(1000, 3000), min_size=1, max_size=3)), max_size=6
        )
    )
    def replicate(self, many: list[tuple[int, list[int]]]) -> None:
        """Offsets with gaps, as a follower of a compacted log sees them."""
        data = b""
        for gap, timestamps in many:
            made = self.make(timestamps, Codec.NONE, gap)
            self.batches.append(made)
            self.end = made.end_offset
            data += made.data
        self.log.append_batches(data, 1000)

    @rule()
    def roll(self) -> None:
        self.log.roll(1000)

    @rule()
    def new_leader(self) -> None:
        self.epoch += 1

    @precondition(lambda self: self.batches)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.start, self.end))
        self.log.truncate_to(offset)
        holding = [batch for batch in self.batches if batch.base_offset < offset < batch.end_offset]
        self.batches = [batch for batch in self.batches if batch.end_offset <= offset]
        self.end = min([offset, *(batch.base_offset for batch in holding)])
        self.start = min(self.start, self.end)
        self.epoch += 1

    @rule(data=st.data())
    def delete_records(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(0, self.end))
        self.log.advance_log_start(offset)
        self.start = max(self.start, offset)
        self.batches = [batch for batch in self.batches if batch.end_offset > self.start]

    @precondition(lambda self: len(self.log.segments) > 1)
    @rule()
    def delete_oldest_segment(self) -> None:
        removed = self.log.delete_segments(1, 1000)
        for path in removed:
            self.disk.remove(path)
        self.start = max(self.start, self.log.segments[0].base_offset)
        self.batches = [batch for batch in self.batches if batch.end_offset > self.start]

    @rule(clean=st.booleans(), checkpointed=st.booleans())
    def restart(self, clean: bool, checkpointed: bool) -> None:
        if clean:
            self.log.close()
        recovery_point = self.log.recovery_point if checkpointed else 0
        self.disk.kill()
        config = LogConfig(segment_bytes=900, index_interval_bytes=200, segment_ms=400, compact=True)
        self.log = open_log(self.disk, clean=clean, config=config, recovery_point=recovery_point, log_start=self.start)
        # Offsets of a gap at the very end are only in the list's memory.
        self.end = self.log.end_offset
        assert self.end >= max([batch.end_offset for batch in self.batches], default=self.start)

    @rule()
    def sync(self) -> None:
        self.log.flush()
        assert self.log.durable_end == self.end

    @precondition(lambda self: self.batches)
    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.start, self.end))
        bound = data.draw(st.integers(offset, self.end))
        max_bytes = data.draw(st.sampled_from([1, 100, 400, 10_000]))
        part = self.log.read(offset, max_bytes, bound)
        expected = [b for b in self.batches if b.end_offset > offset and b.end_offset <= bound]
        if part is None:
            # Only what is left of the range may be missing: no batch in it is whole below the bound.
            assert not expected
            return
        found = part.read()
        part.release()
        assert len(found) <= max(max_bytes, len(expected[0].data))
        whole = b"".join(batch.data for batch in expected)
        assert whole.startswith(found)
        assert len(list(iter_headers(found))) >= 1

    @rule(timestamp=st.integers(900, 3100))
    def look_up(self, timestamp: int) -> None:
        found = self.log.offset_for_timestamp(timestamp, self.end)
        for batch in self.batches:
            for at, when in enumerate(batch.timestamps):
                if when >= timestamp and batch.base_offset + at >= self.start:
                    assert found == (batch.base_offset + at, when, batch.epoch)
                    return
        assert found is None

    @invariant()
    def agree(self) -> None:
        log = self.log
        assert (log.log_start_offset, log.end_offset) == (self.start, self.end)
        assert log.recovery_point <= log.durable_end <= log.end_offset or log.recovery_point <= log.end_offset
        latest = max((when for batch in self.batches for when in batch.timestamps), default=-1)
        segments = [segment for segment in log.segments if segment.size]
        assert max((segment.max_timestamp for segment in segments), default=-1) >= latest
        for batch in self.batches:
            if batch.base_offset >= self.start:
                assert log.epochs.epoch_for(batch.base_offset) == batch.epoch


TestLogAndList = LogAndList.TestCase
TestLogAndList.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
