// franz-go at its defaults under elections: `pipeline BOOTSTRAP TOPIC NAME PARTITIONS EACH`. See tests/compat/elections.py.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	. "foreign/checks"

	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	topic, name := os.Args[2], os.Args[3]
	partitions, each := Get(strconv.Atoi(os.Args[4])), Get(strconv.Atoi(os.Args[5]))
	open := func() *kgo.Client {
		log := kgo.BasicLogger(os.Stderr, kgo.LogLevelInfo, nil)
		seeds := strings.Split(os.Args[1], ",")
		return Get(kgo.NewClient(kgo.SeedBrokers(seeds...), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.WithLogger(log)))
	}
	var stopped atomic.Bool
	go func() { bufio.NewReader(os.Stdin).ReadString('\n'); stopped.Store(true) }()
	ctx := context.Background()
	producer := open()
	var acked atomic.Int64
	sent := 0
	for ; !stopped.Load(); sent++ {
		if each > 0 && sent > 0 && sent%each == 0 {
			Must(producer.Flush(ctx))
			producer.Close()
			producer = open()
		}
		number := sent
		record := &kgo.Record{Topic: topic, Partition: int32(number % partitions), Value: []byte(fmt.Sprintf("%s-%d", name, number))}
		producer.Produce(ctx, record, func(_ *kgo.Record, err error) {
			if err != nil {
				fmt.Printf("failed %d %v\n", number, err)
			} else if acked.Add(1) == 100 {
				fmt.Println("running")
			}
		})
		time.Sleep(time.Millisecond)
	}
	Must(producer.Flush(ctx))
	producer.Close()
	fmt.Printf("sent %d\n", sent)
}
