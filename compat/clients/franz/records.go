package main

import (
	"context"
	"fmt"
	"strconv"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// produce writes numbered records with an idempotent producer, which is kgo's default, one batch after the other.
func produce(ctx context.Context, given parameters) (any, error) {
	client, err := given.connect(kgo.ProducerBatchCompression(codecs[given.Codec]), kgo.DefaultProduceTopic(given.Topic))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	var sent []*kgo.Record
	for number := range given.Count {
		value := []byte(given.Codec + "-" + strconv.Itoa(number))
		sent = append(sent, &kgo.Record{Key: []byte(strconv.Itoa(number % 7)), Value: value})
	}
	for len(sent) > 0 {
		part := min(100, len(sent))
		if err := client.ProduceSync(ctx, sent[:part]...).FirstErr(); err != nil {
			return nil, err
		}
		sent = sent[part:]
	}
	return map[string]int{"written": given.Count}, nil
}

// consume reads Count records from the beginning of a topic, without a group; values are in the order of their partitions.
func consume(ctx context.Context, given parameters) (any, error) {
	isolation := kgo.ReadUncommitted()
	if given.Isolation == "read_committed" {
		isolation = kgo.ReadCommitted()
	}
	client, err := given.connect(
		kgo.ConsumeTopics(given.Topic), kgo.FetchIsolationLevel(isolation), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	values := map[int32][]string{}
	for count := 0; count < given.Count; {
		fetches, err := one(ctx, client)
		if err != nil {
			return nil, err
		}
		fetches.EachRecord(func(record *kgo.Record) {
			values[record.Partition] = append(values[record.Partition], string(record.Value))
			count++
		})
	}
	return values, nil
}

// admin creates, describes and deletes with kadm, and looks at a transaction that it leaves open for a moment.
func admin(ctx context.Context, given parameters) (any, error) {
	client, err := given.connect(kgo.TransactionalID(given.ID), kgo.DefaultProduceTopic(given.Topic))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	ask := kadm.NewClient(client)
	if _, err := ask.CreateTopic(ctx, 3, 1, nil, given.Topic); err != nil {
		return nil, fmt.Errorf("create: %w", err)
	}
	if err := client.BeginTransaction(); err != nil {
		return nil, err
	}
	if err := client.ProduceSync(ctx, &kgo.Record{Value: []byte("open")}).FirstErr(); err != nil {
		return nil, fmt.Errorf("produce: %w", err)
	}
	listed, err := ask.ListTransactions(ctx, nil, []string{"Ongoing"})
	if err != nil {
		return nil, fmt.Errorf("list: %w", err)
	}
	described, err := ask.DescribeTransactions(ctx, given.ID)
	if err != nil {
		return nil, fmt.Errorf("describe: %w", err)
	}
	described.Each(func(each kadm.DescribedTransaction) {
		if each.Err != nil {
			err = each.Err
		}
	})
	if err != nil {
		return nil, fmt.Errorf("describe: %w", err)
	}
	producers, err := ask.DescribeProducers(ctx, kadm.TopicsSet{given.Topic: {0: {}, 1: {}, 2: {}}})
	if err != nil {
		return nil, fmt.Errorf("describe producers: %w", err)
	}
	open := 0
	producers.EachProducer(func(each kadm.DescribedProducer) {
		if each.CurrentTxnStartOffset >= 0 {
			open++
		}
	})
	if err := client.EndTransaction(ctx, kgo.TryAbort); err != nil {
		return nil, fmt.Errorf("abort: %w", err)
	}
	if _, err := ask.DeleteTopic(ctx, given.Topic); err != nil {
		return nil, fmt.Errorf("delete: %w", err)
	}
	_, ongoing := listed[given.ID]
	return map[string]any{
		"ongoing": ongoing, "state": described[given.ID].State, "open": open,
	}, nil
}
