// Drives a broker through franz-go: `conformance BOOTSTRAP [SCENARIO]...` runs these scenarios, or all, at the same time,
// and prints `NAME ok` or `NAME failed: REASON` for each. `conformance list` prints the names.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

type scenario func(ctx context.Context, bootstrap string) error

var scenarios = map[string]scenario{
	"codecs":                      codecs,
	"acks":                        acks,
	"headers_and_nulls":           headersAndNulls,
	"keys_keep_their_partition":   keysKeepTheirPartition,
	"group_takes_over":            groupTakesOver,
	"commit_metadata":             commitMetadata,
	"offsets_for_times":           offsetsForTimes,
	"mid_batch_offset":            midBatchOffset,
	"offset_out_of_range":         offsetOutOfRange,
	"message_too_large":           messageTooLarge,
	"transactions_read_committed": transactionsReadCommitted,
	"copy_exactly_once":           copyExactlyOnce,
	"admin":                       admin,
	"delete_records":              deleteRecords,
	"next_generation_group":       nextGenerationGroup,
}

func main() {
	names := make([]string, 0, len(scenarios))
	for name := range scenarios {
		names = append(names, name)
	}
	slices.Sort(names)
	if len(os.Args) == 2 && os.Args[1] == "list" {
		fmt.Println(strings.Join(names, "\n"))
		return
	}
	if len(os.Args) > 2 {
		names = os.Args[2:]
	}
	isUnknown := func(name string) bool { return scenarios[name] == nil }
	if len(os.Args) < 2 || slices.ContainsFunc(names, isUnknown) {
		fmt.Println("usage: conformance BOOTSTRAP [SCENARIO]... | conformance list")
		os.Exit(2)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second)
	defer cancel()
	outcomes := make(chan string)
	for _, name := range names {
		go func() {
			if err := scenarios[name](ctx, os.Args[1]); err != nil {
				outcomes <- fmt.Sprintf("%s failed: %s", name, strings.ReplaceAll(err.Error(), "\n", " "))
			} else {
				outcomes <- name + " ok"
			}
		}()
	}
	for range names {
		fmt.Println(<-outcomes)
	}
}

func client(bootstrap string, options ...kgo.Opt) (*kgo.Client, error) {
	return kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(bootstrap), kgo.DefaultProduceTopic("unset")}, options...)...)
}

// fresh creates a topic with a name of its own.
func fresh(ctx context.Context, bootstrap, prefix string, partitions int32, configs map[string]*string) (string, error) {
	c, err := client(bootstrap)
	if err != nil {
		return "", err
	}
	defer c.Close()
	topic := fmt.Sprintf("%s-%d", prefix, time.Now().UnixNano())
	adm := kadm.NewClient(c)
	response, err := adm.CreateTopic(ctx, partitions, -1, configs, topic)
	if err != nil {
		return "", err
	}
	if response.Err != nil {
		return "", response.Err
	}
	// A topic is known a moment before its partitions answer.
	for {
		offsets, err := adm.ListStartOffsets(ctx, topic)
		if err == nil && offsets.Error() == nil && len(offsets[topic]) == int(partitions) {
			return topic, nil
		}
		if ctx.Err() != nil {
			return "", fmt.Errorf("%s has no leaders: %w", topic, ctx.Err())
		}
	}
}

func record(topic, value string) *kgo.Record {
	return &kgo.Record{Topic: topic, Value: []byte(value)}
}

func produce(ctx context.Context, bootstrap, topic string, count int, options ...kgo.Opt) error {
	c, err := client(bootstrap, options...)
	if err != nil {
		return err
	}
	defer c.Close()
	records := make([]*kgo.Record, count)
	for i := range records {
		records[i] = record(topic, strconv.Itoa(i))
	}
	return c.ProduceSync(ctx, records...).FirstErr()
}

