// Apache Kafka's Java clients against a broker, in what releases from 2.1 to 4.3 have in common:
// `Clients.java features BOOTSTRAP REPLICAS PREFIX [consumer]` or `Clients.java load BOOTSTRAP TOPIC [consumer]`.
// The last word chooses the newer protocol of groups, which needs a client of 4.0 or later.

import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.atomic.*;
import java.util.function.*;
import java.util.regex.Pattern;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.config.*;
import org.apache.kafka.common.serialization.*;

public class Clients {
    static final long PATIENCE_MS = 60_000;
    static final long BASE_MS = 1_700_000_000_000L;
    static String bootstrap, protocol;
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
            System.out.println("failed " + name + ": " + (e + " " + Arrays.stream(e.getStackTrace()).limit(1).toList()).replace('\n', ' '));
        }
    }

    static void same(Object got, Object wanted) {
        if (!Objects.deepEquals(got, wanted)) throw new AssertionError("got " + got + ", wanted " + wanted);
    }

    static void until(String what, Look look) throws Exception {
        for (long end = System.currentTimeMillis() + PATIENCE_MS; !look.seen(); Thread.sleep(20))
            if (System.currentTimeMillis() > end) throw new AssertionError("not in time: " + what);
    }

    static Properties properties(Object... pairs) {
        Properties found = new Properties();
        found.put("bootstrap.servers", bootstrap);
        for (int i = 0; i < pairs.length; i += 2) found.put(pairs[i], String.valueOf(pairs[i + 1]));
        return found;
    }

    static KafkaProducer<byte[], byte[]> producer(Object... pairs) {
        Properties p = properties(pairs);
        p.putIfAbsent("max.request.size", "2000000");
        p.putIfAbsent("batch.size", "100000");
        p.putIfAbsent("linger.ms", "5");
        return new KafkaProducer<>(p, new ByteArraySerializer(), new ByteArraySerializer());
    }

    static KafkaConsumer<byte[], byte[]> consumer(Object... pairs) {
        Properties p = properties(pairs);
        p.putIfAbsent("auto.offset.reset", "earliest");
        p.putIfAbsent("metadata.max.age.ms", "1000");
        if (protocol != null && p.containsKey("group.id")) p.put("group.protocol", protocol);
        return new KafkaConsumer<>(p, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    static List<ProducerRecord<byte[], byte[]>> records(String topic) {
        byte[] noise = new byte[900_000];
        new Random(7).nextBytes(noise);
        byte[][][] some = {{null, "plain".getBytes()}, {"tombstone".getBytes(), null}, {{}, {}}, {"k".getBytes(), noise}};
        List<ProducerRecord<byte[], byte[]>> found = new ArrayList<>();
        for (byte[][] r : some) found.add(new ProducerRecord<>(topic, 0, BASE_MS + found.size(), r[0], r[1]));
        found.get(0).headers().add("名", new byte[] {0, -1}).add("null", null);
        for (int i = 0; i < 200; i++)
            found.add(new ProducerRecord<>(topic, 0, BASE_MS + found.size(), ("k" + i % 7).getBytes(), ("v" + i).getBytes()));
        return found;
    }

    static void send(String topic, Object... pairs) throws Exception {
        try (KafkaProducer<byte[], byte[]> producer = producer(pairs)) {
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (ProducerRecord<byte[], byte[]> r : records(topic)) sent.add(producer.send(r));
            for (Future<RecordMetadata> f : sent) f.get();
        }
    }

    static List<ConsumerRecord<byte[], byte[]>> read(KafkaConsumer<byte[], byte[]> consumer, int count) throws Exception {
        List<ConsumerRecord<byte[], byte[]>> got = new ArrayList<>();
        until("records", () -> {
            consumer.poll(Duration.ofMillis(200)).forEach(got::add);
            return got.size() >= count;
        });
        return got;
    }

    static void compare(String topic) throws Exception {
        try (KafkaConsumer<byte[], byte[]> consumer = consumer()) {
            consumer.assign(List.of(new TopicPartition(topic, 0)));
            consumer.seekToBeginning(consumer.assignment());
            List<ProducerRecord<byte[], byte[]>> wanted = records(topic);
            List<ConsumerRecord<byte[], byte[]>> got = read(consumer, wanted.size());
            same(got.size(), wanted.size());
            for (int i = 0; i < got.size(); i++) {
                same(got.get(i).key(), wanted.get(i).key());
                same(got.get(i).value(), wanted.get(i).value());
                same(got.get(i).headers().toArray(), wanted.get(i).headers().toArray());
                same(got.get(i).timestamp(), wanted.get(i).timestamp());
            }
        }
    }

    static AdminClient admin;
    static short replicas;
    static String prefix;

    static String create(String name, int partitions) throws Exception {
        String topic = prefix + "-" + name;
        admin.createTopics(List.of(new NewTopic(topic, partitions, replicas))).all().get();
        until("topic is known", () -> admin.listTopics().names().get().contains(topic));
        return topic;
    }

    static void features() throws Exception {
        String main = prefix + "-main";
        check("create topic", () -> {
            NewTopic made = new NewTopic(main, 3, replicas).configs(Map.of("retention.ms", "-1"));
            admin.createTopics(List.of(made)).all().get();
            try {
                admin.createTopics(List.of(made)).all().get();
                throw new AssertionError("made twice");
            } catch (ExecutionException e) {
                same(e.getCause().getClass().getSimpleName(), "TopicExistsException");
            }
        });
        check("describe topic", () -> until("in sync", () -> {
            TopicDescription found = (TopicDescription) answers(admin.describeTopics(List.of(main)), "topicNameValues").get(main).get();
            return found.partitions().stream().allMatch(p -> p.leader() != null && p.isr().size() == replicas);
        }));
        check("describe cluster", () -> {
            same(admin.describeCluster().nodes().get().size(), (int) replicas);
            same(admin.describeCluster().controller().get() != null, true);
            same(admin.describeCluster().clusterId().get().length(), 22);
        });
        check("describe configs", () -> {
            ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, main);
            same(admin.describeConfigs(List.of(resource)).all().get().get(resource).get("retention.ms").value(), "-1");
            ConfigResource broker = new ConfigResource(ConfigResource.Type.BROKER, "1");
            same(admin.describeConfigs(List.of(broker)).all().get().get(broker).get("log.segment.bytes") != null, true);
        });
        check("create partitions", () -> {
            String topic = create("grown", 1);
            admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(3))).all().get();
        });
        for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd"))
            check("records " + codec, () -> {
                String topic = create("codec-" + codec, 1);
                send(topic, "compression.type", codec, "enable.idempotence", true, "acks", "all");
                compare(topic);
            });
        for (int acks : new int[] {0, 1})
            check("acks " + acks, () -> {
                String topic = create("acks-" + acks, 1);
                send(topic, "acks", acks, "enable.idempotence", false);
                compare(topic);
            });
        check("offsets by time, seek, delete records", () -> {
            String topic = create("times", 1);
            send(topic, "acks", "all");
            TopicPartition p = new TopicPartition(topic, 0);
            try (KafkaConsumer<byte[], byte[]> consumer = consumer()) {
                same(consumer.offsetsForTimes(Map.of(p, BASE_MS + 100)).get(p).offset(), 100L);
                same(consumer.beginningOffsets(List.of(p)).get(p), 0L);
                same(consumer.endOffsets(List.of(p)).get(p), 204L);
                consumer.assign(List.of(p));
                consumer.seek(p, 150);
                same(read(consumer, 1).get(0).offset(), 150L);
                same(admin.deleteRecords(Map.of(p, RecordsToDelete.beforeOffset(50))).lowWatermarks().get(p).get().lowWatermark(), 50L);
                same(consumer.beginningOffsets(List.of(p)).get(p), 50L);
                consumer.seek(p, 3); // Out of range: from the earliest, as told.
                same(read(consumer, 1).get(0).offset(), 50L);
            }
        });
        check("group", Clients::group);
        check("regex", () -> {
            send(create("re-a", 1), "acks", "all");
            try (KafkaConsumer<byte[], byte[]> consumer = consumer("group.id", prefix + "-re")) {
                consumer.subscribe(Pattern.compile(prefix + "-re-.*"), new ConsumerRebalanceListener() {
                    public void onPartitionsRevoked(Collection<TopicPartition> gone) {}
                    public void onPartitionsAssigned(Collection<TopicPartition> come) {}
                });
                read(consumer, 204);
                send(create("re-b", 1), "acks", "all");
                read(consumer, 204);
            }
        });
        check("log dirs", () -> {
            List<Integer> ids = new ArrayList<>();
            for (Node node : admin.describeCluster().nodes().get()) ids.add(node.id());
            for (KafkaFuture<?> found : answers(admin.describeLogDirs(ids), "descriptions").values()) same(((Map<?, ?>) found.get()).isEmpty(), false);
        });
        check("delete topic", () -> {
            admin.deleteTopics(List.of(main)).all().get();
            until("gone", () -> !admin.listTopics().names().get().contains(main));
        });
        if (protocol == null)
            check("transactions are refused", () -> {
                try (KafkaProducer<byte[], byte[]> producer = producer("transactional.id", prefix, "max.block.ms", 20_000, "enable.idempotence", true)) {
                    producer.initTransactions();
                    throw new AssertionError("not refused");
                } catch (KafkaException e) {
                    if (e instanceof org.apache.kafka.common.errors.TimeoutException) throw e;
                }
            });
    }

    // The way to some answers was renamed between the releases: `newName` or else `values`.
    @SuppressWarnings("unchecked")
    static Map<Object, KafkaFuture<?>> answers(Object result, String newName) throws Exception {
        boolean renamed = Arrays.stream(result.getClass().getMethods()).anyMatch(m -> m.getName().equals(newName));
        return (Map<Object, KafkaFuture<?>>) result.getClass().getMethod(renamed ? newName : "values").invoke(result);
    }

    // A member on a thread of its own, with commits by hand.
    static class Member extends Thread {
        final AtomicBoolean stop = new AtomicBoolean();
        final Set<String> seen;
        volatile int held;
        volatile Exception error;
        final KafkaConsumer<byte[], byte[]> consumer;

        Member(String group, String topic, Set<String> seen, Object... pairs) {
            this.seen = seen;
            Object[] all = Arrays.copyOf(new Object[] {"group.id", group, "enable.auto.commit", false}, 4 + pairs.length);
            System.arraycopy(pairs, 0, all, 4, pairs.length);
            consumer = consumer(all);
            consumer.subscribe(List.of(topic));
            start();
        }

        @Override public void run() {
            try {
                while (!stop.get()) {
                    ConsumerRecords<byte[], byte[]> got = consumer.poll(Duration.ofMillis(100));
                    held = consumer.assignment().size();
                    for (ConsumerRecord<byte[], byte[]> r : got) seen.add(new String(r.value()));
                    try {
                        if (!got.isEmpty()) consumer.commitSync();
                    } catch (CommitFailedException | org.apache.kafka.common.errors.RetriableException e) {
                        // Moved to another member meanwhile; who has it now reads on from the last commit.
                    }
                }
                consumer.close();
            } catch (Exception e) {
                error = e;
            }
        }

        void leave() throws Exception {
            stop.set(true);
            join();
            if (error != null) throw error;
        }
    }

    static void group() throws Exception {
        String topic = create("group", 4);
        try (KafkaProducer<byte[], byte[]> producer = producer()) {
            for (int i = 0; i < 100; i++) producer.send(new ProducerRecord<>(topic, ("" + i).getBytes(), ("" + i).getBytes()));
        }
        Set<String> seen = ConcurrentHashMap.newKeySet();
        Member first = new Member(topic, topic, seen);
        until("all read", () -> seen.size() == 100 && first.held == 4);
        Member second = new Member(topic, topic, seen);
        until("two each", () -> first.held == 2 && second.held == 2);
        until("described", () -> admin.describeConsumerGroups(List.of(topic)).all().get().get(topic).members().size() == 2);
        second.leave();
        until("one with all", () -> first.held == 4);
        first.leave();
        long sum = 0;
        for (OffsetAndMetadata o : admin.listConsumerGroupOffsets(topic).partitionsToOffsetAndMetadata().get().values()) sum += o.offset();
        same(sum, 100L);
        same(admin.listConsumerGroups().all().get().stream().anyMatch(g -> g.groupId().equals(topic)), true);
        admin.deleteConsumerGroups(List.of(topic)).all().get();
        same(admin.listConsumerGroups().all().get().stream().anyMatch(g -> g.groupId().equals(topic)), false);
    }

    static void load(String topic) throws Exception {
        Set<String> seen = ConcurrentHashMap.newKeySet();
        Member reader = new Member(topic + "-group", topic, seen);
        AtomicReference<Exception> error = new AtomicReference<>();
        AtomicInteger acked = new AtomicInteger();
        int sent = 0;
        try (KafkaProducer<byte[], byte[]> producer = producer("enable.idempotence", true, "acks", "all", "delivery.timeout.ms", 120_000)) {
            while (System.in.available() == 0) {
                producer.send(new ProducerRecord<>(topic, ("" + sent).getBytes()), (metadata, e) -> {
                    if (e == null) acked.incrementAndGet();
                    else error.compareAndSet(null, e);
                });
                if (++sent == 1000) System.out.println("running");
                Thread.sleep(1);
            }
        }
        int total = sent;
        check("load", () -> {
            if (error.get() != null) throw error.get();
            same(acked.get(), total);
            System.out.println("acknowledged " + total);
            until("all read", () -> seen.size() == total);
            reader.leave();
        });
    }

    public static void main(String[] args) throws Exception {
        bootstrap = args[1];
        boolean features = args[0].equals("features");
        protocol = args.length > (features ? 4 : 3) ? args[args.length - 1] : null;
        if (features) {
            replicas = Short.parseShort(args[2]);
            prefix = args[3];
            admin = AdminClient.create(properties());
            features();
            admin.close();
        } else {
            load(args[2]);
        }
        System.exit(failed ? 1 : 0);
    }
}
