import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeSet;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.coordinator.group.api.assignor.ConsumerGroupPartitionAssignor;
import org.apache.kafka.coordinator.group.api.assignor.GroupAssignment;
import org.apache.kafka.coordinator.group.api.assignor.SubscribedTopicDescriber;
import org.apache.kafka.coordinator.group.api.assignor.SubscriptionType;
import org.apache.kafka.coordinator.group.assignor.RangeAssignor;
import org.apache.kafka.coordinator.group.assignor.UniformAssignor;
import org.apache.kafka.coordinator.group.modern.Assignment;
import org.apache.kafka.coordinator.group.modern.GroupSpecImpl;
import org.apache.kafka.coordinator.group.modern.MemberSubscriptionAndAssignmentImpl;

/**
 * Kafka's assignors over standard input and output, one case a line; test_assignors.py has the format. Members and
 * partitions keep the order of the input. The answer has the order in which Kafka iterates over the first member's topics.
 */
public class Assignors {
    public static void main(String[] args) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) System.out.println(answer(line));
    }

    private static String answer(String line) {
        String[] parts = line.split("\\|", -1);
        ConsumerGroupPartitionAssignor assignor = parts[0].equals("range") ? new RangeAssignor() : new UniformAssignor();
        SubscriptionType type = SubscriptionType.valueOf(parts[1]);
        Map<Uuid, Integer> counts = new HashMap<>();
        for (String topic : split(parts[2], ";")) counts.put(id(topic.split("=")[0]), Integer.parseInt(topic.split("=")[1]));
        Map<String, MemberSubscriptionAndAssignmentImpl> members = new LinkedHashMap<>();
        Map<Uuid, Map<Integer, String>> inverted = new HashMap<>();
        Set<Uuid> first = null;
        for (int index = 3; index < parts.length; index++) {
            String[] member = parts[index].split("/", -1);
            Set<Uuid> topics = new LinkedHashSet<>();
            for (String topic : split(member[2], ",")) topics.add(id(topic));
            if (first == null) first = new HashSet<>(topics);
            Map<Uuid, Set<Integer>> target = new LinkedHashMap<>();
            for (String of : split(member[3], ";")) {
                Set<Integer> partitions = new LinkedHashSet<>();
                for (String partition : split(of.split("=")[1], ",")) partitions.add(Integer.valueOf(partition));
                target.put(id(of.split("=")[0]), partitions);
                for (Integer partition : partitions)
                    inverted.computeIfAbsent(id(of.split("=")[0]), __ -> new HashMap<>()).put(partition, member[0]);
            }
            members.put(member[0], new MemberSubscriptionAndAssignmentImpl(
                Optional.empty(),
                member[1].isEmpty() ? Optional.empty() : Optional.of(member[1]),
                topics,
                new Assignment(Collections.unmodifiableMap(target))));
        }
        GroupAssignment assigned = assignor.assign(
            new GroupSpecImpl(members, type, inverted, Optional.empty()),
            new SubscribedTopicDescriber() {
                public int numPartitions(Uuid topic) {
                    return counts.getOrDefault(topic, -1);
                }

                public Set<String> racksForPartition(Uuid topic, int partition) {
                    return Set.of();
                }

                public Set<Integer> assignablePartitions(Uuid topic) {
                    return Set.of();
                }
            });
        StringBuilder answer = new StringBuilder();
        for (Uuid topic : first) answer.append(answer.isEmpty() ? "" : ",").append(topic.getLeastSignificantBits());
        assigned.members().forEach((member, assignment) -> {
            answer.append('|').append(member).append('/');
            assignment.partitions().forEach((topic, partitions) -> {
                for (int partition : new TreeSet<>(partitions))
                    answer.append(topic.getLeastSignificantBits()).append(':').append(partition).append(',');
            });
        });
        return answer.toString();
    }

    private static String[] split(String text, String separator) {
        return text.isEmpty() ? new String[0] : text.split(separator);
    }

    private static Uuid id(String number) {
        return new Uuid(Long.parseLong(number) * 0x9E3779B97F4A7C15L, Long.parseLong(number));
    }
}
