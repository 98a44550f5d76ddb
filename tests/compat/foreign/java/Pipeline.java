// Java's producer at its defaults under elections: BOOTSTRAP TOPIC NAME PARTITIONS EACH. See tests/compat/elections.py.

import java.util.*;
import java.util.concurrent.atomic.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.serialization.*;

public class Pipeline {
    static KafkaProducer<byte[], byte[]> open(String bootstrap) {
        Properties found = new Properties();
        found.put("bootstrap.servers", bootstrap);
        return new KafkaProducer<>(found, new ByteArraySerializer(), new ByteArraySerializer());
    }

    public static void main(String[] args) throws Exception {
        String topic = args[1], name = args[2];
        int partitions = Integer.parseInt(args[3]), each = Integer.parseInt(args[4]), sent = 0;
        AtomicInteger acked = new AtomicInteger();
        KafkaProducer<byte[], byte[]> producer = open(args[0]);
        for (; System.in.available() == 0; sent++) {
            if (each > 0 && sent > 0 && sent % each == 0) {
                producer.close();
                producer = open(args[0]);
            }
            int number = sent;
            byte[] value = (name + "-" + number).getBytes();
            producer.send(new ProducerRecord<>(topic, number % partitions, null, value), (metadata, e) -> {
                if (e != null) System.out.println("failed " + number + " " + e.toString().replace('\n', ' '));
                else if (acked.incrementAndGet() == 100) System.out.println("running");
            });
            Thread.sleep(1);
        }
        producer.close();
        System.out.println("sent " + sent);
        System.exit(0);
    }
}
