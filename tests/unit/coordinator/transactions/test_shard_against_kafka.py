"""Thousands of random requests to TransactionShard and to Kafka 4.3's TransactionCoordinator: every answer must agree.

Kafka's class runs as it is, with its log and its marker channel replaced: a write succeeds at once, and markers are
written when the script says so.
"""

import random
from pathlib import Path
from typing import Any

import pytest

from headrace.coordinator.outcome import Outcome, Promise
from headrace.coordinator.transactions.records import decode, transaction_record
from headrace.coordinator.transactions.shard import TIMEOUT, WAIT, Producer
from headrace.coordinator.transactions.transaction import Transaction
from headrace.errors import Err
from tests.reference.apache import Unavailable, run_java
from tests.unit.coordinator.transactions.harness import Driver

pytestmark = pytest.mark.reference

JAVA = """
import java.nio.file.*;
import java.util.*;
import java.util.stream.*;
import kafka.coordinator.transaction.*;
import kafka.server.KafkaConfig;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.requests.TransactionResult;
import org.apache.kafka.common.utils.*;
import org.apache.kafka.coordinator.transaction.*;
import org.apache.kafka.server.common.*;
import scala.Function1;
import scala.Option;
import scala.runtime.BoxedUnit;
import scala.util.Either;
import scala.util.Right;

public class Main {
    static long now = 1000000;
    static long nextId = 100;
    static final Map<String, TransactionMetadata> transactions = new HashMap<>();
    static final Map<String, TxnTransitMetadata> marking = new HashMap<>();
    static final Map<String, String> written = new HashMap<>();
    static TransactionVersion level;
    static TransactionConfig config = new TransactionConfig(604800000, 900000, 50, (short) 3, 104857600, 5242880, 2,
            10000, 3600000, false, 30000);

    static class Clock implements Time {
        public long milliseconds() { return now; }
        public long hiResClockMs() { return now; }
        public long nanoseconds() { return now * 1000000; }
        public void sleep(long ms) { }
        public void waitObject(Object o, java.util.function.Supplier<java.lang.Boolean> c, long d) { }
        public org.apache.kafka.common.utils.Timer timer(long t) { return SYSTEM.timer(t); }
    }

    static class Manager extends TransactionStateManager {
        Manager() { super(1, null, null, null, config, new Clock(), new Metrics()); }
        public TransactionVersion transactionVersionLevel() { return level; }
        public Either<Errors, Option<CoordinatorEpochAndTxnMetadata>> getTransactionState(String id) {
            var found = transactions.get(id);
            return new Right<>(Option.apply(found == null ? null : new CoordinatorEpochAndTxnMetadata(5, found)));
        }
        public Either<Errors, CoordinatorEpochAndTxnMetadata> putTransactionStateIfNotExists(TransactionMetadata made) {
            transactions.put(made.transactionalId(), made);
            return new Right<>(new CoordinatorEpochAndTxnMetadata(5, made));
        }
        public void appendTransactionToLog(String id, int epoch, TxnTransitMetadata next, Function1<Errors, BoxedUnit> done,
                Function1<Errors, Object> retry, RequestLocal local) {
            written.put(id, HexFormat.of().formatHex(TransactionLog.valueToBytes(next, level)));
            transactions.get(id).completeTransitionTo(next);
            done.apply(Errors.NONE);
        }
        public scala.collection.Iterable<TransactionalIdAndProducerIdEpoch> timedOutTransactions() {
            var late = transactions.values().stream()
                .filter(one -> one.state() == TransactionState.ONGOING && !one.pendingTransitionInProgress()
                    && one.txnStartTimestamp() + one.txnTimeoutMs() <= now)
                .map(one -> new TransactionalIdAndProducerIdEpoch(one.transactionalId(), one.producerId(), one.producerEpoch()))
                .collect(Collectors.toList());
            return scala.jdk.javaapi.CollectionConverters.asScala(late);
        }
    }

    static class Markers extends TransactionMarkerChannelManager {
        Markers(KafkaConfig config, TransactionStateManager manager) { super(config, null, null, manager, new Clock()); }
        public void addTxnMarkersToSend(int epoch, TransactionResult result, TransactionMetadata one, TxnTransitMetadata next) {
            marking.put(one.transactionalId(), next);
            if (one.topicPartitions().isEmpty()) complete(one.transactionalId());
        }
    }

    static void complete(String id) {
        var next = marking.remove(id);
        if (next == null) return;
        // The time of the end is that of the markers here.
        next = new TxnTransitMetadata(next.producerId(), next.prevProducerId(), next.nextProducerId(), next.producerEpoch(),
            next.lastProducerEpoch(), next.txnTimeoutMs(), next.txnState(), next.topicPartitions(), next.txnStartTimestamp(),
            now, next.clientTransactionVersion());
        written.put(id, HexFormat.of().formatHex(TransactionLog.valueToBytes(next, level)));
        transactions.get(id).completeTransitionTo(next);
    }

    static String answer = "";

    public static void main(String[] args) throws Exception {
        var properties = new Properties();
        properties.putAll(Map.of("node.id", "1", "process.roles", "broker", "controller.listener.names", "C",
            "controller.quorum.bootstrap.servers", "127.0.0.1:1", "listeners", "PLAINTEXT://127.0.0.1:1",
            "listener.security.protocol.map", "C:PLAINTEXT,PLAINTEXT:PLAINTEXT"));
        var manager = new Manager();
        var ids = new ProducerIdManager() { public long generateProducerId() { return ++nextId; } };
        var coordinator = new TransactionCoordinator(config, null, () -> ids, manager, new Markers(new KafkaConfig(properties), manager),
            new Clock(), new LogContext());
        level = TransactionVersion.fromFeatureLevel(Short.parseShort(args[1]));
        var local = RequestLocal.noCaching();
        for (String line : Files.readAllLines(Path.of(args[0]))) {
            String[] f = line.split(" ");
            answer = "";
            String id = f[1];
            long pid = Long.parseLong(f[2]);
            short epoch = Short.parseShort(f[3]);
            var version = TransactionVersion.fromFeatureLevel(Short.parseShort(f[4]));
            Set<TopicPartition> partitions = new HashSet<>();
            for (String one : f[5].split(",")) partitions.add(new TopicPartition("t", Integer.parseInt(one)));
            try {
                switch (f[0]) {
                    case "init":
                        coordinator.handleInitProducerId(id, 60000, false, false,
                            Option.apply(pid < 0 ? null : new ProducerIdAndEpoch(pid, epoch)), result -> {
                                answer = result.error() + " " + result.producerId() + " " + result.producerEpoch();
                                return BoxedUnit.UNIT;
                            }, local);
                        break;
                    case "add":
                        coordinator.handleAddPartitionsToTransaction(id, pid, epoch, partitions, error -> {
                            answer = error.name();
                            return BoxedUnit.UNIT;
                        }, version, local);
                        break;
                    case "verify":
                        coordinator.handleVerifyPartitionsInTransaction(id, pid, epoch, partitions, result -> {
                            answer = result.topicResults().stream().flatMap(t -> t.resultsByPartition().stream())
                                .sorted(Comparator.comparingInt(r -> r.partitionIndex()))
                                .map(r -> Errors.forCode(r.partitionErrorCode()).name()).collect(Collectors.joining(","));
                            return BoxedUnit.UNIT;
                        });
                        break;
                    case "commit":
                    case "abort":
                        coordinator.handleEndTransaction(id, pid, epoch,
                            f[0].equals("commit") ? TransactionResult.COMMIT : TransactionResult.ABORT, version,
                            (error, newId, newEpoch) -> {
                                answer = error + " " + newId + " " + newEpoch;
                                return BoxedUnit.UNIT;
                            }, local);
                        break;
                    case "markers": complete(id); break;
                    case "force":
                        if (transactions.containsKey(id) && !transactions.get(id).pendingTransitionInProgress())
                            transactions.get(id).setProducerEpoch(epoch);
                        break;
                    case "time":
                        now += pid;
                        coordinator.abortTimedOutTransactions(one -> (error, newId, newEpoch) -> BoxedUnit.UNIT);
                        break;
                }
            } catch (Exception e) {
                answer = "failed " + e;
            }
            var one = transactions.get(id);
            System.out.println(answer + "|" + (one == null ? "-" : String.join(" ", one.state().stateName(), "" + one.producerId(),
                "" + one.producerEpoch(), "" + one.lastProducerEpoch(), "" + one.prevProducerId(), "" + one.prepareNoTransit().nextProducerId(),
                "" + one.txnTimeoutMs(), "" + one.txnStartTimestamp(), "" + one.txnLastUpdateTimestamp(),
                "" + one.clientTransactionVersion().featureLevel(),
                one.topicPartitions().stream().map(TopicPartition::partition).sorted().map(String::valueOf).collect(Collectors.joining(","))))
                + "|" + written.getOrDefault(id, "-"));
        }
        System.exit(0);
    }
}
"""

