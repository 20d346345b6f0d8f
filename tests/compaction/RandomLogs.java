import java.io.File;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Delayed;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.record.CompressionType;
import org.apache.kafka.common.record.ControlRecordType;
import org.apache.kafka.common.record.EndTransactionMarker;
import org.apache.kafka.common.record.MemoryRecords;
import org.apache.kafka.common.record.MemoryRecordsBuilder;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.util.Scheduler;
import org.apache.kafka.storage.internals.log.Cleaner;
import org.apache.kafka.storage.internals.log.CleanerStats;
import org.apache.kafka.storage.internals.log.LogCleanerManager;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.LogSegment;
import org.apache.kafka.storage.internals.log.LogStartOffsetIncrementReason;
import org.apache.kafka.storage.internals.log.LogToClean;
import org.apache.kafka.storage.internals.log.PreCleanStats;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.SkimpyOffsetMap;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.internals.utils.Throttler;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

/**
 * Random logs, written, cleaned and expired by Kafka's own classes, in the layout of the compaction fixtures.
 *
 * <p>{@code java -cp <jars> RandomLogs.java <folder> <first seed> <last seed>} makes {@code <folder>/<seed>} with
 * fixture.json and one log dir per stage. The clock stands still but where a stage moves it, all files have one
 * modification time, and producers are known from the log alone (their snapshots are deleted between stages).
 */
public class RandomLogs {
    static final TopicPartition PARTITION = new TopicPartition("compacted", 0);
    static final int EXPIRATION_MS = 86_400_000;
    static final CompressionType[] CODECS = CompressionType.values();

    final Clock clock = new Clock();
    final Random random;
    final Path folder;
    final Path work;
    final Map<String, String> configs;
    final List<String> stages = new ArrayList<>();
    final List<Writer> writers = new ArrayList<>();
    final long filesChangedMs = clock.now;
    final LogDirFailureChannel failures = new LogDirFailureChannel(1);
    final boolean packed;
    UnifiedLog log;
    long logStart = 0;
    long cleanedThrough = 0;
    int epoch = 0;
    byte magic;

    RandomLogs(Path folder, long seed) throws IOException {
        this.folder = folder;
        random = new Random(seed * 7919 + 17);
        work = folder.resolve("work");
        Files.createDirectories(work.resolve(PARTITION.toString()));
        configs = configs();
        packed = random.nextInt(3) == 0;
        magic = (byte) (random.nextInt(3) == 0 ? random.nextInt(2) : 2);
        writers.add(new Writer(-1, false, false));
        for (int i = 0; i < random.nextInt(3); i++) {
            writers.add(new Writer(100 + i, false, false));
        }
        for (int i = 0; i < random.nextInt(4); i++) {
            writers.add(new Writer(200 + i, true, random.nextBoolean()));
        }
    }

    /** A producer; {@code raised}: markers carry the epoch after their transaction's. */
    static class Writer {
        final long id;
        final boolean transactional;
        final boolean raised;
        short epoch;
        int sequence;
        boolean open;

        Writer(long id, boolean transactional, boolean raised) {
            this.id = id;
            this.transactional = transactional;
            this.raised = raised;
            this.epoch = (short) (id < 0 ? -1 : 3);
        }
    }

    Map<String, String> configs() {
        Map<String, String> found = new java.util.TreeMap<>();
        found.put("cleanup.policy", pick("compact", "compact", "compact", "compact,delete", "delete"));
        found.put("internal.segment.bytes", pick("400", "900", "2500"));
        found.put("index.interval.bytes", pick("0", "200", "1000"));
        found.put("segment.index.bytes", pick("1200", "4096"));
        found.put("min.cleanable.dirty.ratio", pick("0.0", "0.01", "0.3"));
        found.put("delete.retention.ms", pick("0", "300", "5000"));
        found.put("min.compaction.lag.ms", pick("0", "0", "400"));
        found.put("file.delete.delay.ms", "0");
        found.put("retention.ms", "-1");
        if (found.get("cleanup.policy").contains("delete")) {
            found.put("retention.ms", pick("-1", "2000", "20000"));
            found.put("retention.bytes", pick("-1", "1500"));
        }
        return found;
    }

