// franz-go's kfake, a Kafka broker in memory for tests, as a program: one broker on a free port of 127.0.0.1, whose
// address it prints. It ends with its standard input. compat/card compares its answers with those of Apache Kafka.
package main

import (
	"fmt"
	"io"
	"os"

	"github.com/twmb/franz-go/pkg/kfake"
)

func main() {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.AllowAutoTopicCreation())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	defer cluster.Close()
	fmt.Println(cluster.ListenAddrs()[0])
	io.Copy(io.Discard, os.Stdin)
}