EPOCH_MAX = 0x7FFF


def script(seed: int, steps: int, level: int) -> list[str]:
    """Mostly what clients do, with the ids and epochs that they may still have in their heads."""
    dice = random.Random(seed)
    lines = []
    for _ in range(steps):
        id = dice.choice(["a", "b"])
        kind = dice.choices(
            ["init", "add", "verify", "commit", "abort", "markers", "time", "force"], [14, 26, 6, 16, 10, 24, 5, 1]
        )[0]
        version = dice.choice([0, level]) if level >= 2 else 0
        partitions = ",".join(str(one) for one in sorted({dice.randrange(4) for _ in range(dice.randint(1, 3))}))
        epoch = EPOCH_MAX - dice.choice([1, 2, 3]) if kind == "force" else 0
        lines.append(f"{kind} {id} {{id}} {{epoch}} {version} {partitions} {epoch} {dice.randrange(1 << 30)}")
    return lines


def shown(transaction: Transaction | None) -> str:
    if transaction is None:
        return "-"
    return " ".join(
        str(field)
        for field in (
            transaction.state.shown,
            transaction.producer_id,
            transaction.producer_epoch,
            transaction.last_producer_epoch,
            transaction.previous_producer_id,
            transaction.next_producer_id,
            transaction.timeout_ms,
            transaction.start_ms,
            transaction.update_ms,
            transaction.client_version,
            ",".join(str(index) for _, index in sorted(transaction.partitions)),
        )
    )


