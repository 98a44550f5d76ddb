// Transactions of franz-go: `franz transactions BOOTSTRAP TOPIC GROUP`. TOPIC-in has three records, which a group reads.
package main

import (
	"errors"

	. "foreign/checks"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

func transactional(topic string, opts ...kgo.Opt) []kgo.Opt {
	return append(opts, kgo.SeedBrokers(bootstrap...), kgo.TransactionalID(topic+"-id"), kgo.RecordPartitioner(kgo.ManualPartitioner()))
}

func both(topic string, values ...string) (found []*kgo.Record) {
	for _, value := range values {
		for partition := range int32(2) {
			found = append(found, &kgo.Record{Topic: topic, Partition: partition, Value: []byte(value)})
		}
	}
	return found
}

func begin(producer *kgo.Client, topic string, values ...string) {
	Must(producer.BeginTransaction())
	Must(producer.ProduceSync(ctx, both(topic, values...)...).FirstErr())
}

func transactions(topic, group string) {
	Check("commit and abort", func() {
		producer := Get(kgo.NewClient(transactional(topic)...))
		defer producer.Close()
		begin(producer, topic, "committed-0", "committed-1", "committed-2")
		Must(producer.EndTransaction(ctx, kgo.TryCommit))
		begin(producer, topic, "aborted")
		Must(producer.EndTransaction(ctx, kgo.TryAbort))
	})
	Check("offsets in a transaction", func() {
		session := Get(kgo.NewGroupTransactSession(transactional(topic, kgo.ConsumeTopics(topic+"-in"), kgo.ConsumerGroup(group),
			kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.RequireStableFetchOffsets())...))
		defer session.Close()
		for _, step := range []struct {
			count int
			value string
			end   kgo.TransactionEndTry
		}{{3, "with-offsets", kgo.TryCommit}, {2, "aborted", kgo.TryAbort}} {
			for count := 0; count < step.count; {
				fetches := session.PollFetches(ctx)
				Must(fetches.Err0())
				count += fetches.NumRecords()
			}
			Must(session.Begin())
			Must(session.ProduceSync(ctx, both(topic, step.value)...).FirstErr())
			Same(Get(session.End(ctx, step.end)), step.end == kgo.TryCommit)
			send(nil, topic+"-in", Records()[:2])
		}
	})
	Check("fencing", func() {
		zombie := Get(kgo.NewClient(transactional(topic)...))
		defer zombie.Close()
		begin(zombie, topic, "zombie")
		heir := Get(kgo.NewClient(transactional(topic)...))
		defer heir.Close()
		begin(heir, topic, "heir")
		err := zombie.EndTransaction(ctx, kgo.TryCommit)
		if !errors.Is(err, kerr.ProducerFenced) && !errors.Is(err, kerr.InvalidProducerEpoch) {
			Fail("the zombie committed: %v", err)
		}
		Must(heir.EndTransaction(ctx, kgo.TryCommit))
	})
	Check("read committed", func() {
		start := kgo.NewOffset().AtStart()
		consumer := client(kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: start, 1: start}}))
		defer consumer.Close()
		got, _ := read(consumer, 2*len(Written))
		CompareWritten(got)
	})
}
