// A client of franz-go for tests: the first argument chooses a job, the second is a JSON object with its parameters. It
// prints one JSON object at its end. Its tests are in compat/clients/test_franz.py.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Parameters of all jobs; each uses some of them.
type parameters struct {
	Servers   string
	Topic     string
	Output    string
	Group     string
	ID        string // transactional id
	Codec     string
	Protocol  string // of the group: classic or consumer
	Count     int    // records to write, or to read
	Seed      int64
	Isolation string
	Security  security
}

var jobs = map[string]func(context.Context, parameters) (any, error){
	"produce":  produce,
	"consume":  consume,
	"group":    group,
	"transact": transact,
	"admin":    admin,
}

var codecs = map[string]kgo.CompressionCodec{
	"none":   kgo.NoCompression(),
	"gzip":   kgo.GzipCompression(),
	"snappy": kgo.SnappyCompression(),
	"lz4":    kgo.Lz4Compression(),
	"zstd":   kgo.ZstdCompression(),
}

func main() {
	var given parameters
	if err := json.Unmarshal([]byte(os.Args[2]), &given); err != nil {
		fail(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Second)
	defer cancel()
	result, err := jobs[os.Args[1]](ctx, given)
	if err != nil {
		fail(err)
	}
	if err := json.NewEncoder(os.Stdout).Encode(result); err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// connect makes a client that is closed by the caller.
func (given parameters) connect(more ...kgo.Opt) (*kgo.Client, error) {
	secured, err := given.Security.options()
	if err != nil {
		return nil, err
	}
	return kgo.NewClient(append(append(secured, kgo.SeedBrokers(given.Servers)), more...)...)
}

// one polls once; the records are in the order of each partition.
func one(ctx context.Context, client *kgo.Client) (kgo.Fetches, error) {
	fetches := client.PollFetches(ctx)
	for _, failed := range fetches.Errors() {
		return nil, fmt.Errorf("fetch of %s %d: %w", failed.Topic, failed.Partition, failed.Err)
	}
	return fetches, nil
}
