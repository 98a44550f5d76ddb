// Package checks is what the Go programs share: named checks, one line of output each, and a few records to send.
package checks

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"time"
)

// Patience is for what must come about by itself: the machine may be busy.
const Patience = 60 * time.Second

type Failure struct{ text string }

// Fail ends the check it is called in.
func Fail(format string, args ...any) { panic(Failure{fmt.Sprintf(format, args...)}) }

func Must(err error) {
	if err != nil {
		Fail("%v", err)
	}
}

func Get[T any](value T, err error) T {
	Must(err)
	return value
}

func Same(got, wanted any) {
	if fmt.Sprint(got) != fmt.Sprint(wanted) {
		Fail("got %v, wanted %v", got, wanted)
	}
}

// Until asks again and again: what was agreed by controllers reaches each broker a moment later.
func Until(what string, look func() bool) {
	for end := time.Now().Add(Patience); !look(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			Fail("not in time: %s", what)
		}
	}
}

var failed bool

// Check runs one named check and prints `ok name` or `failed name: why`.
func Check(name string, body func()) {
	start := time.Now()
	defer func() {
		if found := recover(); found != nil {
			failed = true
			text := fmt.Sprint(found)
			if failure, is := found.(Failure); is {
				text = failure.text
			}
			fmt.Printf("failed %s: %s\n", name, strings.ReplaceAll(text, "\n", " "))
			return
		}
		fmt.Printf("ok %s (%d ms)\n", name, time.Since(start).Milliseconds())
	}()
	body()
}

// Done ends the process with 1 if a check failed.
func Done() {
	if failed {
		os.Exit(1)
	}
}

type Record struct {
	Key, Value  []byte
	HeaderKey   string
	HeaderValue []byte
}

// Records of every kind; the last one is near 1 MB and does not compress.
func Records() []Record {
	noise := make([]byte, 900_000)
	for i, x := 0, uint32(7); i < len(noise); i++ {
		x = x*1664525 + 1013904223
		noise[i] = byte(x >> 24)
	}
	found := []Record{
		{Value: []byte("plain")},
		{Key: []byte("tombstone")},
		{Key: []byte{}, Value: []byte{}},
		{Key: []byte("ключ"), Value: []byte("grüße"), HeaderKey: "名", HeaderValue: []byte{0, 255}},
		{Value: bytes.Repeat([]byte("same "), 20_000)},
	}
	for i := range 200 {
		found = append(found, Record{Key: fmt.Appendf(nil, "k%d", i%7), Value: fmt.Appendf(nil, "v%d", i)})
	}
	return append(found, Record{Value: noise})
}

// Compare says what came back otherwise than it was sent; null and empty are different.
func Compare(sent, got []Record) {
	Same(len(got), len(sent))
	for i := range sent {
		s, g := sent[i], got[i]
		if !bytes.Equal(s.Key, g.Key) || !bytes.Equal(s.Value, g.Value) || (s.Value == nil) != (g.Value == nil) ||
			(s.Key == nil) != (g.Key == nil) || s.HeaderKey != g.HeaderKey || !bytes.Equal(s.HeaderValue, g.HeaderValue) {
			Fail("record %d differs: key %q null %v, value of %d bytes null %v", i, g.Key, g.Key == nil, len(g.Value), g.Value == nil)
		}
	}
}

// Written is what of all transactions counts, in each of two partitions.
var Written = []string{"committed-0", "committed-1", "committed-2", "with-offsets", "heir"}

// CompareWritten wants each of them twice.
func CompareWritten(got []Record) {
	count := map[string]int{}
	for _, record := range got {
		count[string(record.Value)]++
	}
	for _, value := range Written {
		if count[value] != 2 || len(count) != len(Written) {
			Fail("read %v", count)
		}
	}
}
