"""The same folders compacted by Headrace and by Kafka 4.3's own Cleaner, round by round, batch by batch."""

import json
import shutil
from pathlib import Path
from random import Random
from typing import Any

import pytest

from headrace.config import LogConfig
from headrace.records.batch import BatchBuilder
from headrace.records.control import Marker, encode_marker
from headrace.records.layout import iter_headers
from headrace.records.reader import read_records
from headrace.storage.compaction import begin_swap, compact, dirty_range, plan
from headrace.storage.files import RealDisk
from headrace.storage.log import Log
from tests.reference.apache import Unavailable, dump_log, run_java

pytestmark = pytest.mark.reference

NOW_MS = 1_700_000_000_000
DAY_MS = 86_400_000
CONFIG = LogConfig(compact=True, delete=False, segment_bytes=700, index_interval_bytes=100)

JAVA = """
import java.io.File;
import java.lang.reflect.*;
import java.nio.ByteBuffer;
import java.nio.file.*;
import java.util.*;
import org.apache.kafka.common.record.internal.*;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.util.KafkaScheduler;
import org.apache.kafka.storage.internals.log.*;
import org.apache.kafka.storage.internals.utils.Throttler;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

public class Main {
    static long now;

    static String hex(ByteBuffer b) {
        if (b == null) return null;
        byte[] bytes = new byte[b.remaining()];
        b.duplicate().get(bytes);
        return "\\"" + HexFormat.of().formatHex(bytes) + "\\"";
    }

    public static void main(String[] args) throws Exception {
        Time time = (Time) Proxy.newProxyInstance(Main.class.getClassLoader(), new Class[]{Time.class}, (proxy, method, arguments) -> {
            if (method.getName().equals("milliseconds")) return now;
            return method.invoke(Time.SYSTEM, arguments);
        });
        List<String> rounds = Files.readAllLines(Path.of(args[1]));
        now = Long.parseLong(rounds.get(0).split(" ")[2]);
        var scheduler = new KafkaScheduler(1);
        scheduler.startup();
        var log = UnifiedLog.create(new File(args[0]), new LogConfig(Map.of("cleanup.policy", "compact", "internal.segment.bytes", "700",
                "index.interval.bytes", "100", "delete.retention.ms", "86400000", "file.delete.delay.ms", "0")), 0L, 0L, scheduler,
            new BrokerTopicStats(false), time, 60000, new ProducerStateManagerConfig(Integer.MAX_VALUE, false), 600000,
            new LogDirFailureChannel(1), true, Optional.empty());
        log.updateHighWatermark(log.logEndOffset());
        var cleaner = new Cleaner(0, new SkimpyOffsetMap(1 << 20), 1 << 20, 1 << 20, 0.9,
            new Throttler(Double.MAX_VALUE, 1000, "t", "t", time), time, p -> {});
        for (String round : rounds) {
            String[] f = round.split(" ");
            now = Long.parseLong(f[2]);
            var toClean = new LogToClean(log, Long.parseLong(f[0]), Long.parseLong(f[1]), false);
            long end = cleaner.doClean(toClean, now).getKey();
            StringBuilder out = new StringBuilder("{\\"clean_until\\": " + end + ", \\"segments\\": [");
            String comma = "";
            for (LogSegment segment : log.logSegments()) {
                out.append(comma).append("[").append(segment.baseOffset()).append(", [");
                comma = ", ";
                String inner = "";
                for (var batch : segment.log().batches()) {
                    out.append(inner).append("[").append(batch.baseOffset()).append(", ").append(batch.lastOffset()).append(", ")
                        .append(batch.countOrNull()).append(", ").append(batch.compressionType().id).append(", ")
                        .append(batch.isTransactional()).append(", ").append(batch.isControlBatch()).append(", ")
                        .append(batch.timestampType().id).append(", ")
                        .append(batch.deleteHorizonMs().orElse(-1)).append(", ").append(batch.maxTimestamp()).append(", ")
                        .append(batch.producerId()).append(", ").append(batch.producerEpoch()).append(", ").append(batch.baseSequence())
                        .append(", ").append(batch.partitionLeaderEpoch()).append(", [");
                    inner = ", ";
                    String third = "";
                    for (Record r : batch) {
                        out.append(third).append("[").append(r.offset()).append(", ").append(r.timestamp()).append(", ")
                            .append(hex(r.key())).append(", ").append(hex(r.value())).append("]");
                        third = ", ";
                    }
                    out.append("]]");
                }
                out.append("]]");
            }
            out.append("], \\"aborted\\": [");
            comma = "";
            for (var txn : log.collectAbortedTransactions(0, log.logEndOffset())) {
                out.append(comma).append("[").append(txn.producerId()).append(", ").append(txn.firstOffset()).append("]");
                comma = ", ";
            }
            System.out.println(out.append("]}"));
        }
        System.exit(0);
    }
}
"""


