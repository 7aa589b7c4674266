"""The transaction coordinator: transactional ids and their transactions, stored in `__transaction_state`.

A producer with a transactional id writes to many partitions, and all of its writes take effect or none. The coordinator
of the id says which. It stores PrepareCommit or PrepareAbort; from then on the result is certain. It then has the
leaders of all partitions of the transaction write a marker, and stores CompleteCommit or CompleteAbort.

    state.py         a transactional id: its state, producer id, epoch and partitions
    transitions.py   what each request or event does to one transactional id
    records.py       the records of `__transaction_state`
    shard.py         all transactional ids of one partition, as a Shard of the coordinator runtime
    markers.py       which markers go to which broker next
    describing.py    DescribeTransactions and ListTransactions
    transaction_coordinator.py   the coordinator of this broker (A)

kbroker.broker.marker_sender sends the markers. Source: KIP-98, KIP-360, KIP-447, KIP-588, KIP-890; the transaction
coordinator of Apache Kafka 4.3.1.
"""
