// Runs a script of requests through Apache Kafka's own GroupCoordinatorShard and prints every effect.
// Member ids are made predictable by a SecureRandom that counts.

import java.net.InetAddress;
import java.nio.ByteBuffer;
import java.nio.file.*;
import java.security.*;
import java.util.*;
import java.util.concurrent.*;
import java.util.function.Supplier;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.message.*;
import org.apache.kafka.common.protocol.*;
import org.apache.kafka.common.requests.*;
import org.apache.kafka.common.security.auth.*;
import org.apache.kafka.common.utils.*;
import org.apache.kafka.coordinator.common.runtime.*;
import org.apache.kafka.coordinator.group.*;
import org.apache.kafka.coordinator.group.metrics.GroupCoordinatorMetrics;
import org.apache.kafka.coordinator.group.modern.share.ShareGroupConfig;
import org.apache.kafka.server.authorizer.AuthorizableRequestContext;
import org.apache.kafka.timeline.SnapshotRegistry;

public class Main {
    static long nowMs = 0;
    static int ids = 0;
    static long written = 0;
    static final StringBuilder out = new StringBuilder();
    static final HexFormat hex = HexFormat.of();
    static final GroupCoordinatorRecordSerde serde = new GroupCoordinatorRecordSerde();
    static final SnapshotRegistry registry = new SnapshotRegistry(new LogContext());
    static GroupCoordinatorShard shard;

    public static class Counting extends SecureRandomSpi {
        protected void engineSetSeed(byte[] seed) {}
        protected byte[] engineGenerateSeed(int n) { return new byte[n]; }
        protected void engineNextBytes(byte[] bytes) {
            Arrays.fill(bytes, (byte) 0);
            ids++;
            for (int i = 0; i < 4 && i < bytes.length; i++) bytes[bytes.length - 1 - i] = (byte) (ids >> (8 * i));
        }
    }

    static class Counter extends Provider {
        Counter() {
            super("counter", "1", "");
            putService(new Provider.Service(this, "SecureRandom", "counter", "Counting", null, null) {
                @Override public Object newInstance(Object parameter) { return new Counting(); }
            });
        }
    }

    record Armed(long dueMs, CoordinatorTimer.TimeoutOperation<CoordinatorRecord> operation) {}

    static class Timers implements CoordinatorTimer<CoordinatorRecord> {
        final LinkedHashMap<String, Armed> armed = new LinkedHashMap<>();
        public void schedule(String key, long delay, TimeUnit unit, boolean retry, TimeoutOperation<CoordinatorRecord> operation) {
            armed.remove(key);
            armed.put(key, new Armed(nowMs + unit.toMillis(delay), operation));
        }
        public void schedule(String key, long delay, TimeUnit unit, boolean retry, long backoff, TimeoutOperation<CoordinatorRecord> operation) {
            if (!key.equals("expire-group-metadata")) schedule(key, delay, unit, retry, operation);
        }
        public void scheduleIfAbsent(String key, long delay, TimeUnit unit, boolean retry, TimeoutOperation<CoordinatorRecord> operation) {
            if (!armed.containsKey(key)) schedule(key, delay, unit, retry, operation);
        }
        public void cancel(String key) { armed.remove(key); }
        public boolean isScheduled(String key) { return armed.containsKey(key); }
    }

    static class Clock implements Time {
        public long milliseconds() { return nowMs; }
        public long nanoseconds() { return nowMs * 1_000_000; }
        public void sleep(long ms) {}
        public void waitObject(Object o, Supplier<Boolean> c, long deadline) {}
        public <T> T waitForFuture(Future<T> future, long deadline) { throw new UnsupportedOperationException(); }
    }

    static class NoExecutor implements CoordinatorExecutor<CoordinatorRecord> {
        public <R> boolean schedule(String key, TaskRunnable<R> task, TaskOperation<CoordinatorRecord, R> operation) { return false; }
        public boolean isScheduled(String key) { return false; }
        public void cancel(String key) {}
    }

    record Context(String clientId, int requestVersion) implements AuthorizableRequestContext {
        public String listenerName() { return "PLAINTEXT"; }
        public SecurityProtocol securityProtocol() { return SecurityProtocol.PLAINTEXT; }
        public KafkaPrincipal principal() { return KafkaPrincipal.ANONYMOUS; }
        public InetAddress clientAddress() {
            try { return InetAddress.getByAddress(new byte[] {127, 0, 0, 1}); } catch (Exception e) { throw new RuntimeException(e); }
        }
        public int requestType() { return 0; }
        public int correlationId() { return 0; }
    }

    static void answer(String label, Message response, int version) {
        ByteBuffer buffer = MessageUtil.toByteBufferAccessor(response, (short) version).buffer();
        byte[] bytes = new byte[buffer.remaining()];
        buffer.get(bytes);
        out.append("a ").append(label).append(' ').append(hex.formatHex(bytes)).append('\n');
    }

