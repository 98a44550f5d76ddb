// Kafka Streams against a broker: `Streams.java features BOOTSTRAP REPLICAS PREFIX`. Words are made upper case (no state)
// and counted (a store, its changelog and a repartition topic), and the count survives a second start without its files.

import java.time.Duration;
import java.util.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.serialization.*;
import org.apache.kafka.streams.*;
import org.apache.kafka.streams.kstream.*;

public class Streams {
    static String bootstrap, prefix;
    static short replicas;
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

    static Properties config(String name, String guarantee) throws Exception {
        Properties p = new Properties();
        p.put("application.id", prefix + "-" + name);
        p.put("bootstrap.servers", bootstrap);
        p.put("state.dir", java.nio.file.Files.createTempDirectory("streams").toString());
        p.put("processing.guarantee", guarantee);
        p.put("commit.interval.ms", "200");
        p.put("replication.factor", String.valueOf(replicas));
        p.put("default.key.serde", Serdes.StringSerde.class);
        p.put("default.value.serde", Serdes.StringSerde.class);
        p.put(StreamsConfig.consumerPrefix("auto.offset.reset"), "earliest");
        return p;
    }

    static Topology counting(String in, String upper, String counts) {
        StreamsBuilder builder = new StreamsBuilder();
        KStream<String, String> words = builder.stream(in);
        words.mapValues(w -> w.toUpperCase()).to(upper);
        words.groupBy((k, w) -> w).count().toStream().mapValues(n -> "" + n).to(counts);
        return builder.build();
    }

    static void produce(String topic, int rounds) throws Exception {
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(Map.of("bootstrap.servers", bootstrap), new StringSerializer(), new StringSerializer())) {
            for (int i = 0; i < rounds; i++)
                for (String word : List.of("ant", "bee", "cat")) producer.send(new ProducerRecord<>(topic, "" + i, word));
        }
    }

    // Reads until the last value of every key is the wanted one.
    static void until(String topic, Map<String, String> wanted) {
        Map<String, String> last = new TreeMap<>();
        Map<String, Object> p = Map.of("bootstrap.servers", bootstrap, "group.id", topic + Math.random(), "auto.offset.reset", "earliest", "isolation.level", "read_committed");
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(p, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(topic));
            for (long end = System.currentTimeMillis() + 90_000; !last.equals(wanted); ) {
                if (System.currentTimeMillis() > end) throw new AssertionError("got " + last + ", wanted " + wanted);
                consumer.poll(Duration.ofMillis(200)).forEach(r -> last.put(r.key(), r.value()));
            }
        }
    }

    static String[] topics(String name) throws Exception {
        String[] made = {prefix + "-" + name + "-in", prefix + "-" + name + "-upper", prefix + "-" + name + "-counts"};
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            List<NewTopic> all = new ArrayList<>();
            for (String topic : made) all.add(new NewTopic(topic, 2, replicas));
            admin.createTopics(all).all().get();
        }
        return made;
    }

    static void count(String name, String guarantee) throws Exception {
        String[] t = topics(name);
        Map<String, String> upper = new TreeMap<>();
        for (int i = 0; i < 50; i++) upper.put("" + i, "CAT");
        for (int start = 1; start <= 2; start++) {
            produce(t[0], 50);
            try (KafkaStreams streams = new KafkaStreams(counting(t[0], t[1], t[2]), config(name, guarantee))) {
                streams.start();
                until(t[2], Map.of("ant", "" + 50 * start, "bee", "" + 50 * start, "cat", "" + 50 * start));
                until(t[1], upper);
            }
        }
    }

    public static void main(String[] args) throws Exception {
        bootstrap = args[1];
        replicas = Short.parseShort(args[2]);
        prefix = args[3];
        check("stateless and counting, at_least_once", () -> count("counting", "at_least_once"));
        check("stateless and counting, exactly_once_v2", () -> count("once", "exactly_once_v2"));
        System.exit(failed ? 1 : 0);
    }
}
