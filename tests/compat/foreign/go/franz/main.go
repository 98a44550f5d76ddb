// franz-go (kgo, kadm) against a broker: `franz features BOOTSTRAP REPLICAS PREFIX`, `franz load BOOTSTRAP TOPIC`
// or `franz transactions BOOTSTRAP TOPIC GROUP`.
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

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

var (
	ctx       = context.Background()
	bootstrap []string
)

func client(opts ...kgo.Opt) *kgo.Client {
	all := append([]kgo.Opt{kgo.SeedBrokers(bootstrap...), kgo.MetadataMinAge(100 * time.Millisecond)}, opts...)
	return Get(kgo.NewClient(all...))
}

func send(opts []kgo.Opt, topic string, records []Record) {
	producer := client(append(opts, kgo.RecordPartitioner(kgo.ManualPartitioner()))...)
	defer producer.Close()
	batch := make([]*kgo.Record, len(records))
	for i, r := range records {
		batch[i] = &kgo.Record{Topic: topic, Key: r.Key, Value: r.Value, Timestamp: time.UnixMilli(1_700_000_000_000 + int64(i))}
		if r.HeaderKey != "" {
			batch[i].Headers = []kgo.RecordHeader{{Key: r.HeaderKey, Value: r.HeaderValue}}
		}
	}
	Must(producer.ProduceSync(ctx, batch...).FirstErr())
}

// read polls until `count` records are there.
func read(consumer *kgo.Client, count int) (got []Record, offsets []int64) {
	limited, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	for len(got) < count {
		fetches := consumer.PollFetches(limited)
		if limited.Err() != nil {
			Fail("%d of %d records in time", len(got), count)
		}
		for _, e := range fetches.Errors() {
			Fail("%s-%d: %v", e.Topic, e.Partition, e.Err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			record := Record{Key: r.Key, Value: r.Value}
			if len(r.Headers) > 0 {
				record.HeaderKey, record.HeaderValue = r.Headers[0].Key, r.Headers[0].Value
			}
			got, offsets = append(got, record), append(offsets, r.Offset)
		})
	}
	return got, offsets
}

func from(topic string, offset kgo.Offset) *kgo.Client {
	return client(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: offset}}))
}

