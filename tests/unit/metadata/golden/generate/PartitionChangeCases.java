// Random partitions and wishes, and the record Kafka's PartitionChangeBuilder makes of each, as JSON.
import java.util.*;
import java.util.stream.*;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.metadata.*;
import org.apache.kafka.controller.PartitionChangeBuilder;
import org.apache.kafka.metadata.*;
import org.apache.kafka.server.common.*;

public class PartitionChangeCases {
    static final Random RANDOM = new Random(11);

    static int[] array(List<Integer> list) {
        return list.stream().mapToInt(i -> i).toArray();
    }

    static String json(List<Integer> list) {
        return list == null ? "null" : list.toString().replace(" ", "");
    }

    static List<Integer> some(List<Integer> list, int percent) {
        return list.stream().filter(x -> RANDOM.nextInt(100) < percent).collect(Collectors.toList());
    }

    static List<Integer> without(List<Integer> list, List<Integer> gone) {
        return list.stream().filter(x -> !gone.contains(x)).collect(Collectors.toList());
    }

    public static void main(String[] args) {
        StringJoiner out = new StringJoiner(",\n", "[\n", "\n]");
        for (int number = 0; number < 400; number++) {
            out.add(one());
        }
        System.out.println(out);
    }

    static String one() {
        int factor = 1 + RANDOM.nextInt(4);
        List<Integer> pool = new ArrayList<>(List.of(1, 2, 3, 4, 5, 6));
        Collections.shuffle(pool, RANDOM);
        List<Integer> replicas = new ArrayList<>(pool.subList(0, factor));
        boolean elrEnabled = RANDOM.nextBoolean();
        int minIsr = 1 + RANDOM.nextInt(factor);
        List<Integer> isr = some(replicas, 70);
        List<Integer> elr = new ArrayList<>();
        List<Integer> lastKnown = new ArrayList<>();
        if (!elrEnabled && isr.isEmpty()) isr = List.of(replicas.get(0));
        if (elrEnabled && isr.size() < minIsr) elr = some(without(replicas, isr), 50);
        if (elrEnabled && isr.isEmpty() && RANDOM.nextBoolean()) lastKnown = List.of(replicas.get(RANDOM.nextInt(factor)));
        int leader = isr.isEmpty() || RANDOM.nextInt(4) == 0 ? -1 : isr.get(RANDOM.nextInt(isr.size()));
        List<Integer> removing = new ArrayList<>();
        List<Integer> adding = new ArrayList<>();
        if (factor > 1 && RANDOM.nextInt(4) == 0) {
            removing = some(replicas, 30);
            adding = some(without(replicas, removing), 40);
        }
        List<Integer> targetIsr = RANDOM.nextBoolean() ? isr : RANDOM.nextBoolean() ? some(isr, 60) : some(replicas, 80);
        Set<Integer> alive = new TreeSet<>(some(List.of(1, 2, 3, 4, 5, 6), 65));
        PartitionChangeBuilder.Election election = PartitionChangeBuilder.Election.values()[RANDOM.nextInt(3)];
        List<Integer> unclean =
            elrEnabled && RANDOM.nextInt(4) == 0 ? List.of(replicas.get(RANDOM.nextInt(factor))) : null;
        Uuid[] directories = replicas.stream().map(r -> new Uuid(1000 + r, 7)).toArray(Uuid[]::new);
        int recovery = RANDOM.nextInt(6) == 0 ? 1 : 0;
        PartitionRegistration partition = new PartitionRegistration.Builder()
            .setReplicas(array(replicas)).setDirectories(directories).setIsr(array(isr)).setElr(array(elr))
            .setLastKnownElr(array(lastKnown)).setRemovingReplicas(array(removing)).setAddingReplicas(array(adding))
            .setLeader(leader).setLeaderRecoveryState(LeaderRecoveryState.of((byte) recovery))
            .setLeaderEpoch(5).setPartitionEpoch(9).build();
        PartitionChangeBuilder builder = new PartitionChangeBuilder(partition, new Uuid(1, 2), 0, alive::contains,
            MetadataVersion.fromFeatureLevel((short) 30), minIsr, elrEnabled);
        builder.setElection(election).setTargetIsr(targetIsr).setDefaultDirProvider(x -> Uuid.ONE_UUID);
        if (unclean != null) builder.setUncleanShutdownReplicas(unclean);
        String record = builder.build().map(made -> PartitionChangeRecordJsonConverter
            .write((PartitionChangeRecord) made.message(), made.version()).toString()).orElse("null");
        return "{\"replicas\":" + json(replicas) + ",\"isr\":" + json(isr) + ",\"elr\":" + json(elr)
            + ",\"last_known_elr\":" + json(lastKnown) + ",\"leader\":" + leader + ",\"removing\":" + json(removing)
            + ",\"adding\":" + json(adding) + ",\"recovery_state\":" + recovery + ",\"target_isr\":" + json(targetIsr)
            + ",\"alive\":" + json(new ArrayList<>(alive)) + ",\"election\":\"" + election + "\",\"elr_enabled\":"
            + elrEnabled + ",\"min_isr\":" + minIsr + ",\"unclean_shutdown\":" + json(unclean)
            + ",\"record\":" + record + "}";
    }
}
