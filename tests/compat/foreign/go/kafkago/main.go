// kafka-go against a broker: `kafkago features BOOTSTRAP REPLICAS PREFIX` or `kafkago load BOOTSTRAP TOPIC`.
// It has no idempotent producer: what it sends again after a lost answer may be there twice.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	. "foreign/checks"

	"github.com/segmentio/kafka-go"
)

var (
	ctx       = context.Background()
	bootstrap []string
)

func send(topic string, writer *kafka.Writer) {
	writer.Addr, writer.Topic, writer.BatchTimeout = kafka.TCP(bootstrap...), topic, 5*time.Millisecond
	writer.BatchSize, writer.BatchBytes = 300, 1_040_000
	defer writer.Close()
	var batch []kafka.Message
	for i, r := range Records() {
		message := kafka.Message{Key: r.Key, Value: r.Value, Time: time.UnixMilli(1_700_000_000_000 + int64(i))}
		if r.HeaderKey != "" {
			message.Headers = []kafka.Header{{Key: r.HeaderKey, Value: r.HeaderValue}}
		}
		batch = append(batch, message)
	}
	Must(writer.WriteMessages(ctx, batch...))
}

func reader(change kafka.ReaderConfig) *kafka.Reader {
	change.Brokers, change.MaxWait, change.MaxBytes = bootstrap, 200*time.Millisecond, 10_000_000
	change.StartOffset = kafka.FirstOffset
	return kafka.NewReader(change)
}

func read(r *kafka.Reader, count int) (got []Record, last int64) {
	limited, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	for len(got) < count {
		m := Get(r.ReadMessage(limited))
		record := Record{Key: m.Key, Value: m.Value}
		if len(m.Headers) > 0 {
			record.HeaderKey, record.HeaderValue = m.Headers[0].Key, m.Headers[0].Value
		}
		got, last = append(got, record), m.Offset
	}
	return got, last
}

// loose: this client reads what is empty as null.
func loose(records []Record) []Record {
	for i := range records {
		if len(records[i].Key) == 0 {
			records[i].Key = nil
		}
		if len(records[i].Value) == 0 {
			records[i].Value = nil
		}
	}
	return records
}