func features(replicas int16, prefix string) {
	raw := client()
	defer raw.Close()
	admin := kadm.NewClient(raw)
	main := prefix + "-main"
	value := func(s string) *string { return &s }
	topic := func(name string, partitions int32, factor int16) string {
		Must(Get(admin.CreateTopic(ctx, partitions, factor, nil, prefix+"-"+name)).Err)
		return prefix + "-" + name
	}

	Check("create topic", func() {
		Must(Get(admin.CreateTopic(ctx, 3, replicas, map[string]*string{"retention.ms": value("-1")}, main)).Err)
		again, _ := admin.CreateTopic(ctx, 3, replicas, nil, main)
		if again.Err == nil || !strings.Contains(again.Err.Error(), "TOPIC_ALREADY_EXISTS") {
			Fail("made twice: %v", again.Err)
		}
	})
	Check("describe topic", func() {
		Until("leaders", func() bool { return len(Get(admin.ListTopics(ctx, main))[main].Partitions) == 3 })
		for _, p := range Get(admin.ListTopics(ctx, main))[main].Partitions {
			Same(len(p.Replicas), replicas)
		}
	})
	Check("describe cluster", func() {
		found := Get(admin.BrokerMetadata(ctx))
		Same(len(found.Brokers), replicas)
		if found.Cluster == "" || found.Controller < 0 {
			Fail("cluster %q, controller %d", found.Cluster, found.Controller)
		}
		Get(admin.ApiVersions(ctx)).Each(func(v kadm.BrokerApiVersions) { Must(v.Err) })
	})
	Check("configs", func() {
		config := func(name string) string {
			found := Get(Get(admin.DescribeTopicConfigs(ctx, main)).On(main, nil))
			Must(found.Err)
			for _, c := range found.Configs {
				if c.Key == name {
					return c.MaybeValue()
				}
			}
			return "absent"
		}
		Same(config("retention.ms"), "-1")
		alter := []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "max.message.bytes", Value: value("2000000")}}
		for _, r := range Get(admin.AlterTopicConfigs(ctx, alter, main)) {
			Must(r.Err)
		}
		Until("the new value", func() bool { return config("max.message.bytes") == "2000000" })
		for _, r := range Get(admin.DescribeBrokerConfigs(ctx)) {
			Must(r.Err)
		}
	})
	Check("create partitions", func() {
		name := topic("grown", 1, 1)
		Must(Get(admin.CreatePartitions(ctx, 2, name)).Error())
		Until("three partitions", func() bool { return len(Get(admin.ListTopics(ctx, name))[name].Partitions) == 3 })
	})
	for _, codec := range []kgo.CompressionCodec{kgo.NoCompression(), kgo.GzipCompression(), kgo.SnappyCompression(), kgo.Lz4Compression(), kgo.ZstdCompression()} {
		label := []string{"none", "gzip", "snappy", "lz4", "zstd"}[codecOf(codec)]
		Check("records "+label, func() {
			name := topic("codec-"+label, 1, replicas)
			send([]kgo.Opt{kgo.ProducerBatchCompression(codec)}, name, Records())
			consumer := from(name, kgo.NewOffset().AtStart())
			defer consumer.Close()
			got, _ := read(consumer, len(Records()))
			Compare(Records(), got)
		})
	}
	for label, acks := range map[string]kgo.Acks{"acks 0": kgo.NoAck(), "acks 1": kgo.LeaderAck()} {
		Check(label, func() {
			name := topic(strings.ReplaceAll(label, " ", "-"), 1, replicas)
			send([]kgo.Opt{kgo.RequiredAcks(acks), kgo.DisableIdempotentWrite()}, name, Records())
			consumer := from(name, kgo.NewOffset().AtStart())
			defer consumer.Close()
			got, _ := read(consumer, len(Records()))
			Compare(Records(), got)
		})
	}
	Check("offsets by time", func() {
		name := topic("times", 1, replicas)
		send(nil, name, Records())
		at := func(found kadm.ListedOffsets, err error) int64 { Must(err); return found[name][0].Offset }
		Same(at(admin.ListOffsetsAfterMilli(ctx, 1_700_000_000_100, name)), 100)
		Same(at(admin.ListStartOffsets(ctx, name)), 0)
		Same(at(admin.ListEndOffsets(ctx, name)), len(Records()))
		Same(at(admin.ListMaxTimestampOffsets(ctx, name)), len(Records())-1)
	})
	Check("seek", func() {
		name := prefix + "-times"
		consumer := from(name, kgo.NewOffset().At(150))
		defer consumer.Close()
		_, offsets := read(consumer, 1)
		Same(offsets[0], 150)
		byTime := from(name, kgo.NewOffset().AfterMilli(1_700_000_000_042))
		defer byTime.Close()
		_, offsets = read(byTime, 1)
		Same(offsets[0], 42)
	})
	Check("delete records", func() {
		name := prefix + "-times"
		var before kadm.Offsets = kadm.Offsets{}
		before.AddOffset(name, 0, 50, -1)
		Must(Get(admin.DeleteRecords(ctx, before)).Error())
		Same(Get(admin.ListStartOffsets(ctx, name))[name][0].Offset, 50)
		consumer := from(name, kgo.NewOffset().At(3)) // Out of range: franz-go starts over where it is told to.
		defer consumer.Close()
		_, offsets := read(consumer, 1)
		Same(offsets[0], 50)
	})
	for label, opts := range map[string][]kgo.Opt{
		"group":             nil,
		"cooperative group": {kgo.Balancers(kgo.CooperativeStickyBalancer())},
		"eager group":       {kgo.Balancers(kgo.RangeBalancer(), kgo.RoundRobinBalancer())},
		"static members":    {kgo.InstanceID("one")},
	} {
		Check(label, func() {
			group(admin, strings.ReplaceAll(prefix+"-"+label, " ", "-"), replicas, opts, label == "static members")
		})
	}
	Check("regex", func() {
		first := topic("re-a", 1, 1)
		consumer := client(kgo.ConsumerGroup(prefix+"-regex"), kgo.ConsumeRegex(), kgo.ConsumeTopics("^"+prefix+"-re-.*"),
			kgo.MetadataMaxAge(500*time.Millisecond), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
		defer consumer.Close()
		send(nil, first, Records()[:1])
		read(consumer, 1)
		send(nil, topic("re-b", 1, 1), Records()[:2])
		read(consumer, 2)
	})
	Check("log dirs", func() {
		found := Get(admin.DescribeAllLogDirs(ctx, nil))
		found.Each(func(d kadm.DescribedLogDir) { Must(d.Err) })
		var size int64
		found.Each(func(d kadm.DescribedLogDir) { size += d.Size() })
		if len(found) != int(replicas) || size == 0 {
			Fail("%d brokers, %d bytes", len(found), size)
		}
	})
	Check("describe producers", func() {
		found := Get(admin.DescribeProducers(ctx, kadm.TopicsSet{prefix + "-codec-none": {0: {}}}))
		Same(len(found.SortedProducers()), 1)
	})
	Check("elect leaders", func() {
		for _, partitions := range Get(admin.ElectLeaders(ctx, kadm.ElectPreferredReplica, kadm.TopicsSet{main: {0: {}}})) {
			for _, p := range partitions {
				if p.Err != nil && !strings.Contains(p.Err.Error(), "ELECTION_NOT_NEEDED") {
					Fail("%v", p.Err)
				}
			}
		}
	})
	Check("reassign", func() {
		name := topic("moved", 1, 1)
		send(nil, name, Records())
		var now int32
		Until("a leader", func() bool { now = Get(admin.ListTopics(ctx, name))[name].Partitions[0].Leader; return now >= 0 })
		target := now
		for _, b := range Get(admin.ListBrokers(ctx)).NodeIDs() {
			if b != now {
				target = b
			}
		}
		req := kadm.AlterPartitionAssignmentsReq{}
		req.Assign(name, 0, []int32{target})
		Must(Get(admin.AlterPartitionAssignments(ctx, req)).Error())
		Until("moved", func() bool {
			return len(Get(admin.ListPartitionReassignments(ctx, nil))) == 0 && Get(admin.ListTopics(ctx, name))[name].Partitions[0].Leader == target
		})
		consumer := from(name, kgo.NewOffset().AtStart())
		defer consumer.Close()
		got, _ := read(consumer, len(Records()))
		Compare(Records(), got)
	})
	Check("delete topic", func() {
		Must(Get(admin.DeleteTopic(ctx, main)).Err)
		Until("gone", func() bool { return !Get(admin.ListTopics(ctx)).Has(main) })
	})
	Check("transactions are refused", func() {
		producer := client(kgo.TransactionalID(prefix))
		defer producer.Close()
		err := producer.BeginTransaction()
		if err == nil {
			err = producer.ProduceSync(ctx, &kgo.Record{Topic: prefix + "-times", Value: []byte("x")}).FirstErr()
		}
		if err == nil || !strings.Contains(err.Error(), "UNSUPPORTED_VERSION") {
			Fail("%v", err)
		}
	})
}