    String pick(String... choices) {
        return choices[random.nextInt(choices.length)];
    }

    void run() throws Exception {
        open();
        write(30 + random.nextInt(50));
        if (random.nextInt(4) == 0) {
            moveLogStart();
        }
        stage("before", "");
        for (int round = 1; round <= 3; round++) {
            clock.now += new long[] {0, 200, 1000, 6000, 90_000_000}[random.nextInt(round == 3 ? 5 : 4)];
            pass("pass-" + round);
            magic = 2;
            write(5 + random.nextInt(30));
            if (random.nextInt(2) == 0) {
                moveLogStart();
            }
            stage("appended-" + round, "");
        }
        log.close();
        String told = configs.entrySet().stream()
            .map(each -> quoted(each.getKey()) + ": " + quoted(each.getValue())).collect(Collectors.joining(", "));
        String json = "{\"configs\": {" + told + "},\n\"stages\": [\n" + String.join(",\n", stages) + "]}\n";
        Files.writeString(folder.resolve("fixture.json"), json);
        delete(work);
    }

    /** As after a crash: from a clean shutdown without snapshots Kafka would begin with no producers at all. */
    void open() throws IOException {
        Properties properties = new Properties();
        properties.putAll(configs);
        log = UnifiedLog.create(work.resolve(PARTITION.toString()).toFile(), new LogConfig(properties), logStart, 0L,
            new AtOnce(), new BrokerTopicStats(), clock, 60_000,
            new ProducerStateManagerConfig(EXPIRATION_MS, false), 600_000, failures, false, Optional.empty());
        log.updateHighWatermark(log.logEndOffset());
    }

    // ------------------------------------------------------------------------------------------------ appending

    void write(int batches) throws IOException {
        boolean old = magic < 2;
        for (int i = 0; i < batches; i++) {
            clock.now += new long[] {0, 1, 7, 50}[random.nextInt(4)];
            if (random.nextInt(25) == 0) {
                epoch += 1 + random.nextInt(3);
            }
            if (magic < 2 && random.nextInt(15) == 0) {
                magic += 1;
            }
            Writer writer = magic < 2 ? writers.get(0) : writers.get(random.nextInt(writers.size()));
            if (writer.open && random.nextInt(3) == 0) {
                end(writer);
            } else if (writer.transactional && !writer.open && random.nextInt(20) == 0) {
                end(writer);
            } else {
                data(writer);
            }
            log.updateHighWatermark(log.logEndOffset());
        }
        if (random.nextInt(3) == 0) {
            for (Writer writer : writers) {
                if (writer.open) {
                    end(writer);
                }
            }
        }
        // Old messages in the active segment are imported as a closed one.
        if (random.nextInt(4) > 0 || old) {
            log.roll();
        }
        log.updateHighWatermark(log.logEndOffset());
    }

    void data(Writer writer) {
        long base = log.logEndOffset();
        // Of format v0 a batch without compression is one message.
        CompressionType codec = packed ? CODECS[random.nextInt(magic < 2 ? 4 : 5)] : CompressionType.NONE;
        boolean stamped = magic > 0 && random.nextInt(6) == 0;
        TimestampType type = magic == 0 ? TimestampType.NO_TIMESTAMP_TYPE
            : stamped ? TimestampType.LOG_APPEND_TIME : TimestampType.CREATE_TIME;
        ByteBuffer buffer = ByteBuffer.allocate(4096);
        MemoryRecordsBuilder builder = MemoryRecords.builder(buffer, magic, Compression.of(codec).build(), type, base,
            clock.now, writer.id, writer.epoch, writer.id < 0 ? -1 : writer.sequence, writer.transactional,
            magic < 2 ? -1 : epoch);
        int count = new int[] {1, 1, 2, 3, 5}[random.nextInt(5)];
        for (int i = 0; i < count; i++) {
            byte[] key = random.nextInt(12) == 0 ? null : bytes("k" + random.nextInt(8));
            byte[] value = key != null && random.nextInt(5) == 0 ? null
                : bytes(("v" + (base + i)).repeat(random.nextInt(4)));
            long time = magic == 0 ? -1 : clock.now + new long[] {0, 0, -3, 2}[random.nextInt(4)];
            builder.appendWithOffset(base + i, time, key, value);
        }
        writer.sequence += count;
        writer.open |= writer.transactional;
        log.appendAsFollower(builder.build(), epoch);
    }