class Ours:
    """Plays the script here, and writes it down with the ids and epochs that it came to use."""

    def __init__(self, level: int) -> None:
        self.driver = Driver(level)
        self.known: dict[str, list[tuple[int, int]]] = {"a": [(7, 0)], "b": [(7, 0)]}

    def play(self, line: str) -> tuple[str, str, str]:
        kind, id, _, _, version, partitions, forced, dice = line.split()
        driver, chance = self.driver, random.Random(int(dice))
        producer_id, epoch = chance.choice(self.known[id][-3:] + 6 * self.known[id][-1:])
        if kind == "init" and chance.random() < 0.6:
            producer_id, epoch = -1, -1
        if kind == "force":
            epoch = int(forced)
        if kind == "time":
            producer_id = chance.choice([1_000, 30_000, 61_000])
        result: Any = self._do(kind, id, Producer(Err.NONE, producer_id, epoch), int(version), partitions)
        driver.commit()
        if isinstance(result, Promise):
            driver.settle(driver.shard.timeout((WAIT, id), driver.now_ms))
            result = driver.answers[result]
        if isinstance(result, Producer):
            if result.producer_id >= 0:
                self.known[id].append((result.producer_id, result.producer_epoch))
            result = f"{result.error.name} {result.producer_id} {result.producer_epoch}"
        elif isinstance(result, Err):
            result = result.name
        found = driver.shard.transactions.get(id)
        return f"{kind} {id} {producer_id} {epoch} {version} {partitions}", result, shown(found)

    def _do(self, kind: str, id: str, asked: Producer, version: int, partitions: str) -> Any:
        driver = self.driver
        wanted = [("t", int(one)) for one in partitions.split(",")]
        if kind == "init":
            return driver.init(id, None if asked.producer_id < 0 else asked[1:3])
        if kind == "add":
            return driver.add(asked, *wanted, id=id, version=version)
        if kind == "verify":
            errors = driver.shard.verify_partitions(id, asked.producer_id, asked.producer_epoch, wanted)
            return ",".join(errors[one].name for one in sorted(errors))
        if kind in ("commit", "abort"):
            return driver.end(asked, kind == "commit", id=id, version=version)
        if kind == "markers":
            self._markers(id)
        elif kind == "force":
            self._force(id, asked.producer_epoch)
        elif kind == "time":
            driver.now_ms += asked.producer_id
            for one in sorted(driver.states()):
                if driver.timers.get((TIMEOUT, one), driver.now_ms + 1) <= driver.now_ms:
                    del driver.timers[TIMEOUT, one]
                    driver.settle(driver.shard.timeout((TIMEOUT, one), driver.now_ms))
        return ""

    def _markers(self, id: str) -> None:
        found = self.driver.shard.transactions.get(id)
        if found is not None and found.state.is_prepared:
            self.driver.settle(
                self.driver.shard.marker_written(
                    id, found.producer_id, found.producer_epoch, found.partitions, self.driver.now_ms
                )
            )

    def _force(self, id: str, epoch: int) -> None:
        import msgspec

        found = self.driver.shard.transactions.get(id)
        if found is not None and not found.state.is_prepared:
            out = Outcome()
            out.records.append(
                transaction_record(msgspec.structs.replace(found, producer_epoch=epoch), self.driver.version)
            )
            self.driver.settle(out)
            self.known[id].append((found.producer_id, epoch))


