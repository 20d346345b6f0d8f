// kafka-go: a line of JSON in, a line of JSON out, as peer.py says.
package main

import (
	"context"
	"errors"
	"slices"
	"sort"
	"sync"
	"time"

	"peers/protocol"

	"github.com/segmentio/kafka-go"
)

type asked = protocol.Asked
type answer = protocol.Answer

var check = protocol.Check

func client(a asked) *kafka.Client {
	return &kafka.Client{Addr: kafka.TCP(a.Server), Timeout: protocol.Patience}
}

func row(m kafka.Message) []any {
	headers := [][]any{}
	for _, h := range m.Headers {
		headers = append(headers, []any{h.Key, h.Value})
	}
	return []any{m.Topic, m.Partition, m.Offset, m.Time.UnixMilli(), -1, m.Key, m.Value, headers}
}

// One reader per partition, until there are so many records, and those of two seconds longer: there must be none.
func read(a asked) answer {
	level := kafka.ReadUncommitted
	if a.Options["isolation.level"] == "read_committed" {
		level = kafka.ReadCommitted
	}
	ctx, cancel := context.WithCancel(context.Background())
	messages, failed := make(chan kafka.Message), make(chan error, 100)
	group := sync.WaitGroup{}
	for _, place := range a.PlaceList() {
		reader := kafka.NewReader(kafka.ReaderConfig{Brokers: []string{a.Server}, Topic: place.Topic,
			Partition: int(place.Partition), MinBytes: 1, MaxBytes: 10e6, MaxWait: 100 * time.Millisecond,
			IsolationLevel: level, ReadBackoffMin: 10 * time.Millisecond, ReadBackoffMax: 100 * time.Millisecond})
		if a.From != nil {
			check(reader.SetOffset(*a.From))
		}
		group.Add(1)
		go func() {
			defer group.Done()
			defer reader.Close()
			for {
				m, err := reader.ReadMessage(ctx)
				if err != nil {
					if ctx.Err() == nil {
						failed <- err
					}
					return
				}
				select {
				case messages <- m:
				case <-ctx.Done():
					return
				}
			}
		}()
	}
	rows := [][]any{}
	defer group.Wait()
	defer cancel()
	end := time.After(protocol.Patience)
	for {
		select {
		case m := <-messages:
			rows = append(rows, row(m))
			if len(rows) == a.Count {
				end = time.After(2 * time.Second)
			}
		case err := <-failed:
			check(err)
		case <-end:
			return answer{Records: rows}
		}
	}
}

// A member of a group reads until a number of records, seconds or the file `stop`, commits and leaves.
func join(a asked) answer {
	session := a.Milliseconds("session.timeout.ms", 30*time.Second)
	reader := kafka.NewReader(kafka.ReaderConfig{Brokers: []string{a.Server}, Topic: a.Topic,
		GroupID: a.Options["group.id"], MinBytes: 1, MaxBytes: 10e6, MaxWait: 100 * time.Millisecond,
		StartOffset: kafka.FirstOffset, SessionTimeout: session, HeartbeatInterval: time.Second})
	rows, last, until := [][]any{}, map[int]kafka.Message{}, a.Deadline()
	for len(rows) < a.Count && time.Now().Before(until) && !a.Stopped() {
		ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
		m, err := reader.FetchMessage(ctx)
		cancel()
		if errors.Is(err, context.DeadlineExceeded) {
			continue
		}
		check(err)
		rows = append(rows, row(m))
		last[m.Partition] = m
	}
	for _, m := range last {
		check(reader.CommitMessages(context.Background(), m))
	}
	check(reader.Close())
	return answer{Records: rows}
}