    void end(Writer writer) {
        if (writer.raised) {
            writer.epoch += 1;
            writer.sequence = 0;
        }
        ControlRecordType kind = random.nextBoolean() ? ControlRecordType.COMMIT : ControlRecordType.ABORT;
        log.appendAsFollower(MemoryRecords.withEndTransactionMarker(log.logEndOffset(), clock.now, epoch, writer.id,
            writer.epoch, new EndTransactionMarker(kind, 1)), epoch);
        writer.open = false;
    }

    /** Anywhere, or in the dirty range: within batches and transactions, also those that are open. */
    void moveLogStart() throws IOException {
        long from = random.nextBoolean() ? log.logStartOffset() : Math.max(log.logStartOffset(), cleanedThrough);
        long until = random.nextBoolean() ? log.lastStableOffset() : log.highWatermark() + 1;
        if (until > from) {
            long offset = from + random.nextInt((int) (until - from));
            log.maybeIncrementLogStartOffset(offset, LogStartOffsetIncrementReason.ClientRecordDeletion);
            // As Kafka's cleaner does some seconds later. Segments below the log start are not imported.
            log.deleteOldSegments();
        }
    }

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    // ------------------------------------------------------------------------------------------------ a pass

    void pass(String name) throws Exception {
        log.removeExpiredProducers(clock.now);
        ConcurrentHashMap<TopicPartition, UnifiedLog> logs = new ConcurrentHashMap<>(Map.of(PARTITION, log));
        LogCleanerManager manager = new LogCleanerManager(List.of(work.toFile()), logs, failures);
        Optional<LogToClean> chosen = manager.grabFilthiestCompactedLog(clock, new PreCleanStats());
        SkimpyOffsetMap offsets = new SkimpyOffsetMap(24 * new int[] {3, 6, 9, 12, 1000, 1000}[random.nextInt(6)]);
        StringBuilder told = new StringBuilder("\"cleaner\": {\"clockMs\": " + clock.now);
        told.append(", \"chosen\": ").append(chosen.isPresent());
        told.append(", \"offsetMapSlots\": ").append(offsets.slots());
        if (chosen.isPresent()) {
            Throttler throttler = new Throttler(Double.MAX_VALUE, 300, "cleaner-io", "bytes", clock);
            Cleaner cleaner = new Cleaner(0, offsets, 1 << 16, 1 << 20, 0.9, throttler, clock, each -> { });
            Map.Entry<Long, CleanerStats> done = cleaner.clean(chosen.get());
            manager.doneCleaning(PARTITION, work.toFile(), done.getKey());
            cleanedThrough = done.getKey();
            CleanerStats stats = done.getValue();
            told.append(", \"firstUncleanableOffset\": ").append(chosen.get().firstUncleanableOffset());
            told.append(", \"endOffset\": ").append(done.getKey());
            told.append(", \"bytesRead\": ").append(stats.bytesRead());
            told.append(", \"bytesWritten\": ").append(stats.bytesWritten());
            told.append(", \"messagesRead\": ").append(stats.messagesRead());
            told.append(", \"messagesWritten\": ").append(stats.messagesWritten());
            told.append(", \"invalidMessagesRead\": ").append(stats.invalidMessagesRead());
        }
        told.append(", \"segmentsAfterCleaning\": ").append(segments());
        told.append(", \"deletedSegments\": ").append(log.deleteOldSegments()).append("}");
        manager.removeMetrics();
        stage(name, ", " + told);
    }

