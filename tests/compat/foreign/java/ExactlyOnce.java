// Kafka Streams with exactly_once_v2: `ExactlyOnce.java BOOTSTRAP APPLICATION IN OUT STATE_DIR`. Counts words over a
// repartition topic and a store with its changelog, with every step of every count in OUT, until it is killed.

import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.*;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.KStream;

public class ExactlyOnce {
    public static void main(String[] args) throws Exception {
        Properties p = new Properties();
        p.put("bootstrap.servers", args[0]);
        p.put("application.id", args[1]);
        p.put("state.dir", args[4]);
        p.put("processing.guarantee", "exactly_once_v2");
        p.put("commit.interval.ms", "100");
        p.put("num.stream.threads", "2");
        p.put("replication.factor", "3");
        p.put("statestore.cache.max.bytes", "0"); // Every step is sent, and none is joined with the next.
        p.put("default.key.serde", Serdes.StringSerde.class);
        p.put("default.value.serde", Serdes.StringSerde.class);
        p.put(StreamsConfig.consumerPrefix("auto.offset.reset"), "earliest");
        p.put(StreamsConfig.consumerPrefix("session.timeout.ms"), "6000");
        p.put(StreamsConfig.producerPrefix("transaction.timeout.ms"), "8000");

        StreamsBuilder builder = new StreamsBuilder();
        KStream<String, String> words = builder.stream(args[2]);
        words.groupBy((key, word) -> word).count().toStream().mapValues(n -> "" + n).to(args[3]);

        CountDownLatch ended = new CountDownLatch(1);
        KafkaStreams streams = new KafkaStreams(builder.build(), p);
        streams.setUncaughtExceptionHandler(error -> {
            System.out.println("failed " + error);
            ended.countDown();
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        streams.setStateListener((now, before) -> System.out.println("state " + now));
        streams.start();
        ended.await();
        System.exit(1);
    }
}
