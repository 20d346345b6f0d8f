import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.MemberDescription;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.utils.Exit;

/**
 * Java's consumer, producer and command lines: a line of JSON in, a line of JSON out, as {@code peer.py} says.
 *
 * <p>{@code java -cp <jars> Clients.java}. Many tools run in one JVM, one after the other.
 */
public class Clients {
    static final ObjectMapper JSON = new ObjectMapper();
    static final long SECONDS = 30;

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            ObjectNode answer = JSON.createObjectNode();
            try {
                answer = answer(JSON.readTree(line));
            } catch (Throwable error) {
                error.printStackTrace();
                answer.put("error", error.toString());
            }
            answers.println(JSON.writeValueAsString(answer));
            answers.flush();
        }
        System.exit(0);
    }

    static ObjectNode answer(JsonNode asked) throws Exception {
        switch (asked.get("do").asText()) {
            case "read": return read(asked);
            case "join": return join(asked);
            case "offsets": return offsets(asked);
            case "produce": return produce(asked);
            case "transact": return transact(asked);
            case "admin": return admin(asked);
            case "group": return group(asked);
            case "tool": return tool(asked);
            default: throw new IllegalArgumentException(asked.toString());
        }
    }

    static KafkaConsumer<byte[], byte[]> consumer(JsonNode asked) {
        Map<String, Object> options = options(asked);
        options.putIfAbsent("auto.offset.reset", "earliest");
        options.putIfAbsent("enable.auto.commit", false);
        options.putIfAbsent("fetch.max.wait.ms", 100);
        return new KafkaConsumer<>(options, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    static Map<String, Object> options(JsonNode asked) {
        Map<String, Object> options = new HashMap<>();
        options.put("bootstrap.servers", asked.get("server").asText());
        asked.path("options").fields().forEachRemaining(one -> options.put(one.getKey(), one.getValue().asText()));
        return options;
    }

    static List<TopicPartition> places(JsonNode asked) {
        List<TopicPartition> places = new ArrayList<>();
        for (JsonNode place : asked.get("places")) {
            places.add(new TopicPartition(place.get(0).asText(), place.get(1).asInt()));
        }
        return places;
    }

    /** All partitions by one consumer, from the log start to where its isolation level ends. */
    static ObjectNode read(JsonNode asked) {
        ObjectNode answer = JSON.createObjectNode();
        ArrayNode records = answer.putArray("records");
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(asked)) {
            List<TopicPartition> places = places(asked);
            consumer.assign(places);
            if (asked.hasNonNull("from")) {
                places.forEach(place -> consumer.seek(place, asked.get("from").asLong()));
            } else {
                consumer.seekToBeginning(places);
            }
            Map<TopicPartition, Long> ends = consumer.endOffsets(places);
            long until = System.nanoTime() + SECONDS * 1_000_000_000L;
            while (places.stream().anyMatch(place -> consumer.position(place) < ends.get(place))) {
                consumer.poll(Duration.ofMillis(200)).forEach(record -> records.add(json(record)));
                if (System.nanoTime() > until) {
                    throw new IllegalStateException("no end within " + SECONDS + " s");
                }
            }
        }
        return answer;
    }

    /** A member of a group reads until a number of records, seconds or the file `stop`, commits and leaves. */
    static ObjectNode join(JsonNode asked) {
        ObjectNode answer = JSON.createObjectNode();
        ArrayNode records = answer.putArray("records");
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(asked)) {
            consumer.subscribe(List.of(asked.get("topic").asText()));
            long until = System.nanoTime() + asked.path("seconds").asLong(SECONDS) * 1_000_000_000L;
            Path stop = Path.of(asked.path("stop").asText("/nonexistent"));
            while (records.size() < asked.get("count").asInt() && System.nanoTime() < until && !Files.exists(stop)) {
                consumer.poll(Duration.ofMillis(200)).forEach(record -> records.add(json(record)));
            }
            consumer.commitSync();
        }
        return answer;
    }

    /** First and last offset, and those at or after times. */
    static ObjectNode offsets(JsonNode asked) {
        ObjectNode answer = JSON.createObjectNode();
        ArrayNode rows = answer.putArray("offsets");
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(asked)) {
            for (TopicPartition place : places(asked)) {
                Collection<TopicPartition> one = List.of(place);
                ArrayNode row = rows.addArray();
                row.add(consumer.beginningOffsets(one).get(place)).add(consumer.endOffsets(one).get(place));
                for (JsonNode time : asked.path("times")) {
                    OffsetAndTimestamp hit = consumer.offsetsForTimes(Map.of(place, time.asLong())).get(place);
                    row.add(hit == null ? -1 : hit.offset());
                }
            }
        }
        return answer;
    }

    static ObjectNode produce(JsonNode asked) throws Exception {
        ObjectNode answer = JSON.createObjectNode();
        ArrayNode offsets = answer.putArray("offsets");
        Map<String, Object> options = options(asked);
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        try (KafkaProducer<byte[], byte[]> producer =
                new KafkaProducer<>(options, new ByteArraySerializer(), new ByteArraySerializer())) {
            for (JsonNode row : asked.get("records")) {
                List<Header> headers = new ArrayList<>();
                row.get(4).forEach(one -> headers.add(new RecordHeader(one.get(0).asText(), bytes(one.get(1)))));
                sent.add(producer.send(new ProducerRecord<>(
                        asked.get("topic").asText(), row.get(0).asInt(), row.get(1).asLong(),
                        bytes(row.get(2)), bytes(row.get(3)), headers)));
            }
        }
        for (Future<RecordMetadata> one : sent) {
            offsets.add(one.get().offset());
        }
        return answer;
    }

    /** Transactions of one producer, with the offsets of a group. */
    static ObjectNode transact(JsonNode asked) throws Exception {
        String topic = asked.get("topic").asText();
        ObjectNode answer = JSON.createObjectNode();
        try (KafkaProducer<byte[], byte[]> producer =
                new KafkaProducer<>(options(asked), new ByteArraySerializer(), new ByteArraySerializer())) {
            producer.initTransactions();
            for (JsonNode transaction : asked.get("transactions")) {
                producer.beginTransaction();
                for (JsonNode value : transaction.get("values")) {
                    producer.send(new ProducerRecord<>(topic, 0, null, bytes(value)));
                }
                if (asked.hasNonNull("group")) {
                    OffsetAndMetadata offset = new OffsetAndMetadata(transaction.get("offset").asLong());
                    producer.sendOffsetsToTransaction(
                            Map.of(new TopicPartition(topic, 0), offset),
                            new ConsumerGroupMetadata(asked.get("group").asText()));
                }
                if (transaction.get("commit").asBoolean()) {
                    producer.commitTransaction();
                } else {
                    producer.flush();
                    producer.abortTransaction();
                }
            }
        }
        return answer;
    }

    /** The state of a group, the static id and the number of partitions of each member, and the committed offsets. */
    static ObjectNode group(JsonNode asked) throws Exception {
        String name = asked.get("group").asText();
        ObjectNode answer = JSON.createObjectNode();
        try (Admin admin = Admin.create(options(asked))) {
            ArrayNode members = answer.putArray("members");
            ConsumerGroupDescription group;
            try {
                group = admin.describeConsumerGroups(List.of(name)).all().get().get(name);
            } catch (ExecutionException error) {
                // A group without a first member is unknown to newer brokers, and in the state Dead in older ones.
                answer.putObject("offsets");
                return answer.put("state", "Dead");
            }
            answer.put("state", group.state().toString());
            for (MemberDescription member : group.members()) {
                int partitions = member.assignment().topicPartitions().size();
                members.addArray().add(member.groupInstanceId().orElse(null)).add(partitions);
            }
            ObjectNode offsets = answer.putObject("offsets");
            admin.listConsumerGroupOffsets(name).partitionsToOffsetAndMetadata().get()
                    .forEach((place, offset) -> offsets.put(place.toString(), offset.offset()));
        }
        return answer;
    }

    interface Step {
        Object run() throws Exception;
    }

    static void step(ObjectNode answer, String name, Step step) {
        try {
            Thread.sleep(300); // A broker applies changes after its response.
            answer.putPOJO(name, step.run());
        } catch (Exception error) {
            Throwable cause = error instanceof ExecutionException ? error.getCause() : error;
            answer.putObject(name).put("error", cause.getClass().getSimpleName());
        }
    }

    /** The admin client, step by step. */
    static ObjectNode admin(JsonNode asked) {
        String topic = asked.get("topic").asText();
        String group = asked.get("group").asText();
        TopicPartition filled = new TopicPartition(asked.get("filled").asText(), 0);
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        NewTopic made = new NewTopic(topic, 2, (short) 1).configs(Map.of("retention.ms", "3600000"));
        ObjectNode answer = JSON.createObjectNode();
        ObjectNode steps = answer.putObject("steps");
        try (Admin admin = Admin.create(options(asked)); KafkaConsumer<byte[], byte[]> consumer = consumer(asked)) {
            step(steps, "create topic", () -> admin.createTopics(List.of(made)).all().get());
            step(steps, "create topic again", () -> admin.createTopics(List.of(made)).all().get());
            step(steps, "list topics", () -> admin.listTopics().names().get().contains(topic));
            step(steps, "describe topic", () -> consumer.partitionsFor(topic).size());
            step(steps, "describe configs", () ->
                    admin.describeConfigs(List.of(resource)).all().get().get(resource).get("retention.ms").value());
            AlterConfigOp change = new AlterConfigOp(new ConfigEntry("retention.ms", "7200000"), AlterConfigOp.OpType.SET);
            step(steps, "alter configs", () -> admin.incrementalAlterConfigs(Map.of(resource, List.of(change))).all().get());
            step(steps, "altered config", () ->
                    admin.describeConfigs(List.of(resource)).all().get().get(resource).get("retention.ms").value());
            step(steps, "create partitions", () ->
                    admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(4))).all().get());
            step(steps, "delete records", () -> admin.deleteRecords(Map.of(filled, RecordsToDelete.beforeOffset(3)))
                    .lowWatermarks().get(filled).get().lowWatermark());
            step(steps, "list offsets", () ->
                    admin.listOffsets(Map.of(filled, OffsetSpec.latest())).partitionResult(filled).get().offset());
            step(steps, "list groups", () ->
                    admin.listConsumerGroups().all().get().stream().anyMatch(one -> one.groupId().equals(group)));
            step(steps, "describe group", () ->
                    admin.describeConsumerGroups(List.of(group)).all().get().get(group).state().toString());
            step(steps, "group offsets", () -> admin.listConsumerGroupOffsets(group)
                    .partitionsToOffsetAndMetadata().get().get(filled).offset());
            step(steps, "delete group", () -> admin.deleteConsumerGroups(List.of(group)).all().get());
            step(steps, "describe cluster", () -> admin.describeCluster().nodes().get().size());
            step(steps, "delete topic", () -> admin.deleteTopics(List.of(topic)).all().get());
            step(steps, "delete topic again", () -> admin.deleteTopics(List.of(topic)).all().get());
        }
        return answer;
    }

    static ArrayNode json(ConsumerRecord<byte[], byte[]> record) {
        ArrayNode row = JSON.createArrayNode();
        row.add(record.topic()).add(record.partition()).add(record.offset());
        row.add(record.timestamp()).add(record.timestampType().id);
        row.add(text(record.key())).add(text(record.value()));
        ArrayNode headers = row.addArray();
        record.headers().forEach(one -> headers.addArray().add(one.key()).add(text(one.value())));
        return row;
    }

    static String text(byte[] data) {
        return data == null ? null : Base64.getEncoder().encodeToString(data);
    }

    static byte[] bytes(JsonNode text) {
        return text.isNull() ? null : Base64.getDecoder().decode(text.asText());
    }

    static class Ended extends RuntimeException {
        Ended() {
            super(null, null, false, false);
        }
    }

    /** One of Kafka's command lines, with what it reads and prints. */
    static ObjectNode tool(JsonNode asked) throws Exception {
        List<String> arguments = new ArrayList<>();
        asked.get("arguments").forEach(one -> arguments.add(one.asText()));
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        ByteArrayOutputStream err = new ByteArrayOutputStream();
        PrintStream stdout = System.out;
        PrintStream stderr = System.err;
        java.io.InputStream stdin = System.in;
        List<Integer> status = new ArrayList<>();
        List<Runnable> hooks = new ArrayList<>();
        // Some tools take the end that this throws for a failure, and end once more: the first one counts.
        Exit.Procedure end = (code, message) -> {
            status.add(code);
            throw new Ended();
        };
        Exit.setExitProcedure(end);
        Exit.setHaltProcedure(end);
        Exit.setShutdownHookAdder((name, hook) -> hooks.add(hook));
        try {
            System.setOut(new PrintStream(out, true, StandardCharsets.UTF_8));
            System.setErr(new PrintStream(err, true, StandardCharsets.UTF_8));
            System.setIn(new ByteArrayInputStream(asked.path("stdin").asText("").getBytes(StandardCharsets.UTF_8)));
            Class.forName(asked.get("class").asText())
                    .getMethod("main", String[].class)
                    .invoke(null, (Object) arguments.toArray(new String[0]));
        } catch (java.lang.reflect.InvocationTargetException error) {
            if (!(error.getCause() instanceof Ended)) {
                throw error;
            }
        } finally {
            hooks.forEach(Runnable::run);
            System.setOut(stdout);
            System.setErr(stderr);
            System.setIn(stdin);
        }
        ObjectNode answer = JSON.createObjectNode();
        answer.put("status", status.isEmpty() ? 0 : status.get(0));
        answer.put("out", out.toString(StandardCharsets.UTF_8));
        return answer.put("err", err.toString(StandardCharsets.UTF_8));
    }
}