    static <T> T apply(CoordinatorResult<T, CoordinatorRecord> result, long producerId) {
        for (CoordinatorRecord record : result.records()) {
            byte[] value = serde.serializeValue(record);
            out.append("r ").append(hex.formatHex(serde.serializeKey(record))).append(' ')
                .append(value == null ? "-" : hex.formatHex(value)).append('\n');
            if (result.replayRecords()) shard.replay(written, producerId, (short) 0, record);
            written++;
        }
        if (result.appendFuture() != null) result.appendFuture().complete(null);
        return result.response();
    }

    static void join(String label, Context context, short v, ByteBufferAccessor body) {
        JoinGroupRequestData request = new JoinGroupRequest(new JoinGroupRequestData(body, v), v).data();
        CompletableFuture<JoinGroupResponseData> future = new CompletableFuture<>();
        future.thenAccept(r -> answer(label, new JoinGroupResponse(r, v).data(), v));
        try {
            apply(shard.classicGroupJoin(context, request, future), -1);
        } catch (Exception e) {
            future.complete(new JoinGroupResponseData().setErrorCode(Errors.forException(e).code()));
        }
    }

    static void sync(String label, Context context, short v, ByteBufferAccessor body) {
        CompletableFuture<SyncGroupResponseData> future = new CompletableFuture<>();
        future.thenAccept(r -> answer(label, r, v));
        try {
            apply(shard.classicGroupSync(context, new SyncGroupRequestData(body, v), future), -1);
        } catch (Exception e) {
            future.complete(new SyncGroupResponseData().setErrorCode(Errors.forException(e).code()));
        }
    }

    static void leave(String label, Context context, short v, ByteBufferAccessor body) {
        LeaveGroupRequestData request = new LeaveGroupRequest.Builder("", List.of(new LeaveGroupRequestData.MemberIdentity())).build((short) 3).data();
        LeaveGroupRequestData parsed = new LeaveGroupRequestData(body, v);
        request.setGroupId(parsed.groupId());
        request.setMembers(v >= 3 ? parsed.members() : List.of(new LeaveGroupRequestData.MemberIdentity().setMemberId(parsed.memberId())));
        LeaveGroupResponseData response;
        try {
            response = apply(shard.classicGroupLeave(context, request), -1);
        } catch (Exception e) {
            Errors error = Errors.forException(e);
            response = new LeaveGroupResponseData();
            if (error == Errors.UNKNOWN_MEMBER_ID) {
                for (var member : request.members())
                    response.members().add(new LeaveGroupResponseData.MemberResponse().setMemberId(member.memberId())
                        .setGroupInstanceId(member.groupInstanceId()).setErrorCode(error.code()));
            } else response.setErrorCode(error.code());
        }
        answer(label, new LeaveGroupResponse(response, v).data(), v);
    }

    static void run(String verb, String client, String label, short v, byte[] bytes) {
        ByteBufferAccessor body = new ByteBufferAccessor(ByteBuffer.wrap(bytes));
        Context context = new Context(client, v);
        switch (verb) {
            case "join_group" -> join(label, context, v, body);
            case "sync_group" -> sync(label, context, v, body);
            case "leave_group" -> leave(label, context, v, body);
            case "heartbeat" -> {
                HeartbeatResponseData response;
                try {
                    response = apply(shard.classicGroupHeartbeat(context, new HeartbeatRequestData(body, v)), -1);
                } catch (Exception e) {
                    response = new HeartbeatResponseData().setErrorCode(Errors.forException(e).code());
                }
                answer(label, response, v);
            }
            case "offset_commit" -> {
                OffsetCommitRequestData request = new OffsetCommitRequestData(body, v);
                if (v >= 10)  // as the broker does before it asks the coordinator
                    request.topics().forEach(t -> t.setName(new String(ByteBuffer.allocate(16)
                        .putLong(t.topicId().getMostSignificantBits()).putLong(t.topicId().getLeastSignificantBits()).array()).replace("_", "")));
                OffsetCommitResponseData response;
                try {
                    response = apply(shard.commitOffset(context, request), -1);
                } catch (Exception e) {
                    response = OffsetCommitRequest.getErrorResponse(request, Errors.forException(e));
                }
                answer(label, response, v);
            }
            case "txn_offset_commit" -> {
                TxnOffsetCommitRequestData request = new TxnOffsetCommitRequestData(body, v);
                TxnOffsetCommitResponseData response;
                try {
                    response = apply(shard.commitTransactionalOffset(context, request), request.producerId());
                } catch (Exception e) {
                    response = TxnOffsetCommitRequest.getErrorResponse(request, Errors.forException(e));
                }
                answer(label, response, v);
            }
            case "offset_delete" -> {
                OffsetDeleteResponseData response;
                try {
                    response = apply(shard.deleteOffsets(context, new OffsetDeleteRequestData(body, v)), -1);
                } catch (Exception e) {
                    response = new OffsetDeleteResponseData().setErrorCode(Errors.forException(e).code());
                }
                answer(label, response, v);
            }
            default -> throw new IllegalArgumentException(verb);
        }
    }

