// Random clusters and what Kafka's StripedReplicaPlacer makes of them, as JSON. The dice is fixed (0, n - 1 or n / 2), so
// that the order in which racks draw does not matter.
import java.util.*;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.errors.InvalidReplicationFactorException;
import org.apache.kafka.metadata.placement.*;

public class PlacementCases {
    static class Fixed extends Random {
        final int mode;

        Fixed(int mode) {
            this.mode = mode;
        }

        public int nextInt(int n) {
            return mode == 0 ? 0 : mode == 1 ? n - 1 : n / 2;
        }
    }

    public static void main(String[] args) {
        Random random = new Random(7);
        StringBuilder out = new StringBuilder("[\n");
        for (int number = 0; number < 120; number++) {
            int count = 1 + random.nextInt(9);
            int racks = random.nextInt(4);
            int partitions = 1 + random.nextInt(20);
            int factor = 1 + random.nextInt(Math.min(count + 1, 5));
            List<UsableBroker> brokers = new ArrayList<>();
            StringJoiner shown = new StringJoiner(",");
            for (int id = 0; id < count; id++) {
                String rack = racks == 0 ? null : "r" + random.nextInt(racks);
                boolean fenced = random.nextInt(5) == 0;
                brokers.add(new UsableBroker(id, Optional.ofNullable(rack), fenced));
                shown.add("[" + id + "," + (rack == null ? "null" : "\"" + rack + "\"") + "," + fenced + "]");
            }
            out.append(number > 0 ? ",\n" : "");
            out.append("{\"dice\":" + number % 3 + ",\"brokers\":[" + shown + "],\"partitions\":" + partitions);
            out.append(",\"replication_factor\":" + factor);
            out.append(",\"placed\":" + placed(brokers, partitions, factor, number % 3) + "}");
        }
        System.out.println(out + "\n]");
    }

    static String placed(List<UsableBroker> brokers, int partitions, int factor, int mode) {
        ClusterDescriber cluster = new ClusterDescriber() {
            public Iterator<UsableBroker> usableBrokers() {
                return brokers.iterator();
            }

            public Uuid defaultDir(int broker) {
                return Uuid.ZERO_UUID;
            }
        };
        try {
            PlacementSpec spec = new PlacementSpec(0, partitions, (short) factor);
            TopicAssignment found = new StripedReplicaPlacer(new Fixed(mode)).place(spec, cluster);
            StringJoiner shown = new StringJoiner(",", "[", "]");
            for (PartitionAssignment one : found.assignments()) {
                shown.add(one.replicas().toString().replace(" ", ""));
            }
            return shown.toString();
        } catch (InvalidReplicationFactorException error) {
            return "\"INVALID_REPLICATION_FACTOR\"";
        }
    }
}
