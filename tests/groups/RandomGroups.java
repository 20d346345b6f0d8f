import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Random;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Assignment;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.GroupSubscription;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Subscription;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.clients.consumer.RoundRobinAssignor;
import org.apache.kafka.clients.consumer.StickyAssignor;
import org.apache.kafka.common.Cluster;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;

/**
 * Random groups, and what Kafka's own assignors give their members.
 *
 * <p>{@code java -cp <jars> RandomGroups.java <seed or first-last> ...} prints a line of JSON for each round of each
 * seed: {@code partitions} (topic to number), {@code members} (in the order in which the leader puts them into its
 * map), and for each assignor, by topic, the index of the member that has each partition, -1 for none. Members join,
 * leave and change topics, and topics grow, come and go, from a round to the next; members own what the sticky or the
 * cooperative assignor gave them in the round before, or in some groups what {@link #skew} gives them. Every 50th seed
 * is a large group.
 */
public class RandomGroups {
    static final String[] INSTANCES = {"static-b", "static-a", "Static-c", "static-10", "static-9"};

    static final class Member {
        String id;
        String instance;
        TreeSet<String> topics = new TreeSet<>();
        List<TopicPartition> owned = new ArrayList<>();
    }

    final Random random;
    final boolean large;
    final boolean equal;
    final boolean sparse;
    final boolean skewed;
    final TreeMap<String, Integer> partitions = new TreeMap<>();
    final List<Member> members = new ArrayList<>();
    /** The most partitions that a topic had: Kafka gives one twice where a member owns one that is no more. */
    final Map<String, Integer> peak = new HashMap<>();
    final List<String> free = new ArrayList<>(List.of(INSTANCES));
    int generation = 1;

    RandomGroups(long seed) {
        random = new Random(seed);
        large = seed % 50 == 49;
        equal = random.nextInt(5) < 2;
        sparse = random.nextBoolean();
        skewed = random.nextInt(5) < 2;
        int topics = 1 + random.nextInt(6);
        for (int i = 0; i < topics; i++) {
            partitions.put("topic-" + (char) ('a' + i), count());
        }
        int size = large ? 20 + random.nextInt(81) : 1 + random.nextInt(random.nextInt(3) > 0 ? 12 : 4);
        for (int i = 0; i < size; i++) {
            join();
        }
    }

    /** Gives few members most partitions, some of topics to which they do not subscribe. */
    void skew() {
        Collections.shuffle(members, random);
        members.forEach(member -> member.owned.clear());
        int favourites = 1 + random.nextInt(Math.min(3, members.size()));
        partitions.forEach((topic, count) -> {
            for (int i = 0; i < count; i++) {
                Member member = members.get(random.nextInt(random.nextInt(10) < 7 ? favourites : members.size()));
                if (random.nextInt(10) > 0 && (member.topics.contains(topic) || random.nextInt(40) == 0)) {
                    member.owned.add(new TopicPartition(topic, i));
                }
            }
        });
    }

    int count() {
        return 1 + random.nextInt(large ? 150 : random.nextInt(4) > 0 ? 6 : skewed ? 60 : 24);
    }

    void join() {
        Member member = new Member();
        member.id = "consumer-" + (1 + random.nextInt(99)) + "-" + String.format("%08x", random.nextInt());
        if (random.nextInt(4) == 0 && !free.isEmpty()) {
            member.instance = free.remove(random.nextInt(free.size()));
        }
        subscribe(member);
        members.add(random.nextInt(members.size() + 1), member);
    }

    /** What a consumer subscribes to: topics that exist, or at times one that does not; rarely nothing. */
    void subscribe(Member member) {
        if (equal) {
            member.topics = members.isEmpty() ? new TreeSet<>(partitions.keySet()) : new TreeSet<>(members.get(0).topics);
            return;
        }
        member.topics = new TreeSet<>();
        for (String topic : partitions.keySet()) {
            if (random.nextInt(3) > (sparse ? 1 : 0)) {
                member.topics.add(topic);
            }
        }
        if (random.nextInt(12) == 0 || member.topics.isEmpty() && random.nextInt(4) > 0) {
            member.topics.add("missing");
        }
    }

    void change() {
        for (int changes = random.nextInt(3) + (large ? 2 : 0); changes >= 0; changes--) {
            switch (random.nextInt(8)) {
                case 0, 1 -> join();
                case 2, 3 -> {
                    if (members.size() > 1) {
                        Member gone = members.remove(random.nextInt(members.size()));
                        if (gone.instance != null) {
                            free.add(gone.instance);
                        }
                    }
                }
                case 4 -> partitions.replaceAll((topic, count) -> count + (random.nextInt(3) == 0 ? 2 : 0));
                case 5 -> {
                    if (partitions.size() > 1) {
                        partitions.remove(new ArrayList<>(partitions.keySet()).get(random.nextInt(partitions.size())));
                    }
                }
                case 6 -> {
                    String topic = "topic-" + (char) ('a' + random.nextInt(8));
                    if (partitions.putIfAbsent(topic, Math.max(count(), peak.getOrDefault(topic, 0))) == null) {
                        for (Member member : members) {
                            if (equal || random.nextInt(3) > 0) {
                                member.topics.add(topic);
                            }
                        }
                    }
                }
                default -> {
                    if (!equal) {
                        subscribe(members.get(random.nextInt(members.size())));
                    }
                }
            }
        }
    }