func features(replicas int, prefix string) {
	admin := &kafka.Client{Addr: kafka.TCP(bootstrap...), Timeout: 20 * time.Second}
	main := prefix + "-main"
	create := func(name string, partitions, factor int, entries ...kafka.ConfigEntry) string {
		spec := kafka.TopicConfig{Topic: prefix + "-" + name, NumPartitions: partitions, ReplicationFactor: factor, ConfigEntries: entries}
		Must(Get(admin.CreateTopics(ctx, &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{spec}})).Errors[spec.Topic])
		Until(spec.Topic+" is led", func() bool {
			found := Get(admin.Metadata(ctx, &kafka.MetadataRequest{Topics: []string{spec.Topic}})).Topics[0]
			return found.Error == nil && len(found.Partitions) == partitions
		})
		return spec.Topic
	}
	Check("create topic", func() { create("main", 3, replicas, kafka.ConfigEntry{ConfigName: "retention.ms", ConfigValue: "-1"}) })
	Check("describe cluster", func() {
		found := Get(admin.Metadata(ctx, &kafka.MetadataRequest{}))
		Same(len(found.Brokers), replicas)
		if found.ClusterID == "" || found.Controller.Port == 0 {
			Fail("%v", found)
		}
		Must(Get(admin.ApiVersions(ctx, &kafka.ApiVersionsRequest{})).Error)
	})
	Check("configs", func() {
		get := func() string {
			ask := kafka.DescribeConfigRequestResource{ResourceType: kafka.ResourceTypeTopic, ResourceName: main, ConfigNames: []string{"max.message.bytes"}}
			return Get(admin.DescribeConfigs(ctx, &kafka.DescribeConfigsRequest{Resources: []kafka.DescribeConfigRequestResource{ask}})).Resources[0].ConfigEntries[0].ConfigValue
		}
		set := kafka.IncrementalAlterConfigsRequestResource{ResourceType: kafka.ResourceTypeTopic, ResourceName: main,
			Configs: []kafka.IncrementalAlterConfigsRequestConfig{{Name: "max.message.bytes", Value: "2000000", ConfigOperation: kafka.ConfigOperationSet}}}
		Must(Get(admin.IncrementalAlterConfigs(ctx, &kafka.IncrementalAlterConfigsRequest{Resources: []kafka.IncrementalAlterConfigsRequestResource{set}})).Resources[0].Error)
		Until("the new value", func() bool { return get() == "2000000" })
		old := kafka.AlterConfigRequestResource{ResourceType: kafka.ResourceTypeTopic, ResourceName: main, Configs: []kafka.AlterConfigRequestConfig{{Name: "max.message.bytes", Value: "3000000"}}}
		for _, err := range Get(admin.AlterConfigs(ctx, &kafka.AlterConfigsRequest{Resources: []kafka.AlterConfigRequestResource{old}})).Errors {
			Must(err)
		}
		Until("the newer value", func() bool { return get() == "3000000" })
	})
	Check("create partitions", func() {
		name := create("grown", 1, replicas)
		Must(Get(admin.CreatePartitions(ctx, &kafka.CreatePartitionsRequest{Topics: []kafka.TopicPartitionsConfig{{Name: name, Count: 3}}})).Errors[name])
	})
	for codec, label := range []string{"none", "gzip", "snappy", "lz4", "zstd"} {
		Check("records "+label, func() {
			name := create("codec-"+label, 1, replicas)
			send(name, &kafka.Writer{Compression: kafka.Compression(codec), RequiredAcks: kafka.RequireAll})
			r := reader(kafka.ReaderConfig{Topic: name})
			defer r.Close()
			got, _ := read(r, len(Records()))
			Compare(loose(Records()), got)
		})
	}
	for acks, label := range map[kafka.RequiredAcks]string{kafka.RequireNone: "acks 0", kafka.RequireOne: "acks 1"} {
		Check(label, func() {
			name := create(strings.ReplaceAll(label, " ", "-"), 1, replicas)
			send(name, &kafka.Writer{RequiredAcks: acks})
			r := reader(kafka.ReaderConfig{Topic: name})
			defer r.Close()
			got, _ := read(r, len(Records()))
			Compare(loose(Records()), got)
		})
	}
	Check("offsets by time", func() {
		name := create("times", 1, replicas)
		send(name, &kafka.Writer{RequiredAcks: kafka.RequireAll})
		ask := []kafka.OffsetRequest{kafka.FirstOffsetOf(0), kafka.LastOffsetOf(0), kafka.TimeOffsetOf(0, time.UnixMilli(1_700_000_000_100))}
		found := Get(admin.ListOffsets(ctx, &kafka.ListOffsetsRequest{Topics: map[string][]kafka.OffsetRequest{name: ask}})).Topics[name][0]
		Must(found.Error)
		Same(found.FirstOffset, 0)
		Same(found.LastOffset, len(Records()))
		if _, is := found.Offsets[100]; !is {
			Fail("offsets %v", found.Offsets)
		}
	})
	Check("seek", func() {
		r := reader(kafka.ReaderConfig{Topic: prefix + "-times"})
		defer r.Close()
		Must(r.SetOffset(150))
		_, offset := read(r, 1)
		Same(offset, 150)
		Must(r.SetOffsetAt(ctx, time.UnixMilli(1_700_000_000_042)))
		_, offset = read(r, 1)
		Same(offset, 42)
	})
	Check("a connection of one's own", func() {
		conn := Get(kafka.DialLeader(ctx, "tcp", bootstrap[0], main, 0))
		defer conn.Close()
		Get(conn.WriteMessages(kafka.Message{Value: []byte("a")}, kafka.Message{Value: []byte("b")}))
		Until("both visible", func() bool { return Get(conn.ReadLastOffset()) == 2 })
		Get(conn.Seek(0, kafka.SeekStart))
		conn.SetReadDeadline(time.Now().Add(Patience))
		batch := conn.ReadBatch(1, 1e6)
		Same(string(Get(batch.ReadMessage()).Value), "a")
		Must(batch.Close())
		if Get(conn.Controller()).Port == 0 || len(Get(conn.ReadPartitions(main))) != 3 {
			Fail("controller or partitions")
		}
	})
	Check("group", func() { group(admin, create("group", 4, replicas)) })
	Check("elect leaders", func() {
		Must(Get(admin.ElectLeaders(ctx, &kafka.ElectLeadersRequest{Topic: main, Partitions: []int{0}, Timeout: Patience})).Error)
	})
	Check("reassign", func() {
		name := create("moved", 1, 1)
		spec := kafka.AlterPartitionReassignmentsRequest{Topic: name, Timeout: Patience, Assignments: []kafka.AlterPartitionReassignmentsRequestAssignment{{PartitionID: 0, BrokerIDs: []int{replicas}}}}
		Must(Get(admin.AlterPartitionReassignments(ctx, &spec)).Error)
		Until("moved", func() bool {
			found := Get(admin.ListPartitionReassignments(ctx, &kafka.ListPartitionReassignmentsRequest{Topics: map[string]kafka.ListPartitionReassignmentsRequestTopic{name: {PartitionIndexes: []int{0}}}}))
			now := Get(admin.Metadata(ctx, &kafka.MetadataRequest{Topics: []string{name}})).Topics[0].Partitions[0]
			return len(found.Topics) == 0 && now.Leader.ID == replicas
		})
	})
	Check("delete topic", func() {
		Must(Get(admin.DeleteTopics(ctx, &kafka.DeleteTopicsRequest{Topics: []string{main}})).Errors[main])
	})
}