// read polls until `count` records came.
func read(ctx context.Context, c *kgo.Client, count int) ([]*kgo.Record, error) {
	var got []*kgo.Record
	for len(got) < count {
		fetches := c.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return got, fmt.Errorf("after %d of %d records: %w", len(got), count, err)
		}
		got = append(got, fetches.Records()...)
	}
	return got, nil
}

func readTopic(ctx context.Context, bootstrap, topic string, count int, options ...kgo.Opt) ([]*kgo.Record, error) {
	c, err := client(bootstrap, append([]kgo.Opt{
		kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	}, options...)...)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return read(ctx, c, count)
}

func values(records []*kgo.Record) []string {
	out := make([]string, len(records))
	for i, r := range records {
		out[i] = string(r.Value)
	}
	return out
}

func same[T comparable](what string, got, want []T) error {
	if !slices.Equal(got, want) {
		return fmt.Errorf("%s: got %v, want %v", what, got, want)
	}
	return nil
}

func numbers(start, end int) []string {
	out := []string{}
	for i := start; i < end; i++ {
		out = append(out, strconv.Itoa(i))
	}
	return out
}

func codecs(ctx context.Context, bootstrap string) error {
	for name, codec := range map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	} {
		topic, err := fresh(ctx, bootstrap, "codec-"+name, 1, nil)
		if err != nil {
			return err
		}
		if err := produce(ctx, bootstrap, topic, 100, kgo.ProducerBatchCompression(codec)); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		records, err := readTopic(ctx, bootstrap, topic, 100)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if err := same(name, values(records), numbers(0, 100)); err != nil {
			return err
		}
	}
	return nil
}

func acks(ctx context.Context, bootstrap string) error {
	topic, err := fresh(ctx, bootstrap, "acks", 1, nil)
	if err != nil {
		return err
	}
	for _, level := range []kgo.Acks{kgo.NoAck(), kgo.LeaderAck(), kgo.AllISRAcks()} {
		if err := produce(ctx, bootstrap, topic, 10, kgo.RequiredAcks(level), kgo.DisableIdempotentWrite()); err != nil {
			return err
		}
	}
	records, err := readTopic(ctx, bootstrap, topic, 30)
	if err != nil {
		return err
	}
	last := records[len(records)-1]
	if last.Offset != 29 {
		return fmt.Errorf("last offset %d, want 29", last.Offset)
	}
	return nil
}

func headersAndNulls(ctx context.Context, bootstrap string) error {
	topic, err := fresh(ctx, bootstrap, "headers", 1, nil)
	if err != nil {
		return err
	}
	c, err := client(bootstrap)
	if err != nil {
		return err
	}
	defer c.Close()
	sent := &kgo.Record{Topic: topic, Key: nil, Value: nil, Headers: []kgo.RecordHeader{
		{Key: "a", Value: []byte("1")}, {Key: "a", Value: []byte{0xff, 0}}, {Key: "empty", Value: []byte{}}, {Key: "null", Value: nil},
	}}
	if err := c.ProduceSync(ctx, sent, &kgo.Record{Topic: topic, Key: []byte{}, Value: []byte{}}).FirstErr(); err != nil {
		return err
	}
	records, err := readTopic(ctx, bootstrap, topic, 2)
	if err != nil {
		return err
	}
	got := records[0]
	if got.Key != nil || got.Value != nil {
		return fmt.Errorf("null key and value came back as %v and %v", got.Key, got.Value)
	}
	if records[1].Key == nil || records[1].Value == nil {
		return errors.New("empty key and value came back as null")
	}
	var shown []string
	for _, h := range got.Headers {
		shown = append(shown, fmt.Sprintf("%s=%v,%t", h.Key, h.Value, h.Value == nil))
	}
	return same("headers", shown, []string{"a=[49],false", "a=[255 0],false", "empty=[],false", "null=[],true"})
}

