// Package protocol reads requests and writes answers as lines of JSON, as peer.py says.
package protocol

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"
)

const Patience = 30 * time.Second

type Asked struct {
	Do, Server, Topic, Group, Filled, Stop string
	Options                                map[string]string
	Places                                 [][]any
	Records                                [][]json.RawMessage
	Transactions                           []Transaction
	Times                                  []int64
	From                                   *int64
	Count, Seconds                         int
}

type Transaction struct {
	Values [][]byte
	Commit bool
	Offset int64
}

type Answer struct {
	Records [][]any        `json:"records,omitempty"`
	Offsets any            `json:"offsets,omitempty"`
	Steps   map[string]any `json:"steps,omitempty"`
	Error   string         `json:"error,omitempty"`
}

type Place struct {
	Topic     string
	Partition int32
}

type Header struct {
	Key   string
	Value []byte
}

type Record struct {
	Partition  int32
	Time       time.Time
	Key, Value []byte
	Headers    []Header
}

func Check(err error) {
	if err != nil {
		panic(err)
	}
}

func (a Asked) PlaceList() []Place {
	places := []Place{}
	for _, place := range a.Places {
		places = append(places, Place{place[0].(string), int32(place[1].(float64))})
	}
	return places
}

func (a Asked) RecordList() []Record {
	records := []Record{}
	for _, row := range a.Records {
		var milliseconds int64
		var headers [][]json.RawMessage
		r := Record{}
		Check(json.Unmarshal(row[0], &r.Partition))
		Check(json.Unmarshal(row[1], &milliseconds))
		Check(json.Unmarshal(row[2], &r.Key))
		Check(json.Unmarshal(row[3], &r.Value))
		Check(json.Unmarshal(row[4], &headers))
		r.Time = time.UnixMilli(milliseconds)
		for _, pair := range headers {
			h := Header{}
			Check(json.Unmarshal(pair[0], &h.Key))
			Check(json.Unmarshal(pair[1], &h.Value))
			r.Headers = append(r.Headers, h)
		}
		records = append(records, r)
	}
	return records
}

// Deadline is the time until which a member of a group reads.
func (a Asked) Deadline() time.Time {
	if a.Seconds > 0 {
		return time.Now().Add(time.Duration(a.Seconds) * time.Second)
	}
	return time.Now().Add(Patience)
}

// Stopped says whether the file that ends a member exists.
func (a Asked) Stopped() bool {
	_, err := os.Stat(a.Stop)
	return a.Stop != "" && err == nil
}

// Milliseconds of an option, or a default.
func (a Asked) Milliseconds(name string, other time.Duration) time.Duration {
	var number int64
	if _, err := fmt.Sscan(a.Options[name], &number); err != nil {
		return other
	}
	return time.Duration(number) * time.Millisecond
}

// Step keeps the result of a step of an admin client, or its error. A broker applies changes after its response.
func (a *Answer) Step(name string, step func() (any, error)) {
	if a.Steps == nil {
		a.Steps = map[string]any{}
	}
	time.Sleep(300 * time.Millisecond)
	result, err := step()
	if err != nil {
		// Behind this sign, Sarama has the server's own words.
		result = map[string]string{"error": strings.SplitN(err.Error(), " - ", 2)[0]}
	}
	a.Steps[name] = result
}

func answered(a Asked, functions map[string]func(Asked) Answer) (done Answer) {
	defer func() {
		if err := recover(); err != nil {
			done = Answer{Error: fmt.Sprint(err)}
		}
	}()
	function := functions[a.Do]
	if function == nil {
		return Answer{Error: "this client cannot " + a.Do}
	}
	return function(a)
}

// Serve answers requests until the input ends.
func Serve(functions map[string]func(Asked) Answer) {
	lines := bufio.NewReader(os.Stdin)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var a Asked
		Check(json.Unmarshal(line, &a))
		text, err := json.Marshal(answered(a, functions))
		Check(err)
		fmt.Println(string(text))
	}
}
