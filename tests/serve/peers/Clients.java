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
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
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
            consumer.seekToBeginning(places);
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

    /** A member of a group reads until it has so many records, or for so many seconds, commits and leaves. */
    static ObjectNode join(JsonNode asked) {
        ObjectNode answer = JSON.createObjectNode();
        ArrayNode records = answer.putArray("records");
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(asked)) {
            consumer.subscribe(List.of(asked.get("topic").asText()));
            long until = System.nanoTime() + asked.path("seconds").asLong(SECONDS) * 1_000_000_000L;
            while (records.size() < asked.get("count").asInt() && System.nanoTime() < until) {
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
                producer.sendOffsetsToTransaction(
                        Map.of(new TopicPartition(topic, 0), new OffsetAndMetadata(transaction.get("offset").asLong())),
                        new ConsumerGroupMetadata(asked.get("group").asText()));
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
