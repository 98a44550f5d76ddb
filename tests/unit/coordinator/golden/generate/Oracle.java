// Apache Kafka's own group coordinator shard behind a pipe: commands come in as lines, what it decides goes out.
// sessions.py drives it, beside ours. Time is what the commands say; timers and background tasks fire on "advance".
//   config <name>=<value> ...        first, once
//   image <offset> <topic>:<id>:<partitions>[:<rack>+<rack>] ...
//   request <number> <now> <api key> <version> <client id> <hex>
//   advance <now>
// Answers: "record <key> <value or ->", "response <number> <hex>", "error <number> <code>", "member <instance> <id>",
// then ".".
// Where Kafka 4.3.1 errs it is mended here, so that what follows can still be compared; see the methods `mend...`.

import java.io.*;
import java.net.InetAddress;
import java.nio.ByteBuffer;
import java.util.*;
import java.util.concurrent.*;
import java.util.function.Supplier;
import org.apache.kafka.common.*;
import org.apache.kafka.common.message.*;
import org.apache.kafka.common.network.*;
import org.apache.kafka.common.protocol.*;
import org.apache.kafka.common.requests.*;
import org.apache.kafka.common.security.auth.*;
import org.apache.kafka.common.utils.*;
import org.apache.kafka.coordinator.common.runtime.*;
import org.apache.kafka.coordinator.group.*;
import org.apache.kafka.coordinator.group.generated.*;
import org.apache.kafka.coordinator.group.metrics.*;
import org.apache.kafka.coordinator.group.modern.consumer.ConsumerGroup;
import org.apache.kafka.coordinator.group.modern.share.*;
import org.apache.kafka.timeline.SnapshotRegistry;

public class Oracle {
    static long now = 0, offset = 0;
    static GroupCoordinatorShard shard;
    static final PrintStream out = System.out;
    static final GroupCoordinatorRecordSerde serde = new GroupCoordinatorRecordSerde();
    static final Map<String, Due> due = new LinkedHashMap<>();
    static Image image = new Image(0, Map.of());

    record Due(long at, Callable<CoordinatorResult<Void, CoordinatorRecord>> run) {}

    record Topic(String name, Uuid id, int partitionCount, List<String> racks)
            implements CoordinatorMetadataImage.TopicMetadata {
        public List<String> partitionRacks(int partition) { return new ArrayList<>(racks); }
    }

    record Image(long version, Map<String, Topic> topics) implements CoordinatorMetadataImage {
        public Set<Uuid> topicIds() {
            Set<Uuid> ids = new HashSet<>();
            topics.values().forEach(t -> ids.add(t.id));
            return ids;
        }
        public Set<String> topicNames() { return topics.keySet(); }
        public Optional<TopicMetadata> topicMetadata(String name) { return Optional.ofNullable(topics.get(name)); }
        public Optional<TopicMetadata> topicMetadata(Uuid id) {
            return topics.values().stream().filter(t -> t.id.equals(id)).map(t -> (TopicMetadata) t).findFirst();
        }
        public CoordinatorMetadataDelta emptyDelta() { return CoordinatorMetadataDelta.EMPTY; }
        public boolean isEmpty() { return topics.isEmpty(); }
    }

    record Delta(Image before, Image after) implements CoordinatorMetadataDelta {
        public Collection<Uuid> createdTopicIds() {
            Set<Uuid> ids = after.topicIds();
            ids.removeAll(before.topicIds());
            return ids;
        }
        public Collection<Uuid> changedTopicIds() {
            List<Uuid> ids = new ArrayList<>();
            after.topics.forEach((name, topic) -> { if (!topic.equals(before.topics.get(name))) ids.add(topic.id); });
            return ids;
        }
        public Set<Uuid> deletedTopicIds() {
            Set<Uuid> ids = before.topicIds();
            ids.removeAll(after.topicIds());
            return ids;
        }
        public CoordinatorMetadataImage image() { return before; }
    }

    static final Time time = new Time() {
        public long milliseconds() { return now; }
        public long nanoseconds() { return now * 1_000_000; }
        public void sleep(long ms) {}
        public void waitObject(Object object, Supplier<Boolean> condition, long deadline) {}
    };

