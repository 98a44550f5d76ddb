"""Thousands of random calls to ProducerStates and to Kafka 4.3's ProducerStateManager: every answer must agree."""

import random
import struct
from pathlib import Path

import pytest
from tests.reference.apache import Unavailable, run_java

from headrace.errors import KafkaError
from headrace.records.control import Marker
from headrace.replication.producers import ProducerStates

pytestmark = pytest.mark.reference

JAVA = """
import java.io.File;
import java.nio.file.*;
import java.util.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.record.internal.*;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.storage.internals.log.*;

public class Main {
    static int increment(int sequence, int by) { return (int) (((long) sequence + by) & 0x7FFFFFFFL); }

    public static void main(String[] args) throws Exception {
        File dir = new File(args[1]);
        var config = new ProducerStateManagerConfig(1000, true);
        var manager = new ProducerStateManager(new TopicPartition("t", 0), dir, 60000, config, Time.SYSTEM);
        for (String line : Files.readAllLines(Path.of(args[0]))) {
            String[] f = line.split(" ");
            String answer;
            try {
                answer = run(manager, f, dir);
            } catch (Exception e) {
                answer = Errors.forException(e).name();
            }
            var unstable = manager.firstUnstableOffset();
            System.out.println(answer + " " + (unstable.isPresent() ? unstable.get().messageOffset : -1) + " " + manager.producerIdCount());
        }
    }

    static String run(ProducerStateManager manager, String[] f, File dir) throws Exception {
        long pid = f.length > 1 ? Long.parseLong(f[1]) : 0;
        switch (f[0]) {
            case "data": {
                short epoch = Short.parseShort(f[2]);
                int first = Integer.parseInt(f[3]), delta = Integer.parseInt(f[4]);
                long offset = Long.parseLong(f[5]), now = Long.parseLong(f[6]);
                boolean transactional = f[7].equals("1");
                int last = increment(first, delta);
                var entry = manager.lastEntry(pid);
                if (entry.isPresent() && entry.get().producerEpoch() == epoch)
                    for (BatchMetadata batch : entry.get().batchMetadata())
                        if (batch.firstSeq() == first && batch.lastSeq() == last)
                            return "duplicate:" + batch.firstOffset() + ":" + batch.lastOffset() + ":" + batch.timestamp();
                var info = manager.prepareUpdate(pid, AppendOrigin.CLIENT);
                info.appendDataBatch(epoch, first, last, now, new LogOffsetMetadata(offset), offset + delta, transactional);
                manager.update(info);
                if (transactional) manager.clearVerificationStateEntry(pid);
                return "ok";
            }
            case "marker": {
                short epoch = Short.parseShort(f[2]);
                long offset = Long.parseLong(f[5]), now = Long.parseLong(f[6]);
                var type = f[3].equals("1") ? ControlRecordType.COMMIT : ControlRecordType.ABORT;
                var info = manager.prepareUpdate(pid, AppendOrigin.COORDINATOR);
                var completed = info.appendEndTxnMarker(new EndTransactionMarker(type, Integer.parseInt(f[4])), epoch, offset, now, Short.parseShort(f[7]));
                manager.update(info);
                // Kafka clears it always. Here the next transaction of a producer, whose epoch the marker has, may have begun.
                var verification = manager.verificationStateEntry(pid);
                if (verification == null || Short.parseShort(f[7]) < 2 || !verification.supportsEpochBump()
                        || verification.epoch() < epoch)
                    manager.clearVerificationStateEntry(pid);
                String answer = "ok";
                if (completed.isPresent()) {
                    long stable = manager.lastStableOffset(completed.get());
                    manager.completeTxn(completed.get());
                    if (completed.get().isAborted())
                        answer = "aborted:" + completed.get().firstOffset() + ":" + completed.get().lastOffset() + ":" + stable;
                }
                return answer;
            }
            case "verify": {
                short epoch = Short.parseShort(f[2]);
                var entry = manager.lastEntry(pid);
                if (entry.isPresent() && entry.get().currentTxnFirstOffset().isPresent() && entry.get().producerEpoch() == epoch)
                    return "open";
                // Kafka makes one, which refuses what the producer with the newer epoch sends meanwhile.
                if (entry.isPresent() && entry.get().producerEpoch() > epoch) return "ok";
                manager.maybeCreateVerificationStateEntry(pid, Integer.parseInt(f[3]), epoch, f[4].equals("1"));
                return "ok";
            }
            case "committed": manager.onHighWatermarkUpdated(Long.parseLong(f[1])); return "ok";
            case "expire": manager.removeExpiredProducers(Long.parseLong(f[1])); return "ok";
            case "snapshot": {
                File file = new File(dir, "out");
                file.delete();
                ProducerStateManager.writeSnapshot(file, manager.activeProducers(), false);
                return HexFormat.of().formatHex(Files.readAllBytes(file.toPath()));
            }
        }
        throw new IllegalStateException(f[0]);
    }
}
"""


