// Sarama: a line of JSON in, a line of JSON out, as peer.py says.
package main

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"peers/protocol"

	"github.com/IBM/sarama"
)

type asked = protocol.Asked
type answer = protocol.Answer

var check = protocol.Check

func settings(a asked) *sarama.Config {
	c := sarama.NewConfig()
	c.Version = sarama.V3_6_0_0
	c.Consumer.MaxWaitTime = 100 * time.Millisecond
	c.Consumer.Return.Errors = true
	c.Consumer.Offsets.Initial = sarama.OffsetOldest
	c.Consumer.Group.InstanceId = a.Options["group.instance.id"]
	c.Consumer.Group.Session.Timeout = a.Milliseconds("session.timeout.ms", 10*time.Second)
	c.Consumer.Group.Heartbeat.Interval = time.Second
	if a.Options["isolation.level"] == "read_committed" {
		c.Consumer.IsolationLevel = sarama.ReadCommitted
	}
	codecs := map[string]sarama.CompressionCodec{"gzip": sarama.CompressionGZIP, "snappy": sarama.CompressionSnappy,
		"lz4": sarama.CompressionLZ4, "zstd": sarama.CompressionZSTD}
	acks := map[string]sarama.RequiredAcks{"0": sarama.NoResponse, "1": sarama.WaitForLocal}
	c.Producer.Compression = codecs[a.Options["compression.type"]]
	c.Producer.RequiredAcks = sarama.WaitForAll
	if one, ok := acks[a.Options["acks"]]; ok {
		c.Producer.RequiredAcks = one
	}
	c.Producer.Partitioner = sarama.NewManualPartitioner
	c.Producer.Return.Successes = true
	c.Producer.Transaction.ID = a.Options["transactional.id"]
	if a.Options["enable.idempotence"] == "true" || c.Producer.Transaction.ID != "" {
		c.Producer.Idempotent = true
		c.Net.MaxOpenRequests = 1
	}
	return c
}

func row(m *sarama.ConsumerMessage) []any {
	headers := [][]any{}
	for _, h := range m.Headers {
		headers = append(headers, []any{string(h.Key), h.Value})
	}
	return []any{m.Topic, m.Partition, m.Offset, m.Timestamp.UnixMilli(), -1, m.Key, m.Value, headers}
}

// Read until there are so many records, and those of a moment longer: there must be none.
func read(a asked) answer {
	consumer, err := sarama.NewConsumer([]string{a.Server}, settings(a))
	check(err)
	defer consumer.Close()
	messages, failed := make(chan *sarama.ConsumerMessage), make(chan error, 100)
	from := sarama.OffsetOldest
	if a.From != nil {
		from = *a.From
	}
	for _, place := range a.PlaceList() {
		one, err := consumer.ConsumePartition(place.Topic, place.Partition, from)
		check(err)
		go func() {
			for m := range one.Messages() {
				messages <- m
			}
		}()
		go func() {
			for err := range one.Errors() {
				failed <- err.Err
			}
		}()
		defer one.AsyncClose()
	}
	rows := [][]any{}
	for {
		wait := protocol.Patience
		if len(rows) >= a.Count {
			wait = 500 * time.Millisecond
		}
		select {
		case m := <-messages:
			rows = append(rows, row(m))
		case err := <-failed:
			check(err)
		case <-time.After(wait):
			return answer{Records: rows}
		}
	}
}

type member struct {
	lock sync.Mutex
	rows [][]any
	most int
}

func (m *member) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (m *member) Cleanup(sarama.ConsumerGroupSession) error { return nil }
func (m *member) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case message, ok := <-claim.Messages():
			if !ok {
				return nil
			}
			m.lock.Lock()
			if len(m.rows) < m.most {
				m.rows = append(m.rows, row(message))
				session.MarkMessage(message, "")
			}
			m.lock.Unlock()
		case <-session.Context().Done():
			return nil
		}
	}
}

func (m *member) count() int {
	m.lock.Lock()
	defer m.lock.Unlock()
	return len(m.rows)
}