    // ------------------------------------------------------------------------------------------------ stages

    /** Close, copy, and open again. */
    void stage(String name, String more) throws IOException {
        logStart = log.logStartOffset();
        String told = "{\"stage\": " + quoted(name) + ", \"clockMs\": " + clock.now + ", \"logStartOffset\": " + logStart
            + ", \"logEndOffset\": " + log.logEndOffset() + ", \"lastStableOffset\": " + log.lastStableOffset() + more;
        log.close();
        Path partition = work.resolve(PARTITION.toString());
        try (Stream<Path> files = Files.list(partition)) {
            for (Path file : files.toList()) {
                if (file.toString().endsWith(".snapshot")) {
                    Files.delete(file);
                } else {
                    file.toFile().setLastModified(filesChangedMs);
                }
            }
        }
        String offset = "0\n1\n" + PARTITION.topic() + " 0 ";
        Files.writeString(work.resolve("log-start-offset-checkpoint"), offset + logStart + "\n");
        copy(work, folder.resolve(name));
        open();
        stages.add(told + ", \"segments\": " + segments() + "}");
    }

    String segments() throws IOException {
        List<String> found = new ArrayList<>();
        for (LogSegment segment : log.logSegments()) {
            segment.log().file().setLastModified(filesChangedMs);
            found.add("{\"baseOffset\": " + segment.baseOffset() + ", \"size\": " + segment.size()
                + ", \"largestTimestamp\": " + segment.largestTimestamp() + ", \"mtimeMs\": " + filesChangedMs + "}");
        }
        return "[" + String.join(", ", found) + "]";
    }

    static void copy(Path from, Path to) throws IOException {
        try (Stream<Path> paths = Files.walk(from)) {
            for (Path path : paths.toList()) {
                Path target = to.resolve(from.relativize(path).toString());
                if (Files.isDirectory(path)) {
                    Files.createDirectories(target);
                } else if (!path.toString().endsWith(".snapshot")) {
                    Files.copy(path, target, StandardCopyOption.COPY_ATTRIBUTES);
                }
            }
        }
    }

    static void delete(Path folder) throws IOException {
        try (Stream<Path> paths = Files.walk(folder)) {
            paths.sorted(java.util.Comparator.reverseOrder()).map(Path::toFile).forEach(File::delete);
        }
    }

    static String quoted(String text) {
        return "\"" + text + "\"";
    }

    public static void main(String[] arguments) throws Exception {
        for (long seed = Long.parseLong(arguments[1]); seed <= Long.parseLong(arguments[2]); seed++) {
            new RandomLogs(Path.of(arguments[0], Long.toString(seed)), seed).run();
        }
        System.exit(0);
    }

    /** A clock that stands still. */
    static class Clock implements Time {
        long now = 1_700_000_000_000L;

        public long milliseconds() {
            return now;
        }

        public long nanoseconds() {
            return now * 1_000_000;
        }

        public void sleep(long ms) { }

        public void waitObject(Object object, Supplier<Boolean> condition, long deadline) { }
    }

    /** Deletes at once what is to be deleted later, and does nothing periodically. */
    static class AtOnce implements Scheduler {
        public void startup() { }

        public void shutdown() { }

        public void resizeThreadPool(int threads) { }

        public ScheduledFuture<?> schedule(String name, Runnable task, long delay, long period) {
            if (period < 0) {
                task.run();
            }
            return new Done();
        }
    }

    static class Done extends CompletableFuture<Void> implements ScheduledFuture<Void> {
        public long getDelay(TimeUnit unit) {
            return 0;
        }

        public int compareTo(Delayed other) {
            return 0;
        }
    }
}