def script(seed: int, steps: int) -> list[str]:
    """Mostly plausible traffic: right next sequences, retries, bumps, and now and then nonsense."""
    dice = random.Random(seed)
    lines = []
    offset, now_ms, high_watermark = 0, 1_000, 0
    epochs = dict.fromkeys(range(5), 0)
    sequences = dict.fromkeys(range(5), 0)
    sent: list[str] = []
    for _ in range(steps):
        pid = dice.randrange(5)
        epoch = epochs[pid] + dice.choice([0] * 12 + [1, -1])
        kind = dice.choices(
            ["data", "retry", "marker", "verify", "committed", "expire", "snapshot"], [50, 12, 14, 4, 8, 1, 2]
        )[0]
        now_ms += dice.choice([0, 1, 50, 400])
        if kind == "data":
            sequence = (
                (sequences[pid] + dice.choice([0] * 15 + [1, 7, -3])) % (1 << 31)
                if epoch <= epochs[pid]
                else dice.choice([0, 0, 5])
            )
            if dice.random() < 0.02:
                sequence = (1 << 31) - 2
            delta = dice.randrange(4)
            sent.append(f"data {pid} {epoch} {sequence} {delta} {{offset}} {now_ms} {int(pid < 3)}")
            lines.append(sent[-1].format(offset=offset))
            epochs[pid] = max(epoch, epochs[pid])
            sequences[pid] = (sequence + delta + 1) % (1 << 31)
            offset += delta + 1
        elif kind == "retry" and sent:
            lines.append(dice.choice(sent[-12:]).format(offset=offset))
            offset += 4
        elif kind == "marker":
            version = dice.choice([0, 0, 2])
            marker_epoch = epoch + (1 if version == 2 and dice.random() < 0.8 else 0)
            lines.append(
                f"marker {pid} {marker_epoch} {dice.randrange(2)} {dice.choice([3, 3, 3, 2])} {offset} {now_ms}"
                f" {version}"
            )
            if marker_epoch > epochs[pid]:
                epochs[pid], sequences[pid] = marker_epoch, 0
            offset += 1
        elif kind == "verify":
            lines.append(f"verify {pid} {epoch} {sequences[pid]} {dice.randrange(2)}")
        elif kind == "committed":
            high_watermark = dice.randint(high_watermark, offset)
            lines.append(f"committed {high_watermark}")
        elif kind == "expire":
            lines.append(f"expire {now_ms + dice.choice([0, 500, 1_500])}")
        elif kind == "snapshot":
            lines.append("snapshot")
    return lines


def ours(states: ProducerStates, line: str) -> str:
    kind, *rest = line.split()
    fields = [int(field) for field in rest]
    try:
        if kind == "data":
            pid, epoch, sequence, delta, offset, now_ms, transactional = fields
            mark = states.check(pid, epoch, sequence, delta, transactional=bool(transactional))
            if mark is not None:
                return f"duplicate:{mark.base_offset}:{mark.last_offset}:{mark.timestamp}"
            states.record(pid, epoch, sequence, offset, delta, now_ms, bool(transactional))
        elif kind == "marker":
            pid, epoch, committed, coordinator_epoch, offset, now_ms, version = fields
            states.check_marker(pid, epoch, coordinator_epoch, version)
            marker = Marker(bool(committed), coordinator_epoch)
            aborted = states.end_transaction(pid, epoch, marker, offset, now_ms, version)
            if aborted is not None:
                return f"aborted:{aborted.first_offset}:{aborted.last_offset}:{aborted.last_stable_offset}"
        elif kind == "verify":
            pid, epoch, sequence, bump = fields
            if states.begin_verification(pid, epoch, sequence, 1 << 60, supports_epoch_bump=bool(bump)) is None:
                return "open"
        elif kind == "committed":
            states.committed(fields[0])
        elif kind == "expire":
            states.expire(fields[0], 1_000)
        elif kind == "snapshot":
            return states.snapshot().hex()
    except KafkaError as error:
        return error.error.name
    return "ok"


def entries(snapshot: bytes) -> list[bytes]:
    """Snapshot entries in one order: Kafka's depends on its hash map."""
    return sorted(snapshot[at : at + 46] for at in range(10, len(snapshot), 46))


@pytest.mark.parametrize("seed", range(3))
def test_every_answer_agrees(seed: int, tmp_path: Path) -> None:
    lines = script(seed, 4_000)
    (tmp_path / "script").write_text("\n".join(lines))
    (tmp_path / "dir").mkdir()
    try:
        answers = run_java(JAVA, str(tmp_path / "script"), str(tmp_path / "dir")).splitlines()
    except Unavailable as missing:
        pytest.skip(str(missing))
    states = ProducerStates(verify_transactions=False)
    kinds = set()
    assert len(answers) == len(lines)
    for number, (line, answer) in enumerate(zip(lines, answers)):
        own = ours(states, line)
        theirs, unstable, count = answer.split()
        if line == "snapshot":
            theirs_bytes, own_bytes = bytes.fromhex(theirs), bytes.fromhex(own)
            assert entries(own_bytes) == entries(theirs_bytes), f"step {number}"
            assert struct.unpack(">h", own_bytes[:2]) == struct.unpack(">h", theirs_bytes[:2])
            states_again = ProducerStates()
            states_again.load(theirs_bytes, 0, 1 << 60)
        else:
            assert own == theirs, f"step {number}: {line}"
            kinds.add(own.split(":")[0])
        now = states.first_unstable_offset
        assert (-1 if now is None else now, len(states)) == (int(unstable), int(count)), f"step {number}: {line}"
    assert kinds >= {
        "ok",
        "duplicate",
        "aborted",
        "OUT_OF_ORDER_SEQUENCE_NUMBER",
        "INVALID_PRODUCER_EPOCH",
        "TRANSACTION_COORDINATOR_FENCED",
    }
