// sarama against a broker: `sarama features BOOTSTRAP REPLICAS PREFIX`, `sarama load BOOTSTRAP TOPIC`
// or `sarama transactions BOOTSTRAP TOPIC GROUP`.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	. "foreign/checks"

	"github.com/IBM/sarama"
)

var bootstrap []string

func config(change func(*sarama.Config)) *sarama.Config {
	c := sarama.NewConfig()
	c.Version = sarama.MaxVersion
	c.Producer.Return.Successes = true
	c.Producer.MaxMessageBytes = 1_000_000
	c.Consumer.Offsets.Initial = sarama.OffsetOldest
	c.Consumer.Return.Errors = true
	if change != nil {
		change(c)
	}
	return c
}

func idempotent(c *sarama.Config) {
	c.Producer.Idempotent = true
	c.Producer.RequiredAcks = sarama.WaitForAll
	c.Net.MaxOpenRequests = 1
	c.Producer.Retry.Max = 100
	c.Producer.Retry.Backoff = 100 * time.Millisecond
}

func encoder(b []byte) sarama.Encoder {
	if b == nil {
		return nil
	}
	return sarama.ByteEncoder(b)
}

func send(topic string, change func(*sarama.Config)) {
	producer := Get(sarama.NewSyncProducer(bootstrap, config(change)))
	defer producer.Close()
	var batch []*sarama.ProducerMessage
	for i, r := range Records() {
		message := &sarama.ProducerMessage{Topic: topic, Key: encoder(r.Key), Value: encoder(r.Value), Timestamp: time.UnixMilli(1_700_000_000_000 + int64(i))}
		if r.HeaderKey != "" {
			message.Headers = []sarama.RecordHeader{{Key: []byte(r.HeaderKey), Value: r.HeaderValue}}
		}
		batch = append(batch, message)
	}
	Must(producer.SendMessages(batch))
}

func read(topic string, offset int64, count int) (got []Record, offsets []int64) {
	consumer := Get(sarama.NewConsumer(bootstrap, config(nil)))
	defer consumer.Close()
	partition := Get(consumer.ConsumePartition(topic, 0, offset))
	defer partition.Close()
	late := time.After(Patience)
	for len(got) < count {
		select {
		case m := <-partition.Messages():
			record := Record{Key: m.Key, Value: m.Value}
			if len(m.Headers) > 0 {
				record.HeaderKey, record.HeaderValue = string(m.Headers[0].Key), m.Headers[0].Value
			}
			got, offsets = append(got, record), append(offsets, m.Offset)
		case err := <-partition.Errors():
			Fail("%v", err)
		case <-late:
			Fail("%d of %d records in time", len(got), count)
		}
	}
	return got, offsets
}