func codecOf(codec kgo.CompressionCodec) int {
	for i, c := range []kgo.CompressionCodec{kgo.NoCompression(), kgo.GzipCompression(), kgo.SnappyCompression(), kgo.Lz4Compression(), kgo.ZstdCompression()} {
		if c == codec {
			return i
		}
	}
	return 0
}

// group lets a second member join and leave, commits by hand, and asks the admin about it all.
func group(admin *kadm.Client, name string, replicas int16, opts []kgo.Opt, static bool) {
	Must(Get(admin.CreateTopic(ctx, 4, replicas, nil, name)).Err)
	member := func(more ...kgo.Opt) *kgo.Client {
		all := []kgo.Opt{kgo.ConsumerGroup(name), kgo.ConsumeTopics(name), kgo.DisableAutoCommit(),
			kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(100 * time.Millisecond)}
		return client(append(append(all, opts...), more...)...)
	}
	members := func() (counts []int) {
		for _, m := range Get(admin.DescribeGroups(ctx, name))[name].Members {
			held, _ := m.Assigned.AsConsumer()
			partitions := 0
			if held != nil {
				for _, t := range held.Topics {
					partitions += len(t.Partitions)
				}
			}
			counts = append(counts, partitions)
		}
		return counts
	}
	fill := client()
	defer fill.Close()
	for i := range 100 {
		Must(fill.ProduceSync(ctx, &kgo.Record{Topic: name, Key: fmt.Append(nil, i), Value: fmt.Append(nil, i)}).FirstErr())
	}
	first := member()
	read(first, 100)
	Must(first.CommitUncommittedOffsets(ctx))
	second := member(kgo.InstanceID("two"))
	stop := make(chan struct{})
	var polls sync.WaitGroup
	for _, m := range []*kgo.Client{first, second} {
		polls.Add(1)
		go func() {
			defer polls.Done()
			for {
				select {
				case <-stop:
					return
				default:
					limited, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
					m.PollFetches(limited)
					cancel()
				}
			}
		}()
	}
	Until("two members with two partitions each", func() bool { return fmt.Sprint(members()) == "[2 2]" })
	close(stop)
	polls.Wait()
	second.Close()
	if static { // A static member that closes stays in the group until it is taken out.
		leave := kadm.LeaveGroup(name).InstanceIDs("two")
		for _, r := range Get(admin.LeaveGroup(ctx, leave)) {
			Must(r.Err)
		}
	} else {
		leave := kadm.LeaveGroup(name).InstanceIDs("two")
		admin.LeaveGroup(ctx, leave)
	}
	go first.PollFetches(ctx)
	Until("one member with all", func() bool { return fmt.Sprint(members()) == "[4]" })
	committed := Get(admin.FetchOffsets(ctx, name))
	var sum int64
	committed.Each(func(o kadm.OffsetResponse) { sum += o.At })
	Same(sum, 100)
	lag := Get(admin.Lag(ctx, name))
	Same(lag[name].Lag.Total(), 0)
	if listed := Get(admin.ListGroups(ctx)); listed[name].ProtocolType != "consumer" {
		Fail("listed as %v", listed[name])
	}
	first.Close()
	if static {
		Get(admin.LeaveGroup(ctx, kadm.LeaveGroup(name).InstanceIDs("one")))
	}
	Until("deleted", func() bool { return Get(admin.DeleteGroup(ctx, name)).Err == nil })
	if _, is := Get(admin.ListGroups(ctx))[name]; is {
		Fail("listed after it was deleted")
	}
}

