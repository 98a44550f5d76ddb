// Transactions of Java's clients: `Transactions.java transactions BOOTSTRAP TOPIC GROUP`, where TOPIC-in has three records that
// a group reads; or `copy BOOTSTRAP IN OUT GROUP ID`, which takes records from IN to OUT once each, until it is killed.

import java.time.Duration;
import java.util.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.serialization.*;

public class Transactions {
    static final List<String> WRITTEN = List.of("committed-0", "committed-1", "committed-2", "with-offsets", "heir");
    static String bootstrap;
    static boolean failed;

    interface Body { void run() throws Exception; }

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

    static Producer<String, String> producer(String id) {
        Producer<String, String> made = new KafkaProducer<>(Map.of("bootstrap.servers", bootstrap, "transactional.id", id), new StringSerializer(), new StringSerializer());
        made.initTransactions();
        return made;
    }

    static KafkaConsumer<String, String> consumer(String group) {
        Map<String, Object> settings = Map.of("bootstrap.servers", bootstrap, "group.id", group, "isolation.level", "read_committed",
            "enable.auto.commit", "false", "auto.offset.reset", "earliest", "max.poll.records", "50", "session.timeout.ms", "6000");
        return new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
    }

    static void begin(Producer<String, String> producer, String topic, String... values) {
        producer.beginTransaction();
        for (String value : values)
            for (int partition = 0; partition < 2; partition++) producer.send(new ProducerRecord<>(topic, partition, null, value));
        producer.flush();
    }

    static void transactions(String topic, String group) {
        String id = topic + "-id";
        check("commit and abort", () -> {
            try (Producer<String, String> producer = producer(id)) {
                begin(producer, topic, "committed-0", "committed-1", "committed-2");
                producer.commitTransaction();
                begin(producer, topic, "aborted");
                producer.abortTransaction();
            }
        });
        check("offsets in a transaction", () -> {
            TopicPartition in = new TopicPartition(topic + "-in", 0);
            try (Producer<String, String> producer = producer(id)) {
                begin(producer, topic, "with-offsets");
                producer.sendOffsetsToTransaction(Map.of(in, new OffsetAndMetadata(3)), new ConsumerGroupMetadata(group));
                producer.commitTransaction();
                begin(producer, topic, "aborted");
                producer.sendOffsetsToTransaction(Map.of(in, new OffsetAndMetadata(5)), new ConsumerGroupMetadata(group));
                producer.abortTransaction();
            }
        });
        check("fencing", () -> {
            Producer<String, String> zombie = producer(id);
            begin(zombie, topic, "zombie");
            try (Producer<String, String> heir = producer(id)) {
                begin(heir, topic, "heir");
                try {
                    zombie.commitTransaction();
                    throw new AssertionError("the zombie committed");
                } catch (ProducerFencedException expected) {
                    zombie.close(Duration.ZERO);
                }
                heir.commitTransaction();
            }
        });
        check("read committed", () -> {
            List<String> got = new ArrayList<>(), wanted = new ArrayList<>(WRITTEN);
            wanted.addAll(WRITTEN);
            try (KafkaConsumer<String, String> consumer = consumer("unused")) {
                consumer.assign(List.of(new TopicPartition(topic, 0), new TopicPartition(topic, 1)));
                consumer.seekToBeginning(consumer.assignment());
                for (long end = System.currentTimeMillis() + 60_000; got.size() < wanted.size(); ) {
                    if (System.currentTimeMillis() > end) throw new AssertionError("read " + got);
                    consumer.poll(Duration.ofMillis(200)).forEach(r -> got.add(r.value()));
                }
            }
            Collections.sort(got);
            Collections.sort(wanted);
            same(got, wanted);
        });
    }

    // Any failure ends the process, and the next one resumes from the offsets of the last transaction.
    static void copy(String in, String out, String group, String id) {
        try (Producer<String, String> producer = producer(id); KafkaConsumer<String, String> consumer = consumer(group)) {
            consumer.subscribe(List.of(in));
            System.out.println("running");
            while (true) {
                ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(200));
                if (records.isEmpty()) continue;
                producer.beginTransaction();
                Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
                for (ConsumerRecord<String, String> r : records) {
                    producer.send(new ProducerRecord<>(out, r.partition(), r.key(), r.value()));
                    offsets.put(new TopicPartition(r.topic(), r.partition()), new OffsetAndMetadata(r.offset() + 1));
                }
                producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
                producer.commitTransaction();
            }
        }
    }

    public static void main(String[] args) {
        bootstrap = args[1];
        if (args[0].equals("copy")) copy(args[2], args[3], args[4], args[5]);
        else transactions(args[2], args[3]);
        System.exit(failed ? 1 : 0);
    }
}