    static void read(String groups) {
        registry.idempotentCreateSnapshot(written);
        for (String group : groups.split(",")) {
            var described = shard.describeGroups(new Context("x", 6), List.of(group), written);
            answer("describe-" + group, new DescribeGroupsResponseData().setGroups(described), 6);
            for (boolean stable : new boolean[] {false, true}) {
                var asked = new OffsetFetchRequestData.OffsetFetchRequestGroup().setGroupId(group).setTopics(null);
                var fetched = shard.fetchOffsets(asked, stable ? Long.MAX_VALUE : written);
                fetched.setTopics(new ArrayList<>(fetched.topics()));
                fetched.topics().sort(Comparator.comparing(OffsetFetchResponseData.OffsetFetchResponseTopics::name));
                fetched.topics().forEach(t -> t.partitions().sort(Comparator.comparing(OffsetFetchResponseData.OffsetFetchResponsePartitions::partitionIndex)));
                answer("fetch-" + group + "-" + stable, new OffsetFetchResponseData().setGroups(List.of(fetched)), 9);
            }
        }
        var listed = new ArrayList<>(shard.listGroups(List.of(), List.of(), written));
        listed.sort(Comparator.comparing(ListGroupsResponseData.ListedGroup::groupId));
        answer("list", new ListGroupsResponseData().setGroups(listed), 5);
        registry.deleteSnapshotsUpTo(written);
    }

    public static void main(String[] args) throws Exception {
        Security.insertProviderAt(new Counter(), 1);
        Timers timers = new Timers();
        List<String> lines = Files.readAllLines(Path.of(args[0]));
        Map<String, Object> properties = new HashMap<>();
        for (String pair : lines.get(0).split(" ")) properties.put(pair.split("=")[0], pair.split("=")[1]);
        GroupCoordinatorConfig config = GroupCoordinatorConfig.fromProps(properties);
        shard = new GroupCoordinatorShard.Builder(config, new GroupConfigManager(Map.of(), config, ShareGroupConfig.fromProps(Map.of())))
            .withAuthorizerPlugin(Optional.empty()).withLogContext(new LogContext()).withSnapshotRegistry(registry).withTime(new Clock())
            .withTimer(timers).withExecutor(new NoExecutor()).withCoordinatorMetrics(new GroupCoordinatorMetrics())
            .withTopicPartition(new TopicPartition("__consumer_offsets", 0)).build();
        shard.onLoaded(CoordinatorMetadataImage.EMPTY);
        UUID.randomUUID();
        ids = 0;
        for (int i = 1; i < lines.size(); i++) {
            out.append("= ").append(i).append('\n');
            String[] words = lines.get(i).split(" ", -1);
            switch (words[0]) {
                case "pass" -> {
                    long endMs = nowMs + Long.parseLong(words[1]);
                    while (true) {
                        Map.Entry<String, Armed> next = null;
                        for (var entry : timers.armed.entrySet())
                            if (next == null || entry.getValue().dueMs() < next.getValue().dueMs()) next = entry;
                        if (next == null || next.getValue().dueMs() > endMs) break;
                        timers.armed.remove(next.getKey());
                        nowMs = next.getValue().dueMs();
                        apply(next.getValue().operation().generateRecords(), -1);
                    }
                    nowMs = endMs;
                }
                case "expire" -> apply(shard.cleanupGroupMetadata(), -1);
                case "marker" -> {
                    shard.replayEndTransactionMarker(Long.parseLong(words[1]), (short) 0,
                        words[2].equals("commit") ? TransactionResult.COMMIT : TransactionResult.ABORT);
                    written++;
                }
                case "delete-groups" -> answer(words[1], new DeleteGroupsResponseData().setResults(
                    apply(shard.deleteGroups(new Context("x", 2), List.of(words[2].split(","))), -1)), 2);
                case "topic-deleted" -> apply(shard.onTopicsDeleted(List.of(new GroupCoordinatorShard.DeletedTopic(
                    new Uuid(Long.parseUnsignedLong(words[2], 16), Long.parseUnsignedLong(words[3], 16)), words[1]))), -1);
                default -> run(words[0], words[1], words[2], Short.parseShort(words[3]), hex.parseHex(words[4]));
            }
            read("g,h");
        }
        System.out.print(out);
    }
}
