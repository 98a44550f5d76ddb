// Hashes of topics and groups of topics as Kafka computes them.
//   java -cp "$HEADRACE_KAFKA_LIBS/*" Hashes.java > ../topic-hashes-kafka-4.3.1.json

import java.util.*;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.coordinator.common.runtime.*;
import org.apache.kafka.coordinator.group.Utils;

public class Hashes {
    record Topic(String name, Uuid id, int partitionCount, List<String> racks)
            implements CoordinatorMetadataImage.TopicMetadata {
        public List<String> partitionRacks(int partition) { return new ArrayList<>(racks); }
    }

    record Image(Topic topic) implements CoordinatorMetadataImage {
        public Set<Uuid> topicIds() { return Set.of(topic.id); }
        public Set<String> topicNames() { return Set.of(topic.name); }
        public Optional<TopicMetadata> topicMetadata(String name) { return Optional.of(topic); }
        public Optional<TopicMetadata> topicMetadata(Uuid id) { return Optional.of(topic); }
        public CoordinatorMetadataDelta emptyDelta() { return CoordinatorMetadataDelta.EMPTY; }
        public long version() { return 0; }
        public boolean isEmpty() { return false; }
    }

    public static void main(String[] args) {
        Object[][] topics = {
            {"t", 0L, 1L, 1, ""}, {"orders", -3L, 77L, 12, ""}, {"orders", 1L << 62, -1L, 3, "r1"},
            {"a.b_c-d", 5L, 6L, 3, "r2,r1,r1"}, {"x".repeat(249), 9L, 9L, 1000, "us-east-1a,\u00e9\u4e2d"}};
        Map<String, Long> all = new TreeMap<>();
        System.out.println("{\"topics\":[");
        for (int i = 0; i < topics.length; i++) {
            Object[] t = topics[i];
            List<String> racks = ((String) t[4]).isEmpty() ? List.of() : List.of(((String) t[4]).split(","));
            Topic topic = new Topic((String) t[0], new Uuid((long) t[1], (long) t[2]), (int) t[3], racks);
            long hash = Utils.computeTopicHash(topic.name, new Image(topic));
            all.put(topic.name, hash);
            System.out.printf("{\"name\":\"%s\",\"id\":\"%016x%016x\",\"partitions\":%d,\"racks\":[%s],\"hash\":%d,\"group\":%d}%s%n",
                topic.name, t[1], t[2], t[3], racks.isEmpty() ? "" : "\"" + String.join("\",\"", racks) + "\"", hash,
                Utils.computeGroupHash(all), i < topics.length - 1 ? "," : "");
        }
        System.out.println("]}");
    }
}