func offsets(a asked) answer {
	ctx, rows := context.Background(), [][]int64{}
	listed := func(place protocol.Place, request kafka.OffsetRequest) kafka.PartitionOffsets {
		topics := map[string][]kafka.OffsetRequest{place.Topic: {request}}
		answer, err := client(a).ListOffsets(ctx, &kafka.ListOffsetsRequest{Topics: topics})
		check(err)
		check(answer.Topics[place.Topic][0].Error)
		return answer.Topics[place.Topic][0]
	}
	for _, place := range a.PlaceList() {
		partition := int(place.Partition)
		row := []int64{listed(place, kafka.FirstOffsetOf(partition)).FirstOffset,
			listed(place, kafka.LastOffsetOf(partition)).LastOffset}
		for _, milliseconds := range a.Times {
			for offset := range listed(place, kafka.TimeOffsetOf(partition, time.UnixMilli(milliseconds))).Offsets {
				row = append(row, offset)
			}
		}
		rows = append(rows, row)
	}
	return answer{Offsets: rows}
}

func produce(a asked) answer {
	codecs := map[string]kafka.Compression{"gzip": kafka.Gzip, "snappy": kafka.Snappy, "lz4": kafka.Lz4, "zstd": kafka.Zstd}
	acks := map[string]kafka.RequiredAcks{"0": kafka.RequireNone, "1": kafka.RequireOne, "all": kafka.RequireAll}
	rows := a.RecordList()
	offsets, lock := make([]int64, len(rows)), sync.Mutex{}
	// The default transport caches the topics for six seconds.
	transport := &kafka.Transport{}
	defer transport.CloseIdleConnections()
	writer := &kafka.Writer{Addr: kafka.TCP(a.Server), Topic: a.Topic, Transport: transport,
		BatchTimeout: 10 * time.Millisecond, BatchSize: 1000, RequiredAcks: acks[a.Options["acks"]], Compression: codecs[a.Options["compression.type"]],
		Balancer: kafka.BalancerFunc(func(m kafka.Message, _ ...int) int { return int(rows[m.WriterData.(int)].Partition) }),
		Completion: func(messages []kafka.Message, err error) {
			lock.Lock()
			defer lock.Unlock()
			for _, m := range messages {
				offsets[m.WriterData.(int)] = m.Offset
			}
		}}
	messages := []kafka.Message{}
	for number, row := range rows {
		m := kafka.Message{Key: row.Key, Value: row.Value, Time: row.Time, WriterData: number}
		for _, h := range row.Headers {
			m.Headers = append(m.Headers, kafka.Header{Key: h.Key, Value: h.Value})
		}
		messages = append(messages, m)
	}
	check(writer.WriteMessages(context.Background(), messages...))
	check(writer.Close())
	return answer{Offsets: offsets}
}

// The first error, without the server's own words.
func first(all map[string]error) error {
	for _, err := range all {
		var code kafka.Error
		if errors.As(err, &code) {
			return code
		}
		return err
	}
	return nil
}

