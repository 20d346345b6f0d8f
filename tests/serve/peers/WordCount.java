import java.util.Arrays;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.state.Stores;

/**
 * Counts the words of the topic {@code text} into the topic {@code counts}, exactly once, until it is killed.
 *
 * <p>{@code java -cp <jars> WordCount.java <server> <state directory> [<processing guarantee> <suffix>]}. Each update of
 * a count is a record, so the records of a word must be 1, 2, 3, and so on. The names of the application and of the
 * topics end with the suffix.
 */
public class WordCount {
    public static void main(String[] arguments) throws Exception {
        String guarantee = arguments.length > 2 ? arguments[2] : StreamsConfig.EXACTLY_ONCE_V2;
        String suffix = arguments.length > 3 ? arguments[3] : "";
        Properties properties = new Properties();
        properties.putAll(Map.of(
                StreamsConfig.APPLICATION_ID_CONFIG, "words" + suffix,
                StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0],
                StreamsConfig.STATE_DIR_CONFIG, arguments[1],
                StreamsConfig.PROCESSING_GUARANTEE_CONFIG, guarantee,
                StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 100,
                StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0,
                StreamsConfig.REPLICATION_FACTOR_CONFIG, 1));
        properties.put(StreamsConfig.consumerPrefix("auto.offset.reset"), "earliest");
        properties.put(StreamsConfig.consumerPrefix("session.timeout.ms"), 6_000);
        properties.put(StreamsConfig.producerPrefix("transaction.timeout.ms"), 10_000);
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream("text" + suffix, Consumed.with(Serdes.String(), Serdes.String()))
                .flatMapValues(line -> Arrays.asList(line.split(" ")))
                .groupBy((key, word) -> word, Grouped.with(Serdes.String(), Serdes.String()))
                .count(Materialized.<String, Long>as(Stores.inMemoryKeyValueStore("counts-store"))
                        .withKeySerde(Serdes.String()).withValueSerde(Serdes.Long()))
                .mapValues(count -> Long.toString(count))
                .toStream()
                .to("counts" + suffix, Produced.with(Serdes.String(), Serdes.String()));
        KafkaStreams streams = new KafkaStreams(builder.build(), properties);
        streams.setUncaughtExceptionHandler(error -> {
            error.printStackTrace();
            return StreamThreadExceptionResponse.REPLACE_THREAD;
        });
        streams.start();
        Thread.currentThread().join();
    }
}