// A member of a group reads until a number of records, seconds or the file `stop`, commits and leaves.
func join(a asked) answer {
	group, err := sarama.NewConsumerGroup([]string{a.Server}, a.Options["group.id"], settings(a))
	check(err)
	ctx, cancel := context.WithCancel(context.Background())
	handler, done := &member{most: a.Count}, make(chan error)
	go func() {
		for err := range group.Errors() {
			fmt.Fprintln(os.Stderr, "group:", err)
		}
	}()
	go func() {
		for ctx.Err() == nil {
			if err := group.Consume(ctx, []string{a.Topic}, handler); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	until := a.Deadline()
	for handler.count() < a.Count && time.Now().Before(until) && !a.Stopped() {
		select {
		case err := <-done:
			check(err)
		case <-time.After(50 * time.Millisecond):
		}
	}
	cancel()
	check(<-done)
	check(group.Close())
	return answer{Records: handler.rows}
}

func offsets(a asked) answer {
	client, err := sarama.NewClient([]string{a.Server}, settings(a))
	check(err)
	defer client.Close()
	rows := [][]int64{}
	for _, place := range a.PlaceList() {
		row := []int64{}
		for _, time := range append([]int64{sarama.OffsetOldest, sarama.OffsetNewest}, a.Times...) {
			offset, err := client.GetOffset(place.Topic, place.Partition, time)
			check(err)
			row = append(row, offset)
		}
		rows = append(rows, row)
	}
	return answer{Offsets: rows}
}

func bytes(value []byte) sarama.Encoder {
	if value == nil {
		return nil
	}
	return sarama.ByteEncoder(value)
}

func produce(a asked) answer {
	producer, err := sarama.NewSyncProducer([]string{a.Server}, settings(a))
	check(err)
	defer producer.Close()
	messages := []*sarama.ProducerMessage{}
	for _, row := range a.RecordList() {
		m := &sarama.ProducerMessage{Topic: a.Topic, Partition: row.Partition, Key: bytes(row.Key),
			Value: bytes(row.Value), Timestamp: row.Time}
		for _, h := range row.Headers {
			m.Headers = append(m.Headers, sarama.RecordHeader{Key: []byte(h.Key), Value: h.Value})
		}
		messages = append(messages, m)
	}
	if err := producer.SendMessages(messages); err != nil {
		if all, ok := err.(sarama.ProducerErrors); ok {
			err = all[0].Err
		}
		check(err)
	}
	offsets := []int64{}
	for _, m := range messages {
		offsets = append(offsets, m.Offset)
	}
	return answer{Offsets: offsets}
}

func transact(a asked) answer {
	producer, err := sarama.NewSyncProducer([]string{a.Server}, settings(a))
	check(err)
	defer producer.Close()
	for _, transaction := range a.Transactions {
		check(producer.BeginTxn())
		for _, value := range transaction.Values {
			_, _, err := producer.SendMessage(&sarama.ProducerMessage{Topic: a.Topic, Value: bytes(value)})
			check(err)
		}
		if a.Group != "" {
			offset := &sarama.PartitionOffsetMetadata{Partition: 0, Offset: transaction.Offset}
			positions := map[string][]*sarama.PartitionOffsetMetadata{a.Topic: {offset}}
			check(producer.AddOffsetsToTxn(positions, a.Group))
		}
		if transaction.Commit {
			check(producer.CommitTxn())
		} else {
			check(producer.AbortTxn())
		}
	}
	return answer{}
}

func admin(a asked) (done answer) {
	admin, err := sarama.NewClusterAdmin([]string{a.Server}, settings(a))
	check(err)
	defer admin.Close()
	client, err := sarama.NewClient([]string{a.Server}, settings(a))
	check(err)
	defer client.Close()
	value := "3600000"
	create := func() (any, error) {
		detail := &sarama.TopicDetail{NumPartitions: 2, ReplicationFactor: 1,
			ConfigEntries: map[string]*string{"retention.ms": &value}}
		return nil, admin.CreateTopic(a.Topic, detail, false)
	}
	retention := func() (any, error) {
		resource := sarama.ConfigResource{Type: sarama.TopicResource, Name: a.Topic, ConfigNames: []string{"retention.ms"}}
		entries, err := admin.DescribeConfig(resource)
		check(err)
		return entries[0].Value, nil
	}
	remove := func() (any, error) { return nil, admin.DeleteTopic(a.Topic) }
	done.Step("create topic", create)
	done.Step("create topic again", create)
	done.Step("list topics", func() (any, error) {
		topics, err := admin.ListTopics()
		return topics[a.Topic].NumPartitions, err
	})
	done.Step("describe topic", func() (any, error) {
		topics, err := admin.DescribeTopics([]string{a.Topic})
		check(err)
		return len(topics[0].Partitions), nil
	})
	done.Step("describe configs", retention)
	value = "7200000"
	done.Step("alter configs", func() (any, error) {
		entry := sarama.IncrementalAlterConfigsEntry{Operation: sarama.IncrementalAlterConfigsOperationSet, Value: &value}
		changes := map[string]sarama.IncrementalAlterConfigsEntry{"retention.ms": entry}
		return nil, admin.IncrementalAlterConfig(sarama.TopicResource, a.Topic, changes, false)
	})
	done.Step("altered config", retention)
	value = "1800000"
	done.Step("set all configs", func() (any, error) {
		return nil, admin.AlterConfig(sarama.TopicResource, a.Topic, map[string]*string{"retention.ms": &value}, false)
	})
	done.Step("configs that were set", retention)
	done.Step("create partitions", func() (any, error) { return nil, admin.CreatePartitions(a.Topic, 4, nil, false) })
	done.Step("delete records", func() (any, error) {
		return nil, admin.DeleteRecords(a.Filled, map[int32]int64{0: 3})
	})
	done.Step("list offsets", func() (any, error) { return client.GetOffset(a.Filled, 0, sarama.OffsetOldest) })
	done.Step("list groups", func() (any, error) { groups, err := admin.ListConsumerGroups(); return groups[a.Group], err })
	done.Step("describe group", func() (any, error) {
		groups, err := admin.DescribeConsumerGroups([]string{a.Group})
		check(err)
		return groups[0].State, nil
	})
	done.Step("group offsets", func() (any, error) {
		offsets, err := admin.ListConsumerGroupOffsets(a.Group, map[string][]int32{a.Filled: {0}})
		check(err)
		return offsets.GetBlock(a.Filled, 0).Offset, nil
	})
	done.Step("delete group", func() (any, error) { return nil, admin.DeleteConsumerGroup(a.Group) })
	done.Step("describe cluster", func() (any, error) {
		brokers, _, err := admin.DescribeCluster()
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