func group(admin *kafka.Client, name string) {
	send(name, &kafka.Writer{RequiredAcks: kafka.RequireAll, Balancer: &kafka.RoundRobin{}})
	member := func() *kafka.Reader {
		return reader(kafka.ReaderConfig{GroupID: name, GroupTopics: []string{name}, HeartbeatInterval: 200 * time.Millisecond, RebalanceTimeout: 5 * time.Second})
	}
	held := func() string {
		found := Get(admin.DescribeGroups(ctx, &kafka.DescribeGroupsRequest{GroupIDs: []string{name}})).Groups[0]
		Must(found.Error)
		counts := []int{}
		for _, m := range found.Members {
			partitions := 0
			for _, t := range m.MemberAssignments.Topics {
				partitions += len(t.Partitions)
			}
			counts = append(counts, partitions)
		}
		return fmt.Sprint(counts)
	}
	first := member()
	for range Records() {
		limited, cancel := context.WithTimeout(ctx, Patience)
		m := Get(first.FetchMessage(limited))
		Must(first.CommitMessages(limited, m))
		cancel()
	}
	second := member()
	Until("two each", func() bool { return held() == "[2 2]" })
	Must(second.Close())
	Until("one with all", func() bool { return held() == "[4]" })
	Must(first.Close())
	var sum int64
	found := Get(admin.OffsetFetch(ctx, &kafka.OffsetFetchRequest{GroupID: name, Topics: map[string][]int{name: {0, 1, 2, 3}}}))
	for _, p := range found.Topics[name] {
		sum += p.CommittedOffset
	}
	Same(sum, len(Records()))
	listed := false
	for _, g := range Get(admin.ListGroups(ctx, &kafka.ListGroupsRequest{})).Groups {
		listed = listed || g.GroupID == name
	}
	Same(listed || len(bootstrap) > 1, true) // It asks one broker only.
	Must(Get(admin.OffsetDelete(ctx, &kafka.OffsetDeleteRequest{GroupID: name, Topics: map[string][]int{name: {0}}})).Error)
	Must(Get(admin.DeleteGroups(ctx, &kafka.DeleteGroupsRequest{GroupIDs: []string{name}})).Errors[name])
}

func load(topic string) {
	writer := &kafka.Writer{Addr: kafka.TCP(bootstrap...), Topic: topic, BatchTimeout: 5 * time.Millisecond, RequiredAcks: kafka.RequireAll,
		MaxAttempts: 100, WriteBackoffMin: 50 * time.Millisecond, WriteBackoffMax: 500 * time.Millisecond}
	var first error
	mutex, seen, acked := sync.Mutex{}, map[int]bool{}, 0
	writer.Async, writer.Completion = true, func(messages []kafka.Message, err error) {
		mutex.Lock()
		defer mutex.Unlock()
		if err != nil && first == nil {
			first = err
		}
		acked += len(messages)
	}
	consumer := reader(kafka.ReaderConfig{GroupID: topic + "-group", Topic: topic, CommitInterval: 100 * time.Millisecond})
	go func() {
		for {
			m, err := consumer.ReadMessage(ctx)
			if err != nil {
				return
			}
			mutex.Lock()
			seen[Get(strconv.Atoi(string(m.Value)))] = true
			mutex.Unlock()
		}
	}()
	ended := make(chan struct{})
	go func() { bufio.NewReader(os.Stdin).ReadString('\n'); close(ended) }()
	sent := 0
	for running := true; running; {
		select {
		case <-ended:
			running = false
		default:
			Must(writer.WriteMessages(ctx, kafka.Message{Value: []byte(strconv.Itoa(sent))}))
			sent++
			if sent == 1000 {
				fmt.Println("running")
			}
			time.Sleep(500 * time.Microsecond)
		}
	}
	Check("load", func() {
		Must(writer.Close())
		Must(first)
		Same(acked, sent)
		fmt.Println("acknowledged", sent)
		Until("all read", func() bool { mutex.Lock(); defer mutex.Unlock(); return len(seen) == sent })
		Must(consumer.Close())
	})
}

func main() {
	bootstrap = strings.Split(os.Args[2], ",")
	if os.Args[1] == "features" {
		features(Get(strconv.Atoi(os.Args[3])), os.Args[4])
	} else {
		load(os.Args[3])
	}
	Done()
}
