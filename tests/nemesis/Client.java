// Apache Kafka's own clients under a nemesis. What they were told goes to stdout, a line each; the end of stdin is the
// word to stop.
//   Client.java write BOOTSTRAP NAME TOPIC:PARTITIONS,... BURST PAUSE_MS [key=value ...]
//     sent TOPIC PARTITION NUMBER | acked TOPIC PARTITION OFFSET NUMBER LATENCY_US | failed NUMBER WHY
//   Client.java read BOOTSTRAP GROUP TOPIC:PARTITIONS,... [key=value ...]
//     read TOPIC PARTITION OFFSET | committed TOPIC PARTITION OFFSET | error WHY

import java.io.*;
import java.time.Duration;
import java.util.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.*;

public class Client {
    static volatile boolean stopping;
    static final PrintStream out = new PrintStream(new FileOutputStream(FileDescriptor.out), false);

    static synchronized void say(String line) { out.println(line); }

    static Properties properties(String bootstrap, String[] args, int from) {
        Properties found = new Properties();
        found.put("bootstrap.servers", bootstrap);
        for (int i = from; i < args.length; i++) found.put(args[i].split("=", 2)[0], args[i].split("=", 2)[1]);
        return found;
    }

    public static void main(String[] args) throws Exception {
        Thread watch = new Thread(() -> {
            try { while (System.in.read() >= 0) { } } catch (IOException e) { }
            stopping = true;
        });
        watch.setDaemon(true);
        watch.start();
        Thread flush = new Thread(() -> {
            try { while (true) { Thread.sleep(20); synchronized (Client.class) { out.flush(); } } } catch (InterruptedException e) { }
        });
        flush.setDaemon(true);
        flush.start();
        if (args[0].equals("write")) write(args); else read(args);
        out.flush();
    }

    static void write(String[] args) throws Exception {
        String name = args[2];
        List<TopicPartition> places = new ArrayList<>();
        for (String topic : args[3].split(","))
            for (int p = 0; p < Integer.parseInt(topic.split(":")[1]); p++) places.add(new TopicPartition(topic.split(":")[0], p));
        int burst = Integer.parseInt(args[4]);
        long pause = Long.parseLong(args[5]);
        var producer = new KafkaProducer<>(properties(args[1], args, 6), new ByteArraySerializer(), new ByteArraySerializer());
        for (long n = 0; !stopping; n++) {
            final long number = n, began = System.nanoTime();
            TopicPartition at = places.get((int) (n % places.size()));
            say("sent " + at.topic() + " " + at.partition() + " " + n);
            producer.send(new ProducerRecord<>(at.topic(), at.partition(), null, (name + "-" + n).getBytes()), (meta, error) -> {
                if (error != null) say("failed " + number + " " + error.toString().replace('\n', ' '));
                else say("acked " + meta.topic() + " " + meta.partition() + " " + meta.offset() + " " + number
                    + " " + (System.nanoTime() - began) / 1000);
            });
            if (n % burst == burst - 1) Thread.sleep(pause);
        }
        producer.flush();
        producer.close();
    }

    static void read(String[] args) throws Exception {
        Properties p = properties(args[1], args, 4);
        p.put("group.id", args[2]);
        p.putIfAbsent("group.protocol", "consumer");
        p.put("enable.auto.commit", "false");
        p.put("auto.offset.reset", "earliest");
        var consumer = new KafkaConsumer<>(p, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        List<String> topics = new ArrayList<>();
        for (String topic : args[3].split(",")) topics.add(topic.split(":")[0]);
        consumer.subscribe(topics);
        while (!stopping) {
            try {
                Map<TopicPartition, OffsetAndMetadata> done = new HashMap<>();
                for (var r : consumer.poll(Duration.ofMillis(100))) {
                    say("read " + r.topic() + " " + r.partition() + " " + r.offset());
                    done.put(new TopicPartition(r.topic(), r.partition()), new OffsetAndMetadata(r.offset() + 1));
                }
                if (done.isEmpty()) continue;
                consumer.commitSync(done);
                done.forEach((at, o) -> say("committed " + at.topic() + " " + at.partition() + " " + o.offset()));
            } catch (Exception e) {
                say("error " + e.toString().replace('\n', ' '));
            }
        }
        consumer.close(Duration.ofSeconds(5));
    }
}
