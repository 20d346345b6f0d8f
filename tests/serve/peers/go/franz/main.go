// franz-go: a line of JSON in, a line of JSON out, as peer.py says.
package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"peers/protocol"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

type asked = protocol.Asked
type answer = protocol.Answer

var check = protocol.Check

func connected(a asked, options ...kgo.Opt) *kgo.Client {
	if a.Options["isolation.level"] == "read_committed" {
		options = append(options, kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	}
	options = append(options, kgo.SeedBrokers(a.Server), kgo.FetchMaxWait(100*time.Millisecond))
	client, err := kgo.NewClient(options...)
	check(err)
	return client
}

// Records as they come until there are so many, or the time is over, and those of a moment longer: there must be none.
func poll(a asked, client *kgo.Client, until time.Time) [][]any {
	rows := [][]any{}
	for last := false; !last; {
		last = len(rows) >= a.Count || a.Stopped()
		limited, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
		fetches := client.PollFetches(limited)
		cancel()
		for _, failed := range fetches.Errors() {
			if failed.Err != context.DeadlineExceeded {
				check(fmt.Errorf("%s-%d: %w", failed.Topic, failed.Partition, failed.Err))
			}
		}
		fetches.EachRecord(func(r *kgo.Record) {
			headers := [][]any{}
			for _, h := range r.Headers {
				headers = append(headers, []any{h.Key, h.Value})
			}
			time, kind := r.Timestamp.UnixMilli(), r.Attrs.TimestampType()
			rows = append(rows, []any{r.Topic, r.Partition, r.Offset, time, kind, r.Key, r.Value, headers})
		})
		last = last || time.Now().After(until)
	}
	return rows
}

func read(a asked) answer {
	parts := map[string]map[int32]kgo.Offset{}
	for _, place := range a.PlaceList() {
		if parts[place.Topic] == nil {
			parts[place.Topic] = map[int32]kgo.Offset{}
		}
		parts[place.Topic][place.Partition] = kgo.NewOffset().AtStart()
		if a.From != nil {
			parts[place.Topic][place.Partition] = kgo.NewOffset().At(*a.From)
		}
	}
	client := connected(a, kgo.ConsumePartitions(parts), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	defer client.Close()
	return answer{Records: poll(a, client, time.Now().Add(protocol.Patience))}
}

// A member of a group reads until a number of records, seconds or the file `stop`, commits and leaves.
func join(a asked) answer {
	options := []kgo.Opt{kgo.ConsumerGroup(a.Options["group.id"]), kgo.ConsumeTopics(a.Topic), kgo.DisableAutoCommit(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.HeartbeatInterval(time.Second),
		kgo.SessionTimeout(a.Milliseconds("session.timeout.ms", 45*time.Second))}
	if a.Options["partition.assignment.strategy"] == "range" {
		options = append(options, kgo.Balancers(kgo.RangeBalancer()))
	}
	if a.Options["group.protocol"] == "consumer" {
		options = append(options, kgo.Balancers(kgo.StickyBalancer()), kgo.ServerSideBalancer())
	}
	if id := a.Options["group.instance.id"]; id != "" {
		options = append(options, kgo.InstanceID(id))
	}
	client := connected(a, options...)
	defer client.Close()
	rows := poll(a, client, a.Deadline())
	check(client.CommitUncommittedOffsets(context.Background()))
	return answer{Records: rows}
}

func offsets(a asked) answer {
	client := connected(a)
	defer client.Close()
	admin, ctx, rows := kadm.NewClient(client), context.Background(), [][]int64{}
	found := func(place protocol.Place, listed kadm.ListedOffsets, err error) int64 {
		check(err)
		offset, _ := listed.Lookup(place.Topic, place.Partition)
		check(offset.Err)
		return offset.Offset
	}
	for _, place := range a.PlaceList() {
		first, err := admin.ListStartOffsets(ctx, place.Topic)
		row := []int64{found(place, first, err)}
		last, err := admin.ListEndOffsets(ctx, place.Topic)
		row = append(row, found(place, last, err))
		for _, milliseconds := range a.Times {
			hit, err := admin.ListOffsetsAfterMilli(ctx, milliseconds, place.Topic)
			row = append(row, found(place, hit, err))
		}
		rows = append(rows, row)
	}
	return answer{Offsets: rows}
}

func produce(a asked) answer {
	codecs := map[string]kgo.CompressionCodec{"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(),
		"snappy": kgo.SnappyCompression(), "lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression()}
	options := []kgo.Opt{kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchCompression(codecs[a.Options["compression.type"]])}
	if a.Options["enable.idempotence"] == "false" {
		options = append(options, kgo.DisableIdempotentWrite())
	}
	switch a.Options["acks"] {
	case "0":
		options = append(options, kgo.RequiredAcks(kgo.NoAck()))
	case "1":
		options = append(options, kgo.RequiredAcks(kgo.LeaderAck()))
	}
	client := connected(a, options...)
	defer client.Close()
	records := []*kgo.Record{}
	for _, row := range a.RecordList() {
		r := &kgo.Record{Topic: a.Topic, Partition: row.Partition, Key: row.Key, Value: row.Value, Timestamp: row.Time}
		for _, h := range row.Headers {
			r.Headers = append(r.Headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
		}
		records = append(records, r)
	}
	offsets := []int64{}
	check(client.ProduceSync(context.Background(), records...).FirstErr())
	for _, record := range records {
		offsets = append(offsets, record.Offset)
	}
	return answer{Offsets: offsets}
}

// Transactions of one producer. The client sends offsets of a group only for its own member.
func transact(a asked) answer {
	ctx := context.Background()
	client := connected(a, kgo.TransactionalID(a.Options["transactional.id"]),
		kgo.RecordPartitioner(kgo.ManualPartitioner()))
	defer client.Close()
	for _, transaction := range a.Transactions {
		check(client.BeginTransaction())
		for _, value := range transaction.Values {
			check(client.ProduceSync(ctx, &kgo.Record{Topic: a.Topic, Value: value}).FirstErr())
		}
		check(client.Flush(ctx))
		check(client.EndTransaction(ctx, kgo.TransactionEndTry(transaction.Commit)))
	}
	return answer{}
}

func admin(a asked) (done answer) {
	client := connected(a)
	defer client.Close()
	admin, ctx := kadm.NewClient(client), context.Background()
	value := "3600000"
	create := func() (any, error) {
		_, err := admin.CreateTopic(ctx, 2, 1, map[string]*string{"retention.ms": &value}, a.Topic)
		return nil, err
	}
	retention := func() (any, error) {
		configs, err := admin.DescribeTopicConfigs(ctx, a.Topic)
		check(err)
		at := slices.IndexFunc(configs[0].Configs, func(one kadm.Config) bool { return one.Key == "retention.ms" })
		return configs[0].Configs[at].MaybeValue(), configs[0].Err
	}
	remove := func() (any, error) { _, err := admin.DeleteTopic(ctx, a.Topic); return nil, err }
	done.Step("create topic", create)
	done.Step("create topic again", create)
	done.Step("list topics", func() (any, error) { all, err := admin.ListTopics(ctx); return all.Has(a.Topic), err })
	done.Step("describe topic", func() (any, error) {
		all, err := admin.ListTopics(ctx, a.Topic)
		return len(all[a.Topic].Partitions), err
	})
	done.Step("describe configs", retention)
	done.Step("alter configs", func() (any, error) {
		value = "7200000"
		change := kadm.AlterConfig{Op: kadm.SetConfig, Name: "retention.ms", Value: &value}
		_, err := admin.AlterTopicConfigs(ctx, []kadm.AlterConfig{change}, a.Topic)
		return nil, err
	})
	done.Step("altered config", retention)
	done.Step("create partitions", func() (any, error) {
		made, err := admin.UpdatePartitions(ctx, 4, a.Topic)
		check(err)
		return nil, made.Error()
	})
	done.Step("delete records", func() (any, error) {
		to := kadm.Offsets{}
		to.AddOffset(a.Filled, 0, 3, -1)
		deleted, err := admin.DeleteRecords(ctx, to)
		check(err)
		one, _ := deleted.Lookup(a.Filled, 0)
		return one.LowWatermark, one.Err
	})
	done.Step("list offsets", func() (any, error) {
		listed, err := admin.ListEndOffsets(ctx, a.Filled)
		one, _ := listed.Lookup(a.Filled, 0)
		return one.Offset, err
	})
	done.Step("list groups", func() (any, error) {
		groups, err := admin.ListGroups(ctx)
		return slices.Contains(groups.Groups(), a.Group), err
	})
	done.Step("describe group", func() (any, error) {
		groups, err := admin.DescribeGroups(ctx, a.Group)
		return groups[a.Group].State, err
	})
	done.Step("group offsets", func() (any, error) {
		offsets, err := admin.FetchOffsets(ctx, a.Group)
		one, _ := offsets.Lookup(a.Filled, 0)
		return one.At, err
	})
	done.Step("delete group", func() (any, error) { _, err := admin.DeleteGroup(ctx, a.Group); return nil, err })
	done.Step("describe cluster", func() (any, error) {
		brokers, err := admin.ListBrokers(ctx)
		return len(brokers), err
	})
	done.Step("delete topic", remove)
	done.Step("delete topic again", remove)
	return done
}

func main() {
	protocol.Serve(map[string]func(asked) answer{
		"read": read, "join": join, "offsets": offsets, "produce": produce, "transact": transact, "admin": admin})
}