    Map<String, Assignment> assign(ConsumerPartitionAssignor assignor) {
        Node node = new Node(1, "localhost", 9092);
        List<PartitionInfo> infos = new ArrayList<>();
        partitions.forEach((topic, count) -> {
            for (int i = 0; i < count; i++) {
                infos.add(new PartitionInfo(topic, i, node, new Node[] {node}, new Node[] {node}));
            }
        });
        Map<String, Subscription> subscriptions = new HashMap<>();
        for (Member member : members) {
            StickyAssignor sticky = new StickyAssignor();
            CooperativeStickyAssignor cooperative = new CooperativeStickyAssignor();
            Assignment owned = new Assignment(member.owned);
            var metadata = new ConsumerGroupMetadata("group", generation, member.id, Optional.ofNullable(member.instance));
            if (!member.owned.isEmpty()) {
                sticky.onAssignment(owned, metadata);
                cooperative.onAssignment(owned, metadata);
            }
            var asker = assignor instanceof CooperativeStickyAssignor ? cooperative : sticky;
            Subscription subscription = new Subscription(
                new ArrayList<>(member.topics),
                asker.subscriptionUserData(member.topics),
                assignor instanceof CooperativeStickyAssignor ? member.owned : List.of(),
                generation,
                Optional.empty());
            subscription.setGroupInstanceId(Optional.ofNullable(member.instance));
            subscriptions.put(member.id, subscription);
        }
        Cluster cluster = new Cluster("cluster", List.of(node), infos, Set.of(), Set.of());
        return assignor.assign(cluster, new GroupSubscription(subscriptions)).groupAssignment();
    }

    static Map<String, List<Integer>> byTopic(List<TopicPartition> owned) {
        Map<String, List<Integer>> topics = new TreeMap<>();
        for (TopicPartition partition : owned) {
            topics.computeIfAbsent(partition.topic(), name -> new ArrayList<>()).add(partition.partition());
        }
        topics.values().forEach(Collections::sort);
        return topics;
    }

    Map<String, int[]> owners(Map<String, Assignment> assigned) {
        Map<String, int[]> owners = new TreeMap<>();
        partitions.forEach((topic, count) -> {
            int[] none = new int[count];
            Arrays.fill(none, -1);
            owners.put(topic, none);
        });
        for (int i = 0; i < members.size(); i++) {
            for (TopicPartition partition : assigned.get(members.get(i).id).partitions()) {
                int[] topic = owners.get(partition.topic());
                if (topic[partition.partition()] != -1) {
                    throw new IllegalStateException(partition + " has two owners");
                }
                topic[partition.partition()] = i;
            }
        }
        return owners;
    }

    void run(int rounds, PrintStream out) throws Exception {
        boolean isCooperative = random.nextBoolean();
        for (int round = 0; round < rounds; round++) {
            if (round > 0 && !(isCooperative && random.nextInt(3) == 0)) {
                change();
            }
            if (skewed) {
                skew();
            }
            partitions.forEach((topic, count) -> peak.merge(topic, count, Math::max));
            Map<String, Assignment> sticky = assign(new StickyAssignor());
            Map<String, Assignment> cooperative = assign(new CooperativeStickyAssignor());
            Map<String, Object> line = new LinkedHashMap<>();
            line.put("partitions", partitions);
            List<Object> all = new ArrayList<>();
            for (Member member : members) {
                Map<String, Object> one = new LinkedHashMap<>();
                one.put("id", member.id);
                one.put("instance", member.instance);
                one.put("topics", member.topics);
                one.put("owned", byTopic(member.owned));
                all.add(one);
            }
            line.put("members", all);
            line.put("range", owners(assign(new RangeAssignor())));
            line.put("roundrobin", owners(assign(new RoundRobinAssignor())));
            line.put("sticky", owners(sticky));
            line.put("cooperative-sticky", owners(cooperative));
            out.println(new ObjectMapper().writeValueAsString(line));
            for (Member member : members) {
                member.owned = new ArrayList<>((isCooperative ? cooperative : sticky).get(member.id).partitions());
            }
            generation++;
        }
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        for (String range : arguments) {
            String[] ends = range.split("-");
            for (long seed = Long.parseLong(ends[0]); seed <= Long.parseLong(ends[ends.length - 1]); seed++) {
                RandomGroups groups = new RandomGroups(seed);
                groups.run(groups.large ? 2 : 4, out);
            }
        }
    }
}
