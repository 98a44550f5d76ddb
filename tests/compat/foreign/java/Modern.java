// What newer releases of Apache Kafka's AdminClient and consumer have: `Modern.java features BOOTSTRAP REPLICAS PREFIX`.

import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.*;
import org.apache.kafka.common.serialization.*;

public class Modern {
    static boolean failed;

    interface Body { void run() throws Exception; }
    interface Look { boolean seen() throws Exception; }

    static void check(String name, Body body) {
        long start = System.currentTimeMillis();
        try {
            body.run();
            System.out.println("ok " + name + " (" + (System.currentTimeMillis() - start) + " ms)");
        } catch (Exception | AssertionError e) {
            failed = true;
            System.out.println("failed " + name + ": " + e.toString().replace('\n', ' '));
        }
    }

    static void same(Object got, Object wanted) {
        if (!Objects.equals(got, wanted)) throw new AssertionError("got " + got + ", wanted " + wanted);
    }

    static void until(String what, Look look) throws Exception {
        for (long end = System.currentTimeMillis() + 60_000; !look.seen(); Thread.sleep(50))
            if (System.currentTimeMillis() > end) throw new AssertionError("not in time: " + what);
    }

    public static void main(String[] args) throws Exception {
        int replicas = Integer.parseInt(args[2]);
        String topic = args[3] + "-modern";
        TopicPartition zero = new TopicPartition(topic, 0);
        Map<String, Object> at = Map.of("bootstrap.servers", args[1]);
        Admin admin = Admin.create(at);
        admin.createTopics(List.of(new NewTopic(topic, Optional.of(2), Optional.of((short) replicas)))).all().get();
        try (Producer<String, String> producer = new KafkaProducer<>(at, new StringSerializer(), new StringSerializer())) {
            for (int i = 0; i < 100; i++) producer.send(new ProducerRecord<>(topic, 0, 1_700_000_000_000L + i, "k", "v" + i)).get();
        }
        check("describe cluster", () -> same(admin.describeCluster(new DescribeClusterOptions().includeFencedBrokers(true)).nodes().get().size(), replicas));
        check("describe topic by id", () -> {
            Uuid id = admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).topicId();
            same(admin.describeTopics(TopicCollection.ofTopicIds(List.of(id))).allTopicIds().get().get(id).name(), topic);
        });
        check("incremental configs", () -> {
            ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
            AlterConfigOp set = new AlterConfigOp(new ConfigEntry("retention.ms", "-1"), AlterConfigOp.OpType.SET);
            admin.incrementalAlterConfigs(Map.of(resource, List.of(set))).all().get();
            until("set", () -> admin.describeConfigs(List.of(resource)).all().get().get(resource).get("retention.ms").value().equals("-1"));
            same(admin.listConfigResources().all().get() != null, true);
        });
        check("list offsets", () -> {
            Map<OffsetSpec, Long> wanted = Map.of(OffsetSpec.earliest(), 0L, OffsetSpec.latest(), 100L, OffsetSpec.maxTimestamp(), 99L,
                    OffsetSpec.forTimestamp(1_700_000_000_040L), 40L, OffsetSpec.earliestLocal(), 0L);
            for (var entry : wanted.entrySet())
                same(admin.listOffsets(Map.of(zero, entry.getKey())).partitionResult(zero).get().offset(), entry.getValue());
        });
        check("elect leaders", () -> {
            var found = admin.electLeaders(ElectionType.PREFERRED, Set.of(zero)).partitions().get().get(zero);
            same(found.isEmpty() || found.get() instanceof ElectionNotNeededException, true);
        });
        check("reassign", () -> {
            admin.alterPartitionReassignments(Map.of(zero, Optional.of(new NewPartitionReassignment(List.of(replicas))))).all().get();
            until("moved", () -> admin.listPartitionReassignments().reassignments().get().isEmpty()
                    && admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).partitions().get(0).leader().id() == replicas);
        });
        check("describe producers", () -> same(admin.describeProducers(List.of(zero)).partitionResult(zero).get().activeProducers().size(), 1));
        check("quorum and features", () -> {
            same(admin.describeMetadataQuorum().quorumInfo().get().voters().size(), replicas);
            same(admin.describeFeatures().featureMetadata().get().finalizedFeatures().containsKey("metadata.version"), true);
        });
        for (String protocol : List.of("classic", "consumer"))
            check("static members, " + protocol, () -> members(admin, topic, protocol));
        check("server-side regex", () -> {
            try (KafkaConsumer<String, String> consumer = consumer(args[1], topic + "-re2", "consumer", null)) {
                consumer.subscribe(new SubscriptionPattern(args[3] + "-mod.*"));
                until("read", () -> !consumer.poll(Duration.ofMillis(200)).isEmpty());
            }
        });
        check("read committed", () -> {
            Map<String, Object> p = new HashMap<>(at);
            p.put("isolation.level", "read_committed");
            try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(p, new StringDeserializer(), new StringDeserializer())) {
                consumer.assign(List.of(zero));
                consumer.seek(zero, 10);
                until("read", () -> !consumer.poll(Duration.ofMillis(200)).isEmpty());
                same(consumer.currentLag(zero).isPresent(), true);
            }
        });
        admin.close();
        System.exit(failed ? 1 : 0);
    }

    static KafkaConsumer<String, String> consumer(String bootstrap, String group, String protocol, String instance) {
        Map<String, Object> p = new HashMap<>(Map.of("bootstrap.servers", bootstrap, "group.id", group, "group.protocol", protocol, "auto.offset.reset", "earliest"));
        if (instance != null) p.put("group.instance.id", instance);
        return new KafkaConsumer<>(p, new StringDeserializer(), new StringDeserializer());
    }

    // A static member that closes and comes back keeps what it held, and the other sees no rebalance.
    static void members(Admin admin, String topic, String protocol) throws Exception {
        String bootstrap = admin.describeCluster().nodes().get().iterator().next().host() + ":" + admin.describeCluster().nodes().get().iterator().next().port();
        String group = topic + "-" + protocol;
        KafkaConsumer<String, String> one = consumer(bootstrap, group, protocol, "one"), two = consumer(bootstrap, group, protocol, "two");
        one.subscribe(List.of(topic));
        two.subscribe(List.of(topic));
        ExecutorService beside = Executors.newSingleThreadExecutor();
        until("one each", () -> {
            Future<?> other = beside.submit(() -> two.poll(Duration.ofMillis(200)));
            one.poll(Duration.ofMillis(200));
            other.get();
            return one.assignment().size() == 1 && two.assignment().size() == 1;
        });
        Set<TopicPartition> held = new HashSet<>(two.assignment());
        two.close();
        KafkaConsumer<String, String> again = consumer(bootstrap, group, protocol, "two");
        again.subscribe(List.of(topic));
        until("the same again", () -> {
            Future<?> other = beside.submit(() -> one.poll(Duration.ofMillis(200)));
            again.poll(Duration.ofMillis(200));
            other.get();
            same(one.assignment().size(), 1);
            return again.assignment().equals(held);
        });
        one.commitSync();
        admin.removeMembersFromConsumerGroup(group, new RemoveMembersFromConsumerGroupOptions(List.of(new MemberToRemove("two")))).all().get();
        again.close();
        one.close();
        admin.removeMembersFromConsumerGroup(group, new RemoveMembersFromConsumerGroupOptions()).all().get();
        until("empty", () -> admin.describeConsumerGroups(List.of(group)).all().get().get(group).groupState() == GroupState.EMPTY);
        admin.deleteConsumerGroupOffsets(group, Set.of(new TopicPartition(topic, 1))).all().get();
        admin.deleteConsumerGroups(List.of(group)).all().get();
        beside.shutdown();
    }
}
