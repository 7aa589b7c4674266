package main

import (
	"context"
	"math/rand"
	"strings"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"
)

// options of a member of the group, of either protocol.
func (given parameters) options() []kgo.Opt {
	options := []kgo.Opt{
		kgo.ConsumerGroup(given.Group),
		kgo.ConsumeTopics(given.Topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.DisableAutoCommit(),
	}
	if given.Protocol == "consumer" {
		options = append(options, kgo.ServerSideBalancer())
	}
	return options
}

// group reads Count records with three members, of which one leaves in between, and commits each poll.
func group(ctx context.Context, given parameters) (any, error) {
	var (
		lock   sync.Mutex
		values []string
		wait   sync.WaitGroup
		failed error
	)
	reading, done := context.WithCancel(ctx)
	defer done()
	member := func(most int) {
		defer wait.Done()
		client, err := given.connect(append(given.options(), kgo.BlockRebalanceOnPoll())...)
		if err != nil {
			failed = err
			done()
			return
		}
		defer client.CloseAllowingRebalance()
		for polls := 0; polls < most && reading.Err() == nil; polls++ {
			fetches := client.PollRecords(reading, 50)
			if reading.Err() != nil {
				return
			}
			err := fetches.Err()
			if err == nil {
				err = client.CommitRecords(ctx, fetches.Records()...)
			}
			lock.Lock()
			if err != nil {
				failed = err
				done()
			} else {
				fetches.EachRecord(func(record *kgo.Record) { values = append(values, string(record.Value)) })
			}
			if len(values) >= given.Count {
				done()
			}
			lock.Unlock()
			client.AllowRebalance()
		}
	}
	wait.Add(3)
	go member(2)
	go member(1 << 30)
	go member(1 << 30)
	wait.Wait()
	return values, failed
}

// transact copies Count records in transactions of a group, and aborts some of them at random.
func transact(ctx context.Context, given parameters) (any, error) {
	secured, err := given.Security.options()
	if err != nil {
		return nil, err
	}
	session, err := kgo.NewGroupTransactSession(append(
		append(given.options(), secured...),
		kgo.SeedBrokers(given.Servers),
		kgo.TransactionalID(given.ID+"-copier"),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.DefaultProduceTopic(given.Output),
		kgo.RequireStableFetchOffsets(),
	)...)
	if err != nil {
		return nil, err
	}
	defer session.Close()
	random := rand.New(rand.NewSource(given.Seed))
	committed, aborted := 0, 0
	for copied := 0; copied < given.Count; {
		fetches := session.PollRecords(ctx, 40)
		if err := fetches.Err(); err != nil {
			return nil, err
		}
		if err := session.Begin(); err != nil {
			return nil, err
		}
		fetches.EachRecord(func(record *kgo.Record) {
			value := []byte(strings.ToUpper(string(record.Value)))
			session.Produce(ctx, &kgo.Record{Key: record.Key, Value: value}, nil)
		})
		wants := random.Intn(3) > 0
		is, err := session.End(ctx, kgo.TransactionEndTry(wants))
		switch {
		case err != nil:
			return nil, err
		case is:
			committed++
			copied += fetches.NumRecords()
		default:
			aborted++
		}
	}
	return map[string]int{"committed": committed, "aborted": aborted}, nil
}