func features(replicas int16, prefix string) {
	client := Get(sarama.NewClient(bootstrap, config(nil)))
	admin := Get(sarama.NewClusterAdminFromClient(client))
	defer admin.Close()
	value := func(s string) *string { return &s }
	topic := func(name string, partitions int32) string {
		Must(admin.CreateTopic(prefix+"-"+name, &sarama.TopicDetail{NumPartitions: partitions, ReplicationFactor: replicas}, false))
		return prefix + "-" + name
	}
	main := prefix + "-main"

	Check("create topic", func() {
		detail := &sarama.TopicDetail{NumPartitions: 3, ReplicationFactor: replicas, ConfigEntries: map[string]*string{"retention.ms": value("-1")}}
		Must(admin.CreateTopic(main, detail, false))
		if err := admin.CreateTopic(main, detail, false); !errors.Is(err, sarama.ErrTopicAlreadyExists) {
			Fail("made twice: %v", err)
		}
	})
	Check("describe topic", func() {
		Until("it is known", func() bool { return len(Get(admin.DescribeTopics([]string{main}))[0].Partitions) == 3 })
		Same(*Get(admin.ListTopics())[main].ConfigEntries["retention.ms"], "-1")
	})
	Check("describe cluster", func() {
		brokers, controller, err := admin.DescribeCluster()
		Must(err)
		Same(len(brokers), replicas)
		if controller <= 0 {
			Fail("controller %d", controller)
		}
	})
	Check("configs", func() {
		get := func() string {
			found := Get(admin.DescribeConfig(sarama.ConfigResource{Type: sarama.TopicResource, Name: main, ConfigNames: []string{"max.message.bytes"}}))
			return found[0].Value
		}
		change := map[string]sarama.IncrementalAlterConfigsEntry{"max.message.bytes": {Operation: sarama.IncrementalAlterConfigsOperationSet, Value: value("2000000")}}
		Must(admin.IncrementalAlterConfig(sarama.TopicResource, main, change, false))
		Until("the new value", func() bool { return get() == "2000000" })
		Must(admin.AlterConfig(sarama.TopicResource, main, map[string]*string{"max.message.bytes": value("3000000")}, false))
		Until("the newer value", func() bool { return get() == "3000000" })
	})
	Check("create partitions", func() {
		name := topic("grown", 1)
		Must(admin.CreatePartitions(name, 3, nil, false))
		Until("three partitions", func() bool { return len(Get(admin.DescribeTopics([]string{name}))[0].Partitions) == 3 })
	})
	for _, codec := range []sarama.CompressionCodec{sarama.CompressionNone, sarama.CompressionGZIP, sarama.CompressionSnappy, sarama.CompressionLZ4, sarama.CompressionZSTD} {
		Check("records "+codec.String(), func() {
			name := topic("codec-"+codec.String(), 1)
			send(name, func(c *sarama.Config) { idempotent(c); c.Producer.Compression = codec })
			got, _ := read(name, sarama.OffsetOldest, len(Records()))
			Compare(Records(), got)
		})
	}
	for acks, label := range map[sarama.RequiredAcks]string{sarama.NoResponse: "acks 0", sarama.WaitForLocal: "acks 1"} {
		Check(label, func() {
			name := topic(strings.ReplaceAll(label, " ", "-"), 1)
			send(name, func(c *sarama.Config) { c.Producer.RequiredAcks = acks })
			got, _ := read(name, sarama.OffsetOldest, len(Records()))
			Compare(Records(), got)
		})
	}
	for _, version := range []sarama.KafkaVersion{sarama.V0_11_0_0, sarama.V1_1_1_0, sarama.V2_1_0_0, sarama.V2_8_0_0, sarama.V3_6_0_0} {
		Check("speaking as "+version.String(), func() {
			name := topic("as-"+version.String(), 1)
			producer := Get(sarama.NewSyncProducer(bootstrap, config(func(c *sarama.Config) { c.Version = version })))
			defer producer.Close()
			_, offset, err := producer.SendMessage(&sarama.ProducerMessage{Topic: name, Value: sarama.StringEncoder("x")})
			Must(err)
			Same(offset, 0)
			consumer := Get(sarama.NewConsumer(bootstrap, config(func(c *sarama.Config) { c.Version = version })))
			defer consumer.Close()
			Same(string((<-Get(consumer.ConsumePartition(name, 0, 0)).Messages()).Value), "x")
		})
	}
	Check("offsets by time", func() {
		name := topic("times", 1)
		send(name, idempotent)
		Must(client.RefreshMetadata(name))
		Same(Get(client.GetOffset(name, 0, 1_700_000_000_100)), 100)
		Same(Get(client.GetOffset(name, 0, sarama.OffsetOldest)), 0)
		Same(Get(client.GetOffset(name, 0, sarama.OffsetNewest)), len(Records()))
	})
	Check("seek", func() {
		_, offsets := read(prefix+"-times", 150, 1)
		Same(offsets[0], 150)
	})
	Check("delete records", func() {
		Must(admin.DeleteRecords(prefix+"-times", map[int32]int64{0: 50}))
		Same(Get(client.GetOffset(prefix+"-times", 0, sarama.OffsetOldest)), 50)
	})
	for label, change := range map[string]func(*sarama.Config){
		"group, range": func(c *sarama.Config) {
			c.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{sarama.NewBalanceStrategyRange()}
		},
		"group, sticky": func(c *sarama.Config) {
			c.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{sarama.NewBalanceStrategySticky()}
		},
		"static members": func(c *sarama.Config) { c.Consumer.Group.InstanceId = "one" },
	} {
		Check(label, func() { group(admin, client, topic(strings.NewReplacer(" ", "-", ",", "").Replace(label), 4), change) })
	}
	Check("log dirs", func() {
		ids := []int32{}
		for _, b := range client.Brokers() {
			ids = append(ids, b.ID())
		}
		Same(len(Get(admin.DescribeLogDirs(ids))), replicas)
	})
	Check("elect leaders", func() {
		for _, partitions := range Get(admin.ElectLeaders(sarama.PreferredElection, map[string][]int32{main: {0}})) {
			for _, p := range partitions {
				if p.ErrorCode != sarama.ErrNoError && p.ErrorCode != sarama.ErrElectionNotNeeded {
					Fail("%v", p.ErrorCode)
				}
			}
		}
	})
	Check("reassign", func() {
		name := topic("moved", 1)
		Must(admin.AlterPartitionReassignments(name, [][]int32{{int32(replicas)}}))
		Until("moved", func() bool {
			under := Get(admin.ListPartitionReassignments(name, []int32{0}))
			p := Get(admin.DescribeTopics([]string{name}))[0].Partitions[0]
			return len(under[name]) == 0 && len(p.Replicas) == 1 && p.Leader == int32(replicas)
		})
	})
	Check("delete topic", func() {
		Must(admin.DeleteTopic(main))
		Until("gone", func() bool { _, is := Get(admin.ListTopics())[main]; return !is })
	})
}

