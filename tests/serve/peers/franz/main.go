// franz-go: a line of JSON in, a line of JSON out, as peer.py says.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const patience = 30 * time.Second

type asked struct {
	Do, Server, Topic string
	Options           map[string]string
	Places            [][]any
	Records           [][]json.RawMessage
	Count, Seconds    int
}

type answer struct {
	Records [][]any `json:"records,omitempty"`
	Offsets []int64 `json:"offsets,omitempty"`
	Error   string  `json:"error,omitempty"`
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

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
func poll(client *kgo.Client, count int, patience time.Duration) [][]any {
	rows := [][]any{}
	until := time.Now().Add(patience)
	for last := false; !last; {
		wait := time.Until(until)
		if last = len(rows) >= count; last {
			wait = 500 * time.Millisecond
		}
		limited, cancel := context.WithTimeout(context.Background(), wait)
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
	for _, place := range a.Places {
		topic := place[0].(string)
		if parts[topic] == nil {
			parts[topic] = map[int32]kgo.Offset{}
		}
		parts[topic][int32(place[1].(float64))] = kgo.NewOffset().AtStart()
	}
	client := connected(a, kgo.ConsumePartitions(parts))
	defer client.Close()
	return answer{Records: poll(client, a.Count, patience)}
}

// A member of a group reads until it has so many records, or for so many seconds, commits and leaves.
func join(a asked) answer {
	options := []kgo.Opt{kgo.ConsumerGroup(a.Options["group.id"]), kgo.ConsumeTopics(a.Topic), kgo.DisableAutoCommit(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart())}
	if a.Options["partition.assignment.strategy"] == "range" {
		options = append(options, kgo.Balancers(kgo.RangeBalancer()))
	}
	client := connected(a, options...)
	defer client.Close()
	seconds := patience
	if a.Seconds > 0 {
		seconds = time.Duration(a.Seconds) * time.Second
	}
	rows := poll(client, a.Count, seconds)
	check(client.CommitUncommittedOffsets(context.Background()))
	return answer{Records: rows}
}

func produce(a asked) answer {
	codecs := map[string]kgo.CompressionCodec{"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(),
		"snappy": kgo.SnappyCompression(), "lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression()}
	client := connected(a, kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchCompression(codecs[a.Options["compression.type"]]))
	defer client.Close()
	records := []*kgo.Record{}
	for _, row := range a.Records {
		var milliseconds int64
		var headers [][]json.RawMessage
		r := &kgo.Record{Topic: a.Topic}
		check(json.Unmarshal(row[0], &r.Partition))
		check(json.Unmarshal(row[1], &milliseconds))
		check(json.Unmarshal(row[2], &r.Key))
		check(json.Unmarshal(row[3], &r.Value))
		check(json.Unmarshal(row[4], &headers))
		r.Timestamp = time.UnixMilli(milliseconds)
		for _, pair := range headers {
			h := kgo.RecordHeader{}
			check(json.Unmarshal(pair[0], &h.Key))
			check(json.Unmarshal(pair[1], &h.Value))
			r.Headers = append(r.Headers, h)
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

func answered(a asked) (done answer) {
	defer func() {
		if err := recover(); err != nil {
			done = answer{Error: fmt.Sprint(err)}
		}
	}()
	return map[string]func(asked) answer{"read": read, "join": join, "produce": produce}[a.Do](a)
}

func main() {
	lines := bufio.NewReader(os.Stdin)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var a asked
		check(json.Unmarshal(line, &a))
		text, err := json.Marshal(answered(a))
		check(err)
		fmt.Println(string(text))
	}
}