func admin(a asked) (done answer) {
	c, ctx := client(a), context.Background()
	create := func() (any, error) {
		topic := kafka.TopicConfig{Topic: a.Topic, NumPartitions: 2, ReplicationFactor: 1,
			ConfigEntries: []kafka.ConfigEntry{{ConfigName: "retention.ms", ConfigValue: "3600000"}}}
		answer, err := c.CreateTopics(ctx, &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{topic}})
		check(err)
		return nil, first(answer.Errors)
	}
	metadata := func() *kafka.MetadataResponse {
		answer, err := c.Metadata(ctx, &kafka.MetadataRequest{})
		check(err)
		return answer
	}
	find := func() int {
		return slices.IndexFunc(metadata().Topics, func(one kafka.Topic) bool { return one.Name == a.Topic })
	}
	retention := func() (any, error) {
		resource := kafka.DescribeConfigRequestResource{ResourceType: kafka.ResourceTypeTopic, ResourceName: a.Topic,
			ConfigNames: []string{"retention.ms"}}
		answer, err := c.DescribeConfigs(ctx, &kafka.DescribeConfigsRequest{
			Resources: []kafka.DescribeConfigRequestResource{resource}})
		check(err)
		return answer.Resources[0].ConfigEntries[0].ConfigValue, answer.Resources[0].Error
	}
	remove := func() (any, error) {
		answer, err := c.DeleteTopics(ctx, &kafka.DeleteTopicsRequest{Topics: []string{a.Topic}})
		check(err)
		return nil, first(answer.Errors)
	}
	done.Step("create topic", create)
	done.Step("create topic again", create)
	done.Step("list topics", func() (any, error) { return find() >= 0, nil })
	done.Step("describe topic", func() (any, error) { return len(metadata().Topics[find()].Partitions), nil })
	done.Step("describe configs", retention)
	done.Step("alter configs", func() (any, error) {
		change := kafka.IncrementalAlterConfigsRequestConfig{Name: "retention.ms", Value: "7200000",
			ConfigOperation: kafka.ConfigOperationSet}
		resource := kafka.IncrementalAlterConfigsRequestResource{ResourceType: kafka.ResourceTypeTopic,
			ResourceName: a.Topic, Configs: []kafka.IncrementalAlterConfigsRequestConfig{change}}
		answer, err := c.IncrementalAlterConfigs(ctx, &kafka.IncrementalAlterConfigsRequest{
			Resources: []kafka.IncrementalAlterConfigsRequestResource{resource}})
		check(err)
		return nil, answer.Resources[0].Error
	})
	done.Step("altered config", retention)
	done.Step("set all configs", func() (any, error) {
		change := kafka.AlterConfigRequestConfig{Name: "retention.ms", Value: "1800000"}
		resource := kafka.AlterConfigRequestResource{ResourceType: kafka.ResourceTypeTopic, ResourceName: a.Topic,
			Configs: []kafka.AlterConfigRequestConfig{change}}
		answer, err := c.AlterConfigs(ctx, &kafka.AlterConfigsRequest{
			Resources: []kafka.AlterConfigRequestResource{resource}})
		check(err)
		for _, err := range answer.Errors {
			return nil, err
		}
		return nil, nil
	})
	done.Step("configs that were set", retention)
	done.Step("create partitions", func() (any, error) {
		answer, err := c.CreatePartitions(ctx, &kafka.CreatePartitionsRequest{
			Topics: []kafka.TopicPartitionsConfig{{Name: a.Topic, Count: 4}}})
		check(err)
		return nil, first(answer.Errors)
	})
	done.Step("fetch", func() (any, error) {
		answer, err := c.Fetch(ctx, &kafka.FetchRequest{Topic: a.Filled, Partition: 0, Offset: 0, MinBytes: 1, MaxBytes: 1e6})
		check(err)
		return answer.HighWatermark, answer.Error
	})
	done.Step("list groups", func() (any, error) {
		answer, err := c.ListGroups(ctx, &kafka.ListGroupsRequest{})
		check(err)
		names := []string{}
		for _, group := range answer.Groups {
			names = append(names, group.GroupID)
		}
		sort.Strings(names)
		return slices.Contains(names, a.Group), answer.Error
	})
	done.Step("describe group", func() (any, error) {
		answer, err := c.DescribeGroups(ctx, &kafka.DescribeGroupsRequest{GroupIDs: []string{a.Group}})
		check(err)
		return answer.Groups[0].GroupState, answer.Groups[0].Error
	})
	done.Step("group offsets", func() (any, error) {
		answer, err := c.OffsetFetch(ctx, &kafka.OffsetFetchRequest{GroupID: a.Group, Topics: map[string][]int{a.Filled: {0}}})
		check(err)
		return answer.Topics[a.Filled][0].CommittedOffset, answer.Error
	})
	done.Step("delete group", func() (any, error) {
		answer, err := c.DeleteGroups(ctx, &kafka.DeleteGroupsRequest{GroupIDs: []string{a.Group}})
		check(err)
		return nil, first(answer.Errors)
	})
	done.Step("describe cluster", func() (any, error) { return len(metadata().Brokers), nil })
	done.Step("delete topic", remove)
	done.Step("delete topic again", remove)
	return done
}

func main() {
	protocol.Serve(map[string]func(asked) answer{
		"read": read, "join": join, "offsets": offsets, "produce": produce, "admin": admin})
}