def write(folder: Path, dice: Random) -> Log:
    """A log with something of everything."""
    log = Log.open(RealDisk(), str(folder), CONFIG, now_ms=NOW_MS)
    keys = [b"a", b"b", b"c", b"d" * 50, b"e", None]
    sequences = dict.fromkeys(range(4), 0)
    open_transactions: set[int] = set()
    timestamp = NOW_MS
    for _ in range(dice.randint(40, 90)):
        timestamp += dice.randint(-5, 50)
        options: dict[str, Any] = {
            "base_offset": log.end_offset,
            "leader_epoch": 2,
            "compression": dice.choice([0, 0, 1, 2, 3, 4]),
        }
        pid = dice.randrange(-1, 4)
        if pid >= 0 and dice.random() < 0.25:
            committed = dice.random() < 0.5
            open_transactions.discard(pid)
            batch = encode_marker(
                Marker(committed, 1),
                producer_id=pid,
                producer_epoch=0,
                timestamp=timestamp,
                base_offset=log.end_offset,
                leader_epoch=2,
            )
            log.append_batches(batch, NOW_MS)
            continue
        count = dice.randint(1, 4)
        if pid >= 0:
            # Producer 0 is idempotent, the others transactional.
            options |= {
                "producer_id": pid,
                "producer_epoch": 0,
                "base_sequence": sequences[pid],
                "transactional": pid > 0,
            }
            sequences[pid] += count
            if pid > 0:
                open_transactions.add(pid)
        if dice.random() < 0.1:
            options["log_append_time_ms"] = timestamp + 7
        builder = BatchBuilder(**options)
        for _ in range(count):
            value = None if dice.random() < 0.25 else bytes(dice.randint(0, 90))
            builder.append(timestamp + dice.randint(-3, 3), dice.choice(keys), value)
        log.append_batches(builder.build(), NOW_MS)
        if dice.random() < 0.1:
            log.roll(NOW_MS)
    for pid in sorted(open_transactions):
        marker = encode_marker(
            Marker(dice.random() < 0.5, 1),
            producer_id=pid,
            producer_epoch=0,
            timestamp=timestamp,
            base_offset=log.end_offset,
            leader_epoch=2,
        )
        log.append_batches(marker, NOW_MS)
    log.roll(NOW_MS)
    builder = BatchBuilder(base_offset=log.end_offset, leader_epoch=2)
    builder.append(timestamp, b"z", b"active")
    log.append_batches(builder.build(), NOW_MS)
    log.close()
    return Log.open(RealDisk(), str(folder), CONFIG, clean=True, recovery_point=log.end_offset, now_ms=NOW_MS)


def shape(log: Log) -> list[Any]:
    segments: list[Any] = []
    for segment in log.segments:
        data = log.disk.read_bytes(segment.path(".log"))
        found = []
        for position, h in iter_headers(data):
            records = [
                [r.offset, r.timestamp, r.key and r.key.hex(), None if r.value is None else r.value.hex()]
                for r in read_records(data, position, h)
            ]
            place = [h.base_offset, h.last_offset, h.count, h.codec]
            kind = [h.is_transactional, h.is_control, int(h.is_log_append_time)]
            times = [-1 if h.delete_horizon_ms is None else h.delete_horizon_ms, h.max_timestamp]
            producer = [h.producer_id, h.producer_epoch, h.base_sequence, h.leader_epoch]
            found.append([*place, *kind, *times, *producer, records])
        segments.append([segment.base_offset, found])
    return segments


@pytest.mark.parametrize("seed", [0, 1, 2, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(3, 20))])
def test_rounds_agree(seed: int, tmp_path: Path) -> None:
    dice = Random(seed)
    log = write(tmp_path / "t-0", dice)
    shutil.copytree(tmp_path / "t-0", tmp_path / "kafka" / "t-0")
    rounds, ours = [], []
    now_ms, first_dirty = NOW_MS + 10_000, 0
    for wait_ms in (0, 1_000, DAY_MS, 1_000, DAY_MS, DAY_MS):
        now_ms += wait_ms
        # Once clean, every round goes over the whole log again, as if the checkpoint were lost.
        dirty = dirty_range(log, 0, log.end_offset, now_ms)
        rounds.append(f"{first_dirty} {dirty.end_offset} {now_ms}")
        job = plan(log, dirty, now_ms)
        assert job is not None
        clean_until = 0
        for cleaned in compact(log.disk, job):
            swap = begin_swap(log, cleaned)
            assert swap is not None
            swap.run()
            swap.finish()
            clean_until = cleaned.clean_until
        ours.append(
            {
                "clean_until": clean_until,
                "segments": shape(log),
                "aborted": log.aborted_transactions(0, log.end_offset),
            }
        )
    (tmp_path / "rounds").write_text("\n".join(rounds))
    try:
        answers = run_java(JAVA, str(tmp_path / "kafka" / "t-0"), str(tmp_path / "rounds"))
    except Unavailable as missing:
        pytest.skip(str(missing))
    for number, line in enumerate(answers.splitlines()):
        theirs: dict[str, Any] = json.loads(line)
        own: dict[str, Any] = ours[number]
        assert own["clean_until"] == theirs["clean_until"], f"round {number}"
        assert [base for base, _ in own["segments"]] == [base for base, _ in theirs["segments"]], f"round {number}"
        for (base, batches), (_, their_batches) in zip(own["segments"], theirs["segments"]):
            assert batches == their_batches, f"round {number}, segment {base}"
        assert [list(entry) for entry in own["aborted"]] == theirs["aborted"], f"round {number}"
    assert len(answers.splitlines()) == len(rounds)
    log.close()


def test_kafka_s_dump_finds_indexes_in_order(tmp_path: Path) -> None:
    log = write(tmp_path / "t-0", Random(99))
    now_ms = NOW_MS + 10_000
    job = plan(log, dirty_range(log, 0, log.end_offset, now_ms), now_ms)
    assert job is not None
    for cleaned in compact(log.disk, job):
        swap = begin_swap(log, cleaned)
        assert swap is not None
        swap.run()
        swap.finish()
    log.close()
    files = [
        path
        for path in sorted((tmp_path / "t-0").iterdir())
        if path.suffix in (".log", ".index", ".timeindex", ".txnindex")
    ]
    try:
        text = dump_log(",".join(map(str, files)), "--deep-iteration", "--verify-index-only")
    except Unavailable as missing:
        pytest.skip(str(missing))
    assert "isvalid: false" not in text
    assert "mismatch" not in text.lower()
