// Runs Kafka's own assignors over seeded groups that change step by step, and prints what they decide as JSON.
//   java -cp "$HEADRACE_KAFKA_LIBS/*" Assignors.java > ../assignors-kafka-4.3.1.json
// Maps are handed over in sorted order and topic ids are small numbers, so that hashing does not decide anything.

import java.util.*;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.coordinator.group.api.assignor.*;
import org.apache.kafka.coordinator.group.assignor.*;
import org.apache.kafka.coordinator.group.modern.*;

public class Assignors {
    static final Random random = new Random(848);
    static final int FIRST_TOPIC = 3;

    record Member(String instanceId, TreeSet<Integer> topics) {}

    public static void main(String[] args) {
        StringBuilder out = new StringBuilder("[\n");
        for (int chain = 0; chain < 120; chain++) {
            boolean uniform = chain % 3 != 2;
            boolean homogeneous = random.nextBoolean();
            int topicCount = 1 + random.nextInt(5);
            int[] counts = new int[topicCount];
            for (int t = 0; t < topicCount; t++) counts[t] = 1 + random.nextInt(chain % 10 == 0 ? 60 : 9);
            TreeMap<String, Member> members = new TreeMap<>();
            Map<String, Map<Uuid, Set<Integer>>> assignment = new HashMap<>();
            int steps = 2 + random.nextInt(4), next = 0;
            for (int step = 0; step < steps; step++) {
                int joining = step == 0 ? 1 + random.nextInt(6) : random.nextInt(3);
                for (int j = 0; j < joining; j++)
                    members.put(String.format("m%02d", random.nextInt(90) + (next++ % 10)), new Member(
                        random.nextInt(4) == 0 ? "i" + (99 - next) : null, topics(topicCount)));
                if (step > 0 && members.size() > 1 && random.nextBoolean()) members.remove(pick(members));
                if (step > 0 && random.nextInt(3) == 0) counts[random.nextInt(topicCount)] += 1 + random.nextInt(4);
                if (step > 0 && !homogeneous && random.nextInt(3) == 0)
                    members.put(pick(members), new Member(null, topics(topicCount)));
                if (homogeneous) {
                    TreeSet<Integer> all = topics(topicCount);
                    members.replaceAll((id, m) -> new Member(m.instanceId, all));
                }
                assignment.keySet().retainAll(members.keySet());
                out.append(out.length() > 2 ? ",\n" : "");
                assignment = step(out, uniform, counts, members, assignment);
            }
        }
        System.out.println(out.append("\n]"));
    }

    static String pick(TreeMap<String, Member> members) {
        return new ArrayList<>(members.keySet()).get(random.nextInt(members.size()));
    }

    static TreeSet<Integer> topics(int topicCount) {
        TreeSet<Integer> topics = new TreeSet<>();
        for (int t = 0; t < topicCount; t++) if (random.nextInt(3) > 0) topics.add(t);
        if (topics.isEmpty()) topics.add(random.nextInt(topicCount));
        return topics;
    }

    static Uuid id(int topic) { return new Uuid(0, topic + FIRST_TOPIC); }

    static Map<String, Map<Uuid, Set<Integer>>> step(StringBuilder out, boolean uniform, int[] counts,
            TreeMap<String, Member> members, Map<String, Map<Uuid, Set<Integer>>> before) {
        Map<String, MemberSubscriptionAndAssignmentImpl> specs = new LinkedHashMap<>();
        Map<Uuid, Map<Integer, String>> inverted = new HashMap<>();
        boolean homogeneous = new HashSet<>(members.values().stream().map(Member::topics).toList()).size() == 1;
        StringBuilder json = new StringBuilder();
        members.forEach((memberId, member) -> {
            Map<Uuid, Set<Integer>> old = before.getOrDefault(memberId, Map.of());
            TreeMap<Uuid, Set<Integer>> sorted = new TreeMap<>();
            old.forEach((topic, partitions) -> {
                sorted.put(topic, new TreeSet<>(partitions));
                partitions.forEach(p -> inverted.computeIfAbsent(topic, t -> new HashMap<>()).put(p, memberId));
            });
            LinkedHashSet<Uuid> ids = new LinkedHashSet<>();
            member.topics.forEach(t -> ids.add(id(t)));
            specs.put(memberId, new MemberSubscriptionAndAssignmentImpl(
                Optional.empty(), Optional.ofNullable(member.instanceId), ids, new Assignment(sorted)));
            json.append(json.length() > 0 ? ", " : "").append('"').append(memberId).append("\": {\"instance\": ")
                .append(member.instanceId == null ? "null" : '"' + member.instanceId + '"')
                .append(", \"topics\": ").append(member.topics).append(", \"old\": ").append(text(sorted)).append('}');
        });
        SubscribedTopicDescriber describer = new SubscribedTopicDescriber() {
            public int numPartitions(Uuid topicId) {
                return counts[(int) topicId.getLeastSignificantBits() - FIRST_TOPIC];
            }
            public Set<String> racksForPartition(Uuid topicId, int partition) { return Set.of(); }
        };
        ConsumerGroupPartitionAssignor assignor = uniform ? new UniformAssignor() : new RangeAssignor();
        GroupAssignment result = assignor.assign(new GroupSpecImpl(Collections.unmodifiableMap(specs),
            homogeneous ? SubscriptionType.HOMOGENEOUS : SubscriptionType.HETEROGENEOUS, inverted), describer);
        out.append("{\"assignor\": \"").append(assignor.name()).append("\", \"homogeneous\": ").append(homogeneous)
            .append(", \"counts\": ").append(Arrays.toString(counts)).append(", \"members\": {").append(json)
            .append("}, \"target\": {");
        Map<String, Map<Uuid, Set<Integer>>> after = new HashMap<>();
        String comma = "";
        for (String memberId : members.keySet()) {
            MemberAssignment target = result.members().get(memberId);
            TreeMap<Uuid, Set<Integer>> sorted = new TreeMap<>();
            if (target != null) target.partitions().forEach((t, p) -> sorted.put(t, new TreeSet<>(p)));
            after.put(memberId, sorted);
            out.append(comma).append('"').append(memberId).append("\": ").append(text(sorted));
            comma = ", ";
        }
        out.append("}}");
        return after;
    }

    static String text(TreeMap<Uuid, Set<Integer>> assignment) {
        StringBuilder text = new StringBuilder("{");
        assignment.forEach((topic, partitions) -> text.append(text.length() > 1 ? ", " : "").append('"')
            .append(topic.getLeastSignificantBits() - FIRST_TOPIC).append("\": ").append(new TreeSet<>(partitions)));
        return text.append('}').toString();
    }
}