type handler struct {
	mutex sync.Mutex
	seen  map[string]bool
	held  int
}

func (h *handler) Setup(s sarama.ConsumerGroupSession) error {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	h.held = 0
	for _, partitions := range s.Claims() {
		h.held += len(partitions)
	}
	return nil
}
func (h *handler) Cleanup(sarama.ConsumerGroupSession) error { return nil }
func (h *handler) ConsumeClaim(s sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for m := range claim.Messages() {
		h.mutex.Lock()
		h.seen[string(m.Value)] = true
		h.mutex.Unlock()
		s.MarkMessage(m, "")
	}
	return nil
}
func (h *handler) state() (int, int) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	return h.held, len(h.seen)
}

// join runs a member until the returned function is called.
func join(name, topic string, change func(*sarama.Config)) (*handler, func()) {
	h := &handler{seen: map[string]bool{}}
	member := Get(sarama.NewConsumerGroup(bootstrap, name, config(change)))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		for range member.Errors() {
		}
	}()
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			if err := member.Consume(ctx, []string{topic}, h); err != nil {
				time.Sleep(50 * time.Millisecond)
			}
		}
	}()
	return h, func() { cancel(); <-ended; Must(member.Close()) }
}

func group(admin sarama.ClusterAdmin, client sarama.Client, name string, change func(*sarama.Config)) {
	producer := Get(sarama.NewSyncProducer(bootstrap, config(nil)))
	defer producer.Close()
	for i := range 100 {
		text := sarama.StringEncoder(strconv.Itoa(i))
		_, _, err := producer.SendMessage(&sarama.ProducerMessage{Topic: name, Key: text, Value: text})
		Must(err)
	}
	one, leaveOne := join(name, name, change)
	Until("all read", func() bool { held, seen := one.state(); return held == 4 && seen == 100 })
	two, leaveTwo := join(name, name, func(c *sarama.Config) {
		change(c)
		if c.Consumer.Group.InstanceId != "" {
			c.Consumer.Group.InstanceId = "two"
		}
	})
	Until("two each", func() bool { a, _ := one.state(); b, _ := two.state(); return a == 2 && b == 2 })
	Same(len(Get(admin.DescribeConsumerGroups([]string{name}))[0].Members), 2)
	leaveTwo()
	static := config(change).Consumer.Group.InstanceId != ""
	if static {
		for _, r := range Get(admin.RemoveMemberFromConsumerGroup(name, []string{"two"})).Members {
			Must(nilIfNone(r.Err))
		}
	}
	Until("one with all", func() bool { a, _ := one.state(); return a == 4 })
	if _, is := Get(admin.ListConsumerGroups())[name]; !is {
		Fail("not listed")
	}
	leaveOne()
	if static {
		Get(admin.RemoveMemberFromConsumerGroup(name, []string{"one"}))
	}
	var sum int64
	for _, block := range Get(admin.ListConsumerGroupOffsets(name, map[string][]int32{name: {0, 1, 2, 3}})).Blocks[name] {
		sum += block.Offset
	}
	Same(sum, 100)
	Must(admin.DeleteConsumerGroupOffset(name, name, 0))
	Must(admin.DeleteConsumerGroup(name))
}

func nilIfNone(err sarama.KError) error {
	if err == sarama.ErrNoError {
		return nil
	}
	return err
}

func load(topic string) {
	producer := Get(sarama.NewAsyncProducer(bootstrap, config(func(c *sarama.Config) { idempotent(c); c.Producer.Flush.Frequency = 5 * time.Millisecond })))
	h, leave := join(topic+"-group", topic, nil)
	acked := make(chan int)
	var first error
	go func() {
		count := 0
		for range producer.Successes() {
			count++
		}
		acked <- count
	}()
	go func() {
		for err := range producer.Errors() {
			if first == nil {
				first = err
			}
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
			producer.Input() <- &sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder(strconv.Itoa(sent))}
			sent++
			if sent == 1000 {
				fmt.Println("running")
			}
			time.Sleep(500 * time.Microsecond)
		}
	}
	Check("load", func() {
		producer.AsyncClose()
		count := <-acked
		Must(first)
		Same(count, sent)
		fmt.Println("acknowledged", sent)
		Until("all read", func() bool { _, seen := h.state(); return seen == sent })
		leave()
	})
}

func main() {
	bootstrap = strings.Split(os.Args[2], ",")
	if os.Args[1] == "transactions" {
		transactions(os.Args[3], os.Args[4])
	} else if os.Args[1] == "features" {
		features(int16(Get(strconv.Atoi(os.Args[3]))), os.Args[4])
	} else {
		load(os.Args[3])
	}
	Done()
}