func keysKeepTheirPartition(ctx context.Context, bootstrap string) error {
	topic, err := fresh(ctx, bootstrap, "keys", 5, nil)
	if err != nil {
		return err
	}
	c, err := client(bootstrap)
	if err != nil {
		return err
	}
	defer c.Close()
	for round := range 3 {
		for key := range 20 {
			r := &kgo.Record{Topic: topic, Key: []byte(fmt.Sprint("key-", key)), Value: []byte(fmt.Sprint(round))}
			if err := c.ProduceSync(ctx, r).FirstErr(); err != nil {
				return err
			}
		}
	}
	records, err := readTopic(ctx, bootstrap, topic, 60)
	if err != nil {
		return err
	}
	home := map[string]int32{}
	seen := map[string][]string{}
	for _, r := range records {
		key := string(r.Key)
		if partition, ok := home[key]; ok && partition != r.Partition {
			return fmt.Errorf("%s is in partitions %d and %d", key, partition, r.Partition)
		}
		home[key] = r.Partition
		seen[key] = append(seen[key], string(r.Value))
	}
	for key, order := range seen {
		if err := same(key, order, []string{"0", "1", "2"}); err != nil {
			return err
		}
	}
	return nil
}

// join polls a member of a group in the background and sends what it reads.
func join(ctx context.Context, bootstrap, group, topic string, options ...kgo.Opt) (*kgo.Client, <-chan *kgo.Record, error) {
	c, err := client(bootstrap, append([]kgo.Opt{
		kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.AutoCommitInterval(100 * time.Millisecond), kgo.SessionTimeout(6 * time.Second), kgo.HeartbeatInterval(300 * time.Millisecond),
	}, options...)...)
	if err != nil {
		return nil, nil, err
	}
	out := make(chan *kgo.Record, 10_000)
	go func() {
		for {
			fetches := c.PollFetches(ctx)
			if fetches.IsClientClosed() || ctx.Err() != nil {
				return
			}
			for _, r := range fetches.Records() {
				out <- r
			}
		}
	}()
	return c, out, nil
}

func collect(ctx context.Context, want int, sources ...<-chan *kgo.Record) ([]*kgo.Record, error) {
	var got []*kgo.Record
	for len(got) < want {
		moved := false
		for _, source := range sources {
			select {
			case r := <-source:
				got = append(got, r)
				moved = true
			default:
			}
		}
		if !moved {
			select {
			case <-ctx.Done():
				return got, fmt.Errorf("only %d of %d records came", len(got), want)
			case <-time.After(5 * time.Millisecond):
			}
		}
	}
	return got, nil
}