    static final CoordinatorTimer<CoordinatorRecord> timer = new CoordinatorTimer<>() {
        public void schedule(String key, long delay, TimeUnit unit, boolean retry, TimeoutOperation<CoordinatorRecord> op) {
            due.remove(key);
            due.put(key, new Due(now + unit.toMillis(delay), op::generateRecords));
        }
        public void schedule(String key, long delay, TimeUnit unit, boolean retry, long backoff, TimeoutOperation<CoordinatorRecord> op) {
            schedule(key, delay, unit, retry, op);
        }
        public void scheduleIfAbsent(String key, long delay, TimeUnit unit, boolean retry, TimeoutOperation<CoordinatorRecord> op) {
            if (!due.containsKey(key)) schedule(key, delay, unit, retry, op);
        }
        public void cancel(String key) { due.remove(key); }
        public boolean isScheduled(String key) { return due.containsKey(key); }
    };

    static final CoordinatorExecutor<CoordinatorRecord> executor = new CoordinatorExecutor<>() {
        public <R> boolean schedule(String key, TaskRunnable<R> task, TaskOperation<CoordinatorRecord, R> operation) {
            R result;
            try {
                result = task.run();
            } catch (Throwable t) {
                throw new RuntimeException(t);
            }
            due.put("task " + key, new Due(now, () -> operation.onComplete(result, null)));
            return true;
        }
        public boolean isScheduled(String key) { return due.containsKey("task " + key); }
        public void cancel(String key) { due.remove("task " + key); }
    };

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = in.readLine()) != null; ) {
            String[] words = line.split(" ");
            switch (words[0]) {
                case "config" -> configure(words);
                case "image" -> update(words);
                case "request" -> request(words);
                case "advance" -> advance(Long.parseLong(words[1]));
                default -> throw new IllegalArgumentException(line);
            }
            out.println(".");
            out.flush();
        }
    }

    static void configure(String[] words) {
        Map<String, String> properties = new HashMap<>();
        for (int i = 1; i < words.length; i++) properties.put(words[i].split("=")[0], words[i].split("=")[1]);
        now = offset = 0;
        due.clear();
        image = new Image(0, Map.of());
        GroupCoordinatorConfig config = GroupCoordinatorConfig.fromProps(properties);
        SnapshotRegistry registry = new SnapshotRegistry(new LogContext());
        GroupCoordinatorShard.Builder builder = new GroupCoordinatorShard.Builder(
            config, new GroupConfigManager(Map.of(), config, ShareGroupConfig.fromProps(Map.of())));
        builder.withAuthorizerPlugin(Optional.empty());
        shard = builder.withLogContext(new LogContext()).withSnapshotRegistry(registry).withTime(time).withTimer(timer)
            .withExecutor(executor).withCoordinatorMetrics(new GroupCoordinatorMetrics())
            .withTopicPartition(new TopicPartition("__consumer_offsets", 0)).build();
    }

    static void update(String[] words) {
        Map<String, Topic> topics = new TreeMap<>();
        for (int i = 2; i < words.length; i++) {
            String[] parts = words[i].split(":");
            topics.put(parts[0], new Topic(parts[0], new Uuid(0, Long.parseLong(parts[1])), Integer.parseInt(parts[2]),
                parts.length > 3 ? List.of(parts[3].split("\\+")) : List.of()));
        }
        Image next = new Image(Long.parseLong(words[1]), topics);
        shard.onMetadataUpdate(new Delta(image, next), next);
        image = next;
    }

    static void advance(long until) throws Exception {
        while (true) {
            String first = null;
            for (Map.Entry<String, Due> entry : due.entrySet())
                if (entry.getValue().at <= until && (first == null || entry.getValue().at < due.get(first).at)) first = entry.getKey();
            if (first == null) break;
            Due fired = due.remove(first);
            now = Math.max(now, fired.at);
            apply(fired.run.call());
        }
        now = until;
    }

    static void apply(CoordinatorResult<?, CoordinatorRecord> result) {
        for (CoordinatorRecord record : result.records()) {
            out.println("record " + hex(serde.serializeKey(record)) + " "
                + (record.value() == null ? "-" : hex(serde.serializeValue(record))));
            if (result.replayRecords()) shard.replay(offset, -1, (short) -1, record);
            offset++;
        }
        if (result.appendFuture() != null) result.appendFuture().complete(null);
        mendTimers(result.records());
        mendSubscriptionType();
    }

    /** Timers of classic members are left behind when the group becomes a classic one, and later remove members. */
    static void mendTimers(List<CoordinatorRecord> records) {
        for (CoordinatorRecord record : records)
            if (record.key() instanceof ConsumerGroupMetadataKey && record.value() == null)
                due.keySet().removeIf(key -> key.startsWith("join-g-") || key.startsWith("sync-g-"));
    }

    /** A pattern that is resolved changes who subscribes to what, but not what the group takes that for. */
    static void mendSubscriptionType() {
        try {
            Object group = group();
            if (!(group instanceof ConsumerGroup)) return;
            var update = ConsumerGroup.class.getDeclaredMethod("maybeUpdateGroupSubscriptionType");
            update.setAccessible(true);
            update.invoke(group);
        } catch (ReflectiveOperationException e) {
            throw new RuntimeException(e);
        }
    }

    /** A member of no group that joins an empty consumer group deletes it, in memory alone. */
    static boolean mendUnknownJoin(JoinGroupRequestData request) {
        return group() instanceof ConsumerGroup group && group.isEmpty() && !request.memberId().isEmpty();
    }

    static Object group() {
        try {
            var field = GroupCoordinatorShard.class.getDeclaredField("groupMetadataManager");
            field.setAccessible(true);
            return ((GroupMetadataManager) field.get(shard)).group("g");
        } catch (ReflectiveOperationException e) {
            throw new RuntimeException(e);
        } catch (RuntimeException notThere) {
            return null;
        }
    }

    static void request(String[] words) throws Exception {
        String number = words[1];
        now = Long.parseLong(words[2]);
        ApiKeys api = ApiKeys.forId(Integer.parseInt(words[3]));
        short version = Short.parseShort(words[4]);
        ByteBuffer buffer = ByteBuffer.wrap(HexFormat.of().parseHex(words[6]));
        AbstractRequest request = AbstractRequest.parseRequest(api, version, new ByteBufferAccessor(buffer)).request;
        RequestContext context = new RequestContext(new RequestHeader(api, version, words[5], 0), "1",
            InetAddress.getByName("127.0.0.1"), KafkaPrincipal.ANONYMOUS, new ListenerName("L"),
            SecurityProtocol.PLAINTEXT, ClientInformation.EMPTY, false);
        try {
            if (request instanceof ConsumerGroupHeartbeatRequest r) {
                var result = shard.consumerGroupHeartbeat(context, r.data());
                apply(result);
                respond(number, version, result.response());
            } else if (request instanceof JoinGroupRequest r) {
                CompletableFuture<JoinGroupResponseData> future = new CompletableFuture<>();
                future.thenAccept(data -> respond(number, version, new JoinGroupResponse(data, version).data()));
                if (mendUnknownJoin(r.data()))
                    future.complete(new JoinGroupResponseData().setMemberId(r.data().memberId())
                        .setErrorCode(Errors.UNKNOWN_MEMBER_ID.code()));
                else apply(shard.classicGroupJoin(context, r.data(), future));
            } else if (request instanceof SyncGroupRequest r) {
                CompletableFuture<SyncGroupResponseData> future = new CompletableFuture<>();
                future.thenAccept(data -> respond(number, version, data));
                apply(shard.classicGroupSync(context, r.data(), future));
            } else if (request instanceof HeartbeatRequest r) {
                var result = shard.classicGroupHeartbeat(context, r.data());
                apply(result);
                respond(number, version, result.response());
            } else if (request instanceof LeaveGroupRequest r) {
                var result = shard.classicGroupLeave(context, r.data());
                apply(result);
                respond(number, version, result.response());
            } else if (request instanceof ConsumerGroupDescribeRequest r) {
                respond(number, version, new ConsumerGroupDescribeResponseData().setGroups(
                    shard.consumerGroupDescribe(r.data().groupIds(), Long.MAX_VALUE)));
            } else if (request instanceof OffsetCommitRequest r) {
                var result = shard.commitOffset(context, r.data());
                apply(result);
                respond(number, version, result.response());
            } else {
                throw new IllegalArgumentException(words[3]);
            }
        } catch (RuntimeException e) {
            out.println("error " + number + " " + Errors.forException(e).code());
        }
        shard.describeGroups(context, List.of("g"), Long.MAX_VALUE).get(0).members().forEach(member ->
            out.println("member " + member.groupInstanceId() + " " + member.memberId()));
    }

    static void respond(String number, short version, ApiMessage data) {
        ByteBuffer buffer = MessageUtil.toByteBufferAccessor(data, version).buffer();
        byte[] bytes = new byte[buffer.remaining()];
        buffer.get(bytes);
        out.println("response " + number + " " + hex(bytes));
    }

    static String hex(byte[] bytes) { return HexFormat.of().formatHex(bytes); }
}