@pytest.mark.parametrize("level", [1, 2])
def test_every_answer_and_every_state_is_kafkas(tmp_path: Path, level: int) -> None:
    ours = Ours(level)
    played = [ours.play(line) for line in script(level, 6_000, level)]
    (tmp_path / "script").write_text("\n".join(line for line, _, _ in played))
    try:
        output = run_java(JAVA, str(tmp_path / "script"), str(level))
    except Unavailable as error:
        pytest.skip(str(error))
    theirs = output.strip().split("\n")
    assert len(theirs) == len(played)
    for at, ((line, answer, state), said) in enumerate(zip(played, theirs)):
        their_answer, their_state, their_bytes = said.split("|")
        assert (answer, state) == (their_answer, their_state), f"{at}: {line}"
        if their_bytes != "-" and not line.startswith("force"):
            # What Kafka writes reads here as what is written here; -1 for the one field that records do not have.
            read = decode(b"\0\0\0\1a", bytes.fromhex(their_bytes))
            assert read is not None and read[1] is not None
            fields, theirs_read = state.split(" "), shown(read[1]).split(" ")
            if played[at - 1][0].startswith("force"):
                continue
            assert fields[:2] == theirs_read[:2] and fields[4:] == theirs_read[4:], f"{at}: {line}"


def test_the_log_of_this_shard_reads_as_it_was_lived() -> None:
    ours = Ours(2)
    for line in script(9, 3_000, 2):
        ours.play(line)
    before = {id: shown(one).split(" ") for id, one in ours.driver.states().items()}
    ours.driver.restart()
    after = {id: shown(one).split(" ") for id, one in ours.driver.states().items()}
    assert set(before) == set(after)
    for id, fields in before.items():
        assert fields[:3] + fields[4:] == after[id][:3] + after[id][4:]