// load sends numbers until its standard input ends, while a group reads them; every one sent must be acknowledged and read.
func load(topic string) {
	producer := client(kgo.DefaultProduceTopic(topic), kgo.ProducerLinger(5*time.Millisecond), kgo.RecordDeliveryTimeout(2*Patience))
	consumer := client(kgo.ConsumerGroup(topic+"-group"), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	defer consumer.Close()
	seen, mutex := map[int]bool{}, sync.Mutex{}
	go func() {
		for {
			fetches := consumer.PollFetches(ctx)
			if fetches.IsClientClosed() {
				return
			}
			mutex.Lock()
			fetches.EachRecord(func(r *kgo.Record) { seen[Get(strconv.Atoi(string(r.Value)))] = true })
			mutex.Unlock()
		}
	}()
	ended := make(chan struct{})
	go func() { bufio.NewReader(os.Stdin).ReadString('\n'); close(ended) }()
	sent := 0
	var first error
	for running := true; running; {
		select {
		case <-ended:
			running = false
		default:
			value := []byte(strconv.Itoa(sent))
			producer.Produce(ctx, &kgo.Record{Value: value}, func(_ *kgo.Record, err error) {
				if err != nil && first == nil {
					first = err
				}
			})
			sent++
			if sent == 1000 {
				fmt.Println("running")
			}
			time.Sleep(500 * time.Microsecond)
		}
	}
	Check("load", func() {
		Must(producer.Flush(ctx))
		Must(first)
		fmt.Println("acknowledged", sent)
		Until("all read", func() bool { mutex.Lock(); defer mutex.Unlock(); return len(seen) == sent })
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
