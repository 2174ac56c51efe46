// Drives a broker through Apache Kafka's Java clients: `java Conformance.java BOOTSTRAP [SCENARIO]...` runs these scenarios,
// or all, a few at a time, and prints `NAME ok` or `NAME failed: REASON` for each. `java Conformance.java list` prints the names.

import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import java.util.UUID;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.InvalidPartitionsException;
import org.apache.kafka.common.errors.InvalidReplicationFactorException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.errors.RecordTooLargeException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public class Conformance {
    interface Scenario {
        void run() throws Exception;
    }

    static String bootstrap;

    static final TreeMap<String, Scenario> SCENARIOS = new TreeMap<>(Map.ofEntries(
        Map.entry("admin", Conformance::admin),
        Map.entry("classic_group_range", () -> group(Map.of("group.protocol", "classic",
            "partition.assignment.strategy", "org.apache.kafka.clients.consumer.RangeAssignor"))),
        Map.entry("classic_group_cooperative", () -> group(Map.of("group.protocol", "classic",
            "partition.assignment.strategy", "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"))),
        Map.entry("classic_group_static_members", Conformance::staticMembers),
        Map.entry("consumer_group_range", () -> group(Map.of("group.protocol", "consumer", "group.remote.assignor", "range"))),
        Map.entry("consumer_group_uniform", () -> group(Map.of("group.protocol", "consumer", "group.remote.assignor", "uniform"))),
        Map.entry("codecs", Conformance::codecs),
        Map.entry("list_offsets", Conformance::listOffsets),
        Map.entry("message_too_large", Conformance::messageTooLarge),
        Map.entry("producer_is_fenced", Conformance::producerIsFenced),
        Map.entry("transactions", Conformance::transactions),
        Map.entry("transactional_copy", Conformance::transactionalCopy)));

    public static void main(String[] args) throws Exception {
        if (args.length == 1 && args[0].equals("list")) {
            System.out.println(String.join("\n", SCENARIOS.keySet()));
            return;
        }
        List<String> names = args.length > 1 ? List.of(args).subList(1, args.length) : List.copyOf(SCENARIOS.keySet());
        if (args.length == 0 || !SCENARIOS.keySet().containsAll(names)) {
            System.out.println("usage: java Conformance.java BOOTSTRAP [SCENARIO]... | list");
            System.exit(2);
        }
        bootstrap = args[0];
        ExecutorService atATime = Executors.newFixedThreadPool(6);
        for (String name : names) {
            atATime.submit(() -> {
                String outcome = "ok";
                try {
                    SCENARIOS.get(name).run();
                } catch (Throwable failure) {
                    outcome = "failed: " + failure.toString().replace('\n', ' ');
                }
                System.out.println(name + " " + outcome);
            });
        }
        atATime.shutdown();
        atATime.awaitTermination(4, TimeUnit.MINUTES);
        System.exit(0);
    }

    static void same(String what, Object got, Object want) {
        if (!Objects.equals(got, want)) {
            throw new AssertionError(what + ": got " + got + ", want " + want);
        }
    }

    static List<String> numbers(int start, int end) {
        return IntStream.range(start, end).mapToObj(Integer::toString).collect(Collectors.toList());
    }

    static Properties properties(Map<String, ?> more) {
        Properties all = new Properties();
        all.put("bootstrap.servers", bootstrap);
        all.putAll(more);
        return all;
    }

    static KafkaProducer<String, String> producer(Map<String, ?> more) {
        return new KafkaProducer<>(properties(more), new StringSerializer(), new StringSerializer());
    }

    static KafkaConsumer<String, String> consumer(Map<String, ?> more) {
        Properties all = properties(Map.of("auto.offset.reset", "earliest"));
        all.putAll(more);
        return new KafkaConsumer<>(all, new StringDeserializer(), new StringDeserializer());
    }

    static String fresh(String prefix, int partitions, Map<String, String> configs) throws Exception {
        String topic = prefix + "-java-" + UUID.randomUUID();
        try (Admin admin = Admin.create(properties(Map.of()))) {
            admin.createTopics(List.of(new NewTopic(topic, partitions, (short) -1).configs(configs))).all().get();
            Map<TopicPartition, OffsetSpec> all = IntStream.range(0, partitions).boxed()
                .collect(Collectors.toMap(p -> new TopicPartition(topic, p), p -> OffsetSpec.earliest()));
            // A topic is known a moment before its partitions answer.
            until("leaders of " + topic, () -> {
                try {
                    admin.describeTopics(List.of(topic)).allTopicNames().get();
                    admin.listOffsets(all).all().get();
                    return true;
                } catch (ExecutionException notYet) {
                    return false;
                }
            });
        }
        return topic;
    }

    static void send(String topic, List<String> values, Map<String, ?> more) {
        try (KafkaProducer<String, String> producer = producer(more)) {
            values.forEach(value -> producer.send(new ProducerRecord<>(topic, value)));
        }
    }

    static List<ConsumerRecord<String, String>> read(String topic, int partitions, int count, Map<String, ?> more) {
        try (KafkaConsumer<String, String> consumer = consumer(more)) {
            List<TopicPartition> assigned = IntStream.range(0, partitions).mapToObj(p -> new TopicPartition(topic, p)).toList();
            consumer.assign(assigned);
            consumer.seekToBeginning(assigned);
            List<ConsumerRecord<String, String>> got = new ArrayList<>();
            long deadline = System.currentTimeMillis() + 30_000;
            while (got.size() < count) {
                if (System.currentTimeMillis() > deadline) {
                    throw new AssertionError("only " + got.size() + " of " + count + " records came");
                }
                consumer.poll(Duration.ofMillis(100)).forEach(got::add);
            }
            return got;
        }
    }

    static List<String> values(List<ConsumerRecord<String, String>> records) {
        return records.stream().map(ConsumerRecord::value).collect(Collectors.toList());
    }

    static void codecs() throws Exception {
        for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd")) {
            String topic = fresh("codec", 1, Map.of());
            send(topic, numbers(0, 100), Map.of("compression.type", codec));
            same(codec, values(read(topic, 1, 100, Map.of())), numbers(0, 100));
        }
    }

    /** Two members share four partitions; one leaves and the other has them all. */
    static void group(Map<String, String> protocol) throws Exception {
        String topic = fresh("group", 4, Map.of());
        Map<String, Object> settings = new HashMap<>(protocol);
        settings.put("group.id", "g-" + topic);
        if (protocol.get("group.protocol").equals("classic")) {
            settings.put("session.timeout.ms", "6000");
            settings.put("heartbeat.interval.ms", "300");
        }
        KafkaConsumer<String, String> first = consumer(settings);
        KafkaConsumer<String, String> second = consumer(settings);
        first.subscribe(List.of(topic));
        second.subscribe(List.of(topic));
        until("two partitions each", () -> {
            first.poll(Duration.ofMillis(50));
            second.poll(Duration.ofMillis(50));
            Set<TopicPartition> all = new HashSet<>(first.assignment());
            all.addAll(second.assignment());
            return first.assignment().size() == 2 && second.assignment().size() == 2 && all.size() == 4;
        });
        second.close();
        until("all four partitions", () -> {
            first.poll(Duration.ofMillis(50));
            return first.assignment().size() == 4;
        });
        try (KafkaProducer<String, String> producer = producer(Map.of())) {
            for (int partition = 0; partition < 4; partition++) {
                producer.send(new ProducerRecord<>(topic, partition, null, "v" + partition)).get();
            }
        }
        Set<String> got = new HashSet<>();
        until("a record of each partition", () -> {
            first.poll(Duration.ofMillis(50)).forEach(record -> got.add(record.value()));
            return got.equals(Set.of("v0", "v1", "v2", "v3"));
        });
        first.commitSync();
        TopicPartition zero = new TopicPartition(topic, 0);
        same("committed", first.committed(Set.of(zero)).get(zero).offset(), 1L);
        first.close();
    }

    interface Condition {
        boolean holds() throws Exception;
    }

    static void until(String what, Condition condition) throws Exception {
        long deadline = System.currentTimeMillis() + 40_000;
        while (!condition.holds()) {
            if (System.currentTimeMillis() > deadline) {
                throw new AssertionError("never came: " + what);
            }
        }
    }

    /** A static member that restarts within its session timeout gets its partitions back without a rebalance. */
    static void staticMembers() throws Exception {
        String topic = fresh("static", 2, Map.of());
        Map<String, Object> settings = new HashMap<>(Map.of("group.id", "s-" + topic, "group.protocol", "classic",
            "session.timeout.ms", "30000", "heartbeat.interval.ms", "300"));
        Map<String, Object> one = new HashMap<>(settings);
        one.put("group.instance.id", "one");
        Map<String, Object> two = new HashMap<>(settings);
        two.put("group.instance.id", "two");
        KafkaConsumer<String, String> first = consumer(one);
        KafkaConsumer<String, String> second = consumer(two);
        first.subscribe(List.of(topic));
        second.subscribe(List.of(topic));
        until("one partition each", () -> {
            first.poll(Duration.ofMillis(50));
            second.poll(Duration.ofMillis(50));
            return first.assignment().size() == 1 && second.assignment().size() == 1;
        });
        Set<TopicPartition> before = second.assignment();
        int generation = first.groupMetadata().generationId();
        second.close();
        KafkaConsumer<String, String> again = consumer(two);
        again.subscribe(List.of(topic));
        until("the same partition", () -> {
            first.poll(Duration.ofMillis(50));
            again.poll(Duration.ofMillis(50));
            return again.assignment().equals(before);
        });
        same("generation", first.groupMetadata().generationId(), generation);
        first.close();
        again.close();
    }

    static void listOffsets() throws Exception {
        String topic = fresh("offsets", 1, Map.of());
        long base = System.currentTimeMillis() - 3_600_000;
        try (KafkaProducer<String, String> producer = producer(Map.of())) {
            for (int i : new int[] {0, 1, 5, 3}) {
                producer.send(new ProducerRecord<>(topic, 0, base + i * 1000L, null, "v" + i)).get();
            }
        }
        TopicPartition partition = new TopicPartition(topic, 0);
        try (Admin admin = Admin.create(properties(Map.of()))) {
            Map<OffsetSpec, Long> wanted = new HashMap<>();
            wanted.put(OffsetSpec.earliest(), 0L);
            wanted.put(OffsetSpec.latest(), 4L);
            wanted.put(OffsetSpec.maxTimestamp(), 2L);
            wanted.put(OffsetSpec.forTimestamp(base + 1), 1L);
            wanted.put(OffsetSpec.forTimestamp(base + 4000), 2L);
            wanted.put(OffsetSpec.forTimestamp(base + 6000), -1L);
            for (Map.Entry<OffsetSpec, Long> want : wanted.entrySet()) {
                long got = admin.listOffsets(Map.of(partition, want.getKey())).partitionResult(partition).get().offset();
                same(want.getKey().getClass().getSimpleName(), got, want.getValue());
            }
        }
    }

    static Throwable cause(Scenario scenario) throws Exception {
        try {
            scenario.run();
        } catch (ExecutionException wrapped) {
            return wrapped.getCause();
        } catch (RuntimeException failure) {
            return failure;
        }
        return new AssertionError("nothing was refused");
    }

    static void messageTooLarge() throws Exception {
        String topic = fresh("large", 1, Map.of("max.message.bytes", "2000"));
        try (KafkaProducer<String, String> producer = producer(Map.of())) {
            Throwable refused = cause(() -> producer.send(new ProducerRecord<>(topic, "x".repeat(3000))).get());
            same("refused with", refused.getClass(), RecordTooLargeException.class);
            producer.send(new ProducerRecord<>(topic, "x".repeat(1000))).get();
        }
    }

    static void admin() throws Exception {
        String topic = fresh("admin", 3, Map.of("cleanup.policy", "compact"));
        try (Admin admin = Admin.create(properties(Map.of()))) {
            same("id", admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).partitions().size(), 3);
            admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(5))).all().get();
            Throwable fewer = cause(() -> admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(2))).all().get());
            same("fewer partitions", fewer.getClass(), InvalidPartitionsException.class);
            Throwable replicas = cause(() -> admin.createTopics(List.of(new NewTopic(topic + "9", 1, (short) 9))).all().get());
            same("too many replicas", replicas.getClass(), InvalidReplicationFactorException.class);
            ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
            admin.incrementalAlterConfigs(Map.of(resource, List.of(
                new AlterConfigOp(new ConfigEntry("retention.ms", "777"), AlterConfigOp.OpType.SET),
                new AlterConfigOp(new ConfigEntry("cleanup.policy", "delete"), AlterConfigOp.OpType.APPEND)))).all().get();
            Map<String, ConfigEntry> configs = new HashMap<>();
            // Apache Kafka answers a change before the broker that is asked next has heard of it.
            long deadline = System.nanoTime() + 20_000_000_000L;
            do {
                admin.describeConfigs(List.of(resource)).all().get().get(resource).entries().forEach(e -> configs.put(e.name(), e));
            } while (!configs.get("retention.ms").value().equals("777") && System.nanoTime() < deadline);
            same("retention.ms", configs.get("retention.ms").value(), "777");
            same("its source", configs.get("retention.ms").source(), ConfigEntry.ConfigSource.DYNAMIC_TOPIC_CONFIG);
            same("cleanup.policy", configs.get("cleanup.policy").value(), "compact,delete");
            same("default source", configs.get("segment.bytes").source(), ConfigEntry.ConfigSource.DEFAULT_CONFIG);
            int nodes = Integer.parseInt(System.getenv().getOrDefault("HAILBUS_TEST_NODES", "1"));
            same("nodes", admin.describeCluster().nodes().get().size(), nodes);
            admin.deleteTopics(List.of(topic)).all().get();
        }
    }

    static void transactions() throws Exception {
        String topic = fresh("txn", 1, Map.of());
        try (KafkaProducer<String, String> producer = producer(Map.of("transactional.id", "t-" + topic))) {
            producer.initTransactions();
            for (int round = 0; round < 4; round++) {
                producer.beginTransaction();
                for (String value : numbers(round * 10, round * 10 + 10)) {
                    producer.send(new ProducerRecord<>(topic, value));
                }
                producer.flush();
                if (round % 2 == 0) {
                    producer.commitTransaction();
                } else {
                    producer.abortTransaction();
                }
            }
        }
        List<String> committed = new ArrayList<>(numbers(0, 10));
        committed.addAll(numbers(20, 30));
        same("committed", values(read(topic, 1, 20, Map.of("isolation.level", "read_committed"))), committed);
        same("everything", values(read(topic, 1, 40, Map.of())), numbers(0, 40));
    }

    static void producerIsFenced() throws Exception {
        String topic = fresh("fenced", 1, Map.of());
        Map<String, String> settings = Map.of("transactional.id", "f-" + topic);
        KafkaProducer<String, String> old = producer(settings);
        old.initTransactions();
        old.beginTransaction();
        old.send(new ProducerRecord<>(topic, "lost")).get();
        try (KafkaProducer<String, String> successor = producer(settings)) {
            successor.initTransactions();
            Throwable refused = cause(() -> {
                old.send(new ProducerRecord<>(topic, "late")).get();
                old.commitTransaction();
            });
            if (!(refused instanceof ProducerFencedException)
                && !(refused instanceof org.apache.kafka.common.errors.InvalidProducerEpochException)) {
                throw new AssertionError("refused with " + refused);
            }
            successor.beginTransaction();
            successor.send(new ProducerRecord<>(topic, "kept"));
            successor.commitTransaction();
        }
        old.close(Duration.ZERO);
        same("committed", values(read(topic, 1, 1, Map.of("isolation.level", "read_committed"))), List.of("kept"));
    }

    static void transactionalCopy() throws Exception {
        String source = fresh("copy-in", 1, Map.of());
        String target = fresh("copy-out", 1, Map.of());
        send(source, numbers(0, 30), Map.of());
        TopicPartition partition = new TopicPartition(source, 0);
        String group = "copy-" + source;
        try (KafkaProducer<String, String> producer = producer(Map.of("transactional.id", "t-" + source));
            KafkaConsumer<String, String> consumer = consumer(Map.of("group.id", group, "group.protocol", "classic",
                "enable.auto.commit", "false", "isolation.level", "read_committed", "max.poll.records", "10"))) {
            producer.initTransactions();
            consumer.subscribe(List.of(source));
            int copied = 0;
            boolean abortOnce = true;
            while (copied < 30) {
                List<ConsumerRecord<String, String>> records = new ArrayList<>();
                consumer.poll(Duration.ofMillis(200)).forEach(records::add);
                if (records.isEmpty()) {
                    continue;
                }
                producer.beginTransaction();
                records.forEach(record -> producer.send(new ProducerRecord<>(target, record.value())));
                long next = records.get(records.size() - 1).offset() + 1;
                ConsumerGroupMetadata metadata = consumer.groupMetadata();
                producer.sendOffsetsToTransaction(Map.of(partition, new OffsetAndMetadata(next)), metadata);
                if (abortOnce) {
                    abortOnce = false;
                    producer.abortTransaction();
                    consumer.seek(partition, records.get(0).offset());
                } else {
                    producer.commitTransaction();
                    copied += records.size();
                }
            }
        }
        same("copied", values(read(target, 1, 30, Map.of("isolation.level", "read_committed"))), numbers(0, 30));
        try (Admin admin = Admin.create(properties(Map.of()))) {
            same("committed", admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get().get(partition).offset(), 30L);
        }
    }
}
