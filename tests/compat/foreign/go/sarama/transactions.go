// Transactions of sarama: `sarama transactions BOOTSTRAP TOPIC GROUP`. TOPIC-in has three records, which a group reads.
package main

import (
	"errors"
	"time"

	. "foreign/checks"

	"github.com/IBM/sarama"
)

func transactional(topic string) sarama.SyncProducer {
	return Get(sarama.NewSyncProducer(bootstrap, config(func(c *sarama.Config) {
		idempotent(c)
		c.Producer.Retry.Max = 5
		c.Producer.Transaction.ID = topic + "-id"
		c.Producer.Partitioner = sarama.NewManualPartitioner
	})))
}

func begin(producer sarama.SyncProducer, topic string, values ...string) {
	Must(producer.BeginTxn())
	for _, value := range values {
		for partition := range int32(2) {
			_, _, err := producer.SendMessage(&sarama.ProducerMessage{Topic: topic, Partition: partition, Value: sarama.StringEncoder(value)})
			Must(err)
		}
	}
}

func transactions(topic, group string) {
	Check("commit and abort", func() {
		producer := transactional(topic)
		defer producer.Close()
		begin(producer, topic, "committed-0", "committed-1", "committed-2")
		Must(producer.CommitTxn())
		begin(producer, topic, "aborted")
		Must(producer.AbortTxn())
	})
	Check("offsets in a transaction", func() {
		producer := transactional(topic)
		defer producer.Close()
		at := func(offset int64) map[string][]*sarama.PartitionOffsetMetadata {
			return map[string][]*sarama.PartitionOffsetMetadata{topic + "-in": {{Partition: 0, Offset: offset}}}
		}
		begin(producer, topic, "with-offsets")
		Must(producer.AddOffsetsToTxn(at(3), group))
		Must(producer.CommitTxn())
		begin(producer, topic, "aborted")
		Must(producer.AddOffsetsToTxn(at(5), group))
		Must(producer.AbortTxn())
	})
	Check("fencing", func() {
		zombie := transactional(topic)
		defer zombie.Close()
		begin(zombie, topic, "zombie")
		heir := transactional(topic)
		defer heir.Close()
		begin(heir, topic, "heir")
		err := zombie.CommitTxn()
		if !errors.Is(err, sarama.ErrProducerFenced) && !errors.Is(err, sarama.ErrInvalidProducerEpoch) {
			Fail("the zombie committed: %v", err)
		}
		if zombie.TxnStatus()&sarama.ProducerTxnFlagFatalError == 0 {
			Fail("not fatal: %v", zombie.TxnStatus())
		}
		Must(heir.CommitTxn())
	})
	Check("read committed", func() {
		consumer := Get(sarama.NewConsumer(bootstrap, config(func(c *sarama.Config) { c.Consumer.IsolationLevel = sarama.ReadCommitted })))
		defer consumer.Close()
		var got []Record
		for partition := range int32(2) {
			messages := Get(consumer.ConsumePartition(topic, partition, sarama.OffsetOldest)).Messages()
			for range Written {
				select {
				case message := <-messages:
					got = append(got, Record{Value: message.Value})
				case <-time.After(Patience):
					Fail("%d records in time", len(got))
				}
			}
		}
		CompareWritten(got)
	})
}