func waitForMembers(ctx context.Context, adm *kadm.Client, group string, members, partitions int) error {
	for {
		groups, err := adm.DescribeGroups(ctx, group)
		if err == nil {
			g := groups[group]
			assigned, busy := 0, 0
			for _, m := range g.Members {
				if a, ok := m.Assigned.AsConsumer(); ok {
					count := 0
					for _, t := range a.Topics {
						count += len(t.Partitions)
					}
					assigned += count
					if count > 0 {
						busy++
					}
				}
			}
			if g.State == "Stable" && len(g.Members) == members && assigned == partitions && busy == members {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("group %s never had %d members with %d partitions", group, members, partitions)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func groupTakesOver(ctx context.Context, bootstrap string) error {
	return takeOver(ctx, bootstrap, false)
}

func takeOver(ctx context.Context, bootstrap string, next bool) error {
	topic, err := fresh(ctx, bootstrap, "group", 4, nil)
	if err != nil {
		return err
	}
	group := "g-" + topic
	options := []kgo.Opt{}
	if next {
		ctx = context.WithValue(ctx, "opt_in_kafka_next_gen_balancer_beta", true)
		options = append(options, kgo.WithContext(ctx))
	}
	first, one, err := join(ctx, bootstrap, group, topic, options...)
	if err != nil {
		return err
	}
	defer first.Close()
	second, two, err := join(ctx, bootstrap, group, topic, options...)
	if err != nil {
		return err
	}
	defer second.Close()
	adm := kadm.NewClient(first)
	if !next {
		if err := waitForMembers(ctx, adm, group, 2, 4); err != nil {
			return err
		}
	}
	if err := produce(ctx, bootstrap, topic, 200, kgo.RecordPartitioner(kgo.RoundRobinPartitioner())); err != nil {
		return err
	}
	if _, err := collect(ctx, 200, one, two); err != nil {
		return err
	}
	if err := second.CommitUncommittedOffsets(ctx); err != nil {
		return err
	}
	if err := first.CommitUncommittedOffsets(ctx); err != nil {
		return err
	}
	second.Close()
	if !next {
		if err := waitForMembers(ctx, adm, group, 1, 4); err != nil {
			return err
		}
	}
	if err := produce(ctx, bootstrap, topic, 100, kgo.RecordPartitioner(kgo.RoundRobinPartitioner())); err != nil {
		return err
	}
	got, err := collect(ctx, 100, one)
	if err != nil {
		return err
	}
	partitions := map[int32]bool{}
	for _, r := range got {
		partitions[r.Partition] = true
	}
	if len(partitions) != 4 {
		return fmt.Errorf("the member left reads %d of 4 partitions", len(partitions))
	}
	return nil
}

func nextGenerationGroup(ctx context.Context, bootstrap string) error {
	return takeOver(ctx, bootstrap, true)
}

func commitMetadata(ctx context.Context, bootstrap string) error {
	topic, err := fresh(ctx, bootstrap, "commit", 1, nil)
	if err != nil {
		return err
	}
	c, err := client(bootstrap)
	if err != nil {
		return err
	}
	defer c.Close()
	adm := kadm.NewClient(c)
	offsets := kadm.Offsets{}
	offsets.Add(kadm.Offset{Topic: topic, Partition: 0, At: 42, LeaderEpoch: 0, Metadata: "by hand"})
	committed, err := adm.CommitOffsets(ctx, "m-"+topic, offsets)
	if err != nil {
		return err
	}
	if err := committed.Error(); err != nil {
		return err
	}
	fetched, err := adm.FetchOffsets(ctx, "m-"+topic)
	if err != nil {
		return err
	}
	got, ok := fetched.Lookup(topic, 0)
	if !ok || got.At != 42 || got.Metadata != "by hand" {
		return fmt.Errorf("got %+v", got)
	}
	return nil
}

func offsetsForTimes(ctx context.Context, bootstrap string) error {
	topic, err := fresh(ctx, bootstrap, "times", 1, nil)
	if err != nil {
		return err
	}
	c, err := client(bootstrap)
	if err != nil {
		return err
	}
	defer c.Close()
	base := time.Now().Add(-time.Hour).Truncate(time.Second)
	for i := range 10 {
		r := record(topic, strconv.Itoa(i))
		r.Timestamp = base.Add(time.Duration(i) * time.Second)
		if err := c.ProduceSync(ctx, r).FirstErr(); err != nil {
			return err
		}
	}
	adm := kadm.NewClient(c)
	for ago, want := range map[time.Duration]int64{-time.Minute: 0, 4 * time.Second: 4, 4500 * time.Millisecond: 5, time.Hour: 10} {
		listed, err := adm.ListOffsetsAfterMilli(ctx, base.Add(ago).UnixMilli(), topic)
		if err != nil {
			return err
		}
		got, _ := listed.Lookup(topic, 0)
		if got.Err != nil || got.Offset != want {
			return fmt.Errorf("%s after the first record: offset %d (%v), want %d", ago, got.Offset, got.Err, want)
		}
	}
	return nil
}

func midBatchOffset(ctx context.Context, bootstrap string) error {
	topic, err := fresh(ctx, bootstrap, "middle", 1, nil)
	if err != nil {
		return err
	}
	if err := produce(ctx, bootstrap, topic, 100, kgo.ProducerLinger(50*time.Millisecond)); err != nil {
		return err
	}
	c, err := client(bootstrap, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().At(57)}}))
	if err != nil {
		return err
	}
	defer c.Close()
	records, err := read(ctx, c, 43)
	if err != nil {
		return err
	}
	return same("from 57", values(records), numbers(57, 100))
}

func offsetOutOfRange(ctx context.Context, bootstrap string) error {
	topic, err := fresh(ctx, bootstrap, "range", 1, nil)
	if err != nil {
		return err
	}
	if err := produce(ctx, bootstrap, topic, 5); err != nil {
		return err
	}
	c, err := client(bootstrap, kgo.ConsumeResetOffset(kgo.NoResetOffset()),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().At(999)}}))
	if err != nil {
		return err
	}
	defer c.Close()
	for {
		fetches := c.PollFetches(ctx)
		if err := fetches.Err(); errors.Is(err, kerr.OffsetOutOfRange) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

func messageTooLarge(ctx context.Context, bootstrap string) error {
	limit := "2000"
	topic, err := fresh(ctx, bootstrap, "large", 1, map[string]*string{"max.message.bytes": &limit})
	if err != nil {
		return err
	}
	c, err := client(bootstrap, kgo.ProducerBatchCompression(kgo.NoCompression()))
	if err != nil {
		return err
	}
	defer c.Close()
	err = c.ProduceSync(ctx, record(topic, strings.Repeat("x", 3000))).FirstErr()
	if !errors.Is(err, kerr.MessageTooLarge) {
		return fmt.Errorf("3,000 bytes with a limit of 2,000: %v", err)
	}
	return c.ProduceSync(ctx, record(topic, strings.Repeat("x", 1000))).FirstErr()
}

func transactionsReadCommitted(ctx context.Context, bootstrap string) error {
	topic, err := fresh(ctx, bootstrap, "txn", 2, nil)
	if err != nil {
		return err
	}
	c, err := client(bootstrap, kgo.TransactionalID("t-"+topic), kgo.RecordPartitioner(kgo.RoundRobinPartitioner()))
	if err != nil {
		return err
	}
	defer c.Close()
	for round, end := range []kgo.TransactionEndTry{kgo.TryCommit, kgo.TryAbort, kgo.TryCommit, kgo.TryAbort} {
		if err := c.BeginTransaction(); err != nil {
			return err
		}
		for i := range 10 {
			if err := c.ProduceSync(ctx, record(topic, strconv.Itoa(round*10+i))).FirstErr(); err != nil {
				return err
			}
		}
		if err := c.EndTransaction(ctx, end); err != nil {
			return fmt.Errorf("round %d: %w", round, err)
		}
	}
	committed, err := readTopic(ctx, bootstrap, topic, 20, kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	if err != nil {
		return err
	}
	got := values(committed)
	slices.SortFunc(got, func(a, b string) int {
		x, _ := strconv.Atoi(a)
		y, _ := strconv.Atoi(b)
		return x - y
	})
	if err := same("committed", got, append(numbers(0, 10), numbers(20, 30)...)); err != nil {
		return err
	}
	_, err = readTopic(ctx, bootstrap, topic, 40)
	return err
}

func copyExactlyOnce(ctx context.Context, bootstrap string) error {
	source, err := fresh(ctx, bootstrap, "eos-in", 1, nil)
	if err != nil {
		return err
	}
	target, err := fresh(ctx, bootstrap, "eos-out", 1, nil)
	if err != nil {
		return err
	}
	if err := produce(ctx, bootstrap, source, 50); err != nil {
		return err
	}
	session, err := kgo.NewGroupTransactSession(kgo.SeedBrokers(bootstrap), kgo.TransactionalID("copy-"+source),
		kgo.ConsumerGroup("copy-"+source), kgo.ConsumeTopics(source), kgo.RequireStableFetchOffsets(),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxPartitionBytes(512))
	if err != nil {
		return err
	}
	copied := 0
	for round := 0; copied < 50; round++ {
		fetches := session.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return err
		}
		if err := session.Begin(); err != nil {
			return err
		}
		records := fetches.Records()
		for _, r := range records {
			session.Produce(ctx, record(target, string(r.Value)), nil)
		}
		ok, err := session.End(ctx, kgo.TransactionEndTry(round != 0)) // the first round aborts and is read again
		if err != nil {
			return err
		}
		if ok {
			copied += len(records)
		}
	}
	session.Close()
	records, err := readTopic(ctx, bootstrap, target, 50, kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	if err != nil {
		return err
	}
	return same("copied", values(records), numbers(0, 50))
}

func admin(ctx context.Context, bootstrap string) error {
	topic, err := fresh(ctx, bootstrap, "admin", 3, nil)
	if err != nil {
		return err
	}
	c, err := client(bootstrap)
	if err != nil {
		return err
	}
	defer c.Close()
	adm := kadm.NewClient(c)
	again, err := adm.CreateTopic(ctx, 1, 1, nil, topic)
	if !errors.Is(err, kerr.TopicAlreadyExists) && !errors.Is(again.Err, kerr.TopicAlreadyExists) {
		return fmt.Errorf("creating it twice: %v %v", err, again.Err)
	}
	if _, err := adm.CreateTopic(ctx, 1, 9, nil, topic+"-r9"); !errors.Is(err, kerr.InvalidReplicationFactor) {
		return fmt.Errorf("three replicas on one broker: %v", err)
	}
	if _, err := adm.CreateTopic(ctx, 1, 1, nil, "no spaces"); !errors.Is(err, kerr.InvalidTopicException) {
		return fmt.Errorf("a bad name: %v", err)
	}
	value := "12345"
	altered, err := adm.AlterTopicConfigs(ctx, []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "retention.ms", Value: &value}}, topic)
	if err != nil {
		return err
	}
	if altered[0].Err != nil {
		return altered[0].Err
	}
	// Brokers learn of a change a moment after it was answered.
	for current := ""; current != value; {
		described, err := adm.DescribeTopicConfigs(ctx, topic)
		if err != nil {
			return fmt.Errorf("retention.ms is %s: %w", current, err)
		}
		for _, config := range described[0].Configs {
			if config.Key == "retention.ms" {
				current = config.MaybeValue()
			}
		}
	}
	if response, err := adm.UpdatePartitions(ctx, 5, topic); err != nil || response.Error() != nil {
		return fmt.Errorf("5 partitions: %v %v", err, response.Error())
	}
	if response, _ := adm.UpdatePartitions(ctx, 2, topic); response.Error() == nil {
		return errors.New("fewer partitions were not refused")
	}
	// Apache Kafka answers a moment before its metadata shows the new partitions.
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		topics, err := adm.ListTopics(ctx, topic)
		if err != nil {
			return err
		}
		got := len(topics[topic].Partitions)
		if got == 5 {
			break
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%d partitions, want 5", got)
		}
	}
	if response, err := adm.DeleteTopics(ctx, topic); err != nil || response.Error() != nil {
		return fmt.Errorf("deleting: %v %v", err, response.Error())
	}
	return nil
}

func deleteRecords(ctx context.Context, bootstrap string) error {
	topic, err := fresh(ctx, bootstrap, "delete", 1, nil)
	if err != nil {
		return err
	}
	if err := produce(ctx, bootstrap, topic, 100); err != nil {
		return err
	}
	c, err := client(bootstrap)
	if err != nil {
		return err
	}
	defer c.Close()
	adm := kadm.NewClient(c)
	offsets := kadm.Offsets{}
	offsets.Add(kadm.Offset{Topic: topic, Partition: 0, At: 60})
	deleted, err := adm.DeleteRecords(ctx, offsets)
	if err != nil {
		return err
	}
	if err := deleted.Error(); err != nil {
		return err
	}
	records, err := readTopic(ctx, bootstrap, topic, 40)
	if err != nil {
		return err
	}
	return same("left", values(records), numbers(60, 100))
}
